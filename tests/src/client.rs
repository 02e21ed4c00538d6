//! What tests ask of a broker, real or mock: produce, read, offsets, topics.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;

use crate::java;
use crate::records::{ReadRecord, Record, partitions, read_all};
use idem_runtime::testing::headers;

/// Longest time for one question to the broker.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Pause before a question is asked again.
const RETRY: Duration = Duration::from_millis(100);

/// Talks to the broker at an address. Every failure panics with what was tried.
#[derive(Clone)]
pub struct Client {
    bootstrap: String,
    producer: OnceLock<FutureProducer>,
}

impl Client {
    /// A client for the broker at this address. Nothing is connected yet.
    #[must_use]
    pub fn new(bootstrap: &str) -> Self {
        Self { bootstrap: bootstrap.to_owned(), producer: OnceLock::new() }
    }

    /// The value for `bootstrap.servers`, and for `IDEM_KAFKA_BROKERS`.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// A librdkafka configuration for this broker, for what is not here.
    #[must_use]
    pub fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        config
    }

    /// Whether the broker answers within a moment.
    pub async fn answers(&self) -> bool {
        let config = self.config();
        blocking(move || {
            let consumer: BaseConsumer = config.create().expect("a plain configuration");
            consumer.fetch_metadata(None, Duration::from_secs(2)).is_ok_and(|seen| !seen.brokers().is_empty())
        })
        .await
    }

    /// Creates a topic. A mock broker can't: use its own function.
    pub async fn create_topic(&self, name: &str, partitions: i32) {
        self.create_topic_with_config(name, partitions, &[]).await;
    }

    /// Creates a topic with configuration, such as `("max.message.bytes", "2000")`.
    pub async fn create_topic_with_config(&self, name: &str, partitions: i32, config: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        let created = self.admin().create_topics([&topic], &options()).await;
        done(created, &format!("create the topic {name}"));
    }

    /// Sets a topic's configuration to exactly this.
    pub async fn alter_topic(&self, name: &str, config: &[(&str, &str)]) {
        let alter = AlterConfig::new(ResourceSpecifier::Topic(name));
        let alter = config.iter().fold(alter, |alter, (key, value)| alter.set(key, value));
        let altered = self.admin().alter_configs([&alter], &options()).await;
        done(altered, &format!("alter the topic {name}"));
    }

    /// Deletes a topic.
    pub async fn delete_topic(&self, name: &str) {
        done(self.admin().delete_topics(&[name], &options()).await, &format!("delete the topic {name}"));
    }

    /// Deletes a group with its offsets; it must have no members.
    pub async fn delete_group(&self, group: &str) {
        done(self.admin().delete_groups(&[group], &options()).await, &format!("delete the group {group}"));
    }

    /// The partitions of a topic; none if it does not exist.
    pub async fn partitions(&self, topic: &str) -> Vec<i32> {
        let (config, topic) = (self.config(), topic.to_owned());
        blocking(move || partitions(&config.create().expect("a plain configuration"), &topic)).await
    }

    /// What a group has committed on a topic, by partition. Partitions without an offset are absent.
    pub async fn committed(&self, group: &str, topic: &str) -> BTreeMap<i32, Committed> {
        let mut config = self.config();
        config.set("group.id", group).set("enable.auto.commit", "false");
        let topic = topic.to_owned();
        blocking(move || {
            let consumer: BaseConsumer = config.create().expect("a plain configuration");
            let mut asked = TopicPartitionList::new();
            for partition in partitions(&consumer, &topic) {
                asked.add_partition(&topic, partition);
            }
            let start = Instant::now();
            let told = loop {
                match consumer.committed_offsets(asked.clone(), Duration::from_secs(5)) {
                    Ok(told) => break told,
                    // The first group of a broker waits until its coordinator has been made.
                    Err(_) if start.elapsed() < LIMIT => std::thread::sleep(RETRY),
                    Err(error) => panic!("cannot read committed offsets of {topic}: {error}"),
                }
            };
            let elements = told.elements();
            let committed = elements.iter().filter_map(|element| match element.offset() {
                Offset::Offset(offset) => {
                    Some((element.partition(), Committed { offset, metadata: element.metadata().to_owned() }))
                }
                _ => None,
            });
            committed.collect()
        })
        .await
    }

    /// Moves a group's offsets with Kafka's own tool, which clears the commit's metadata. The group
    /// must have no members. `to` is such as `["--to-earliest"]` or `["--to-offset", "7"]`.
    pub async fn reset_offsets(&self, group: &str, topic: &str, to: &[&str]) {
        let fixed = ["--bootstrap-server", &self.bootstrap, "--group", group, "--topic", topic];
        let args = fixed.iter().chain(&["--reset-offsets", "--execute"]).chain(to);
        let args: Vec<String> = args.map(|arg| (*arg).to_owned()).collect();
        blocking(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let printed = java::run("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", &args);
            assert!(!printed.contains("Error:"), "the offsets were not reset:\n{printed}");
        })
        .await;
    }

    /// Produces a record and returns its partition and offset. It is queued when this is called, so
    /// records have the order of the calls even if the futures are awaited together.
    pub fn produce(&self, record: Record<'_>) -> impl Future<Output = (i32, i64)> + Send + use<> {
        let topic = record.topic.to_owned();
        let mut future = FutureRecord::<[u8], [u8]>::to(record.topic);
        future.partition = record.partition;
        future.key = record.key;
        future.payload = record.value;
        future.timestamp = record.timestamp;
        future.headers = (!record.headers.is_empty()).then(|| headers::write(&record.headers));
        let queued = self.producer().send_result(future);
        let queued = queued.unwrap_or_else(|(error, _)| panic!("cannot produce to {topic}: {error}"));
        async move {
            match queued.await.expect("the producer outlives its records") {
                Ok(delivery) => (delivery.partition, delivery.offset),
                Err((error, _)) => panic!("cannot produce to {topic}: {error}"),
            }
        }
    }

    /// Cuts the log of a partition: everything before the offset is gone.
    ///
    /// # Panics
    /// When the broker refuses.
    pub async fn delete_records(&self, topic: &str, partition: i32, before: i64) {
        self.cut(topic, partition, rdkafka::Offset::Offset(before)).await;
    }

    /// Empties a partition; its offsets go on.
    ///
    /// # Panics
    /// When the broker refuses.
    pub async fn delete_all_records(&self, topic: &str, partition: i32) {
        self.cut(topic, partition, rdkafka::Offset::End).await;
    }

    async fn cut(&self, topic: &str, partition: i32, before: rdkafka::Offset) {
        let mut list = rdkafka::TopicPartitionList::new();
        list.add_partition_offset(topic, partition, before).expect("a valid offset");
        let deleted = self.admin().delete_records(&list, &options()).await;
        deleted.unwrap_or_else(|error| panic!("cannot delete records of {topic}: {error}"));
    }

    /// Every record of a topic, by partition and offset, up to the ends seen at the beginning.
    pub async fn read_all(&self, topic: &str) -> Vec<ReadRecord> {
        let mut config = self.config();
        // Never joined: a name is only needed to assign partitions.
        config.set("group.id", "reader").set("enable.auto.commit", "false");
        config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
        let topic = topic.to_owned();
        blocking(move || read_all(&config.create().expect("a plain configuration"), &topic)).await
    }

    fn producer(&self) -> &FutureProducer {
        self.producer.get_or_init(|| {
            let mut config = self.config();
            config.set("linger.ms", "0").set("message.timeout.ms", "30000");
            config.create().expect("a plain configuration")
        })
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().expect("a plain configuration")
    }
}

/// What a group has committed on one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The next offset to read.
    pub offset: i64,
    /// The text that was committed with it.
    pub metadata: String,
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT))
}

/// What an administrator's request came to, for each thing it named.
type Outcomes<T, N> = Result<Vec<Result<T, (N, RDKafkaErrorCode)>>, KafkaError>;

/// Insists on the success of an administrator's request.
fn done<T, N>(outcomes: Outcomes<T, N>, what: &str) {
    let outcomes = outcomes.unwrap_or_else(|error| panic!("cannot {what}: {error}"));
    for outcome in outcomes {
        if let Err((_, code)) = outcome {
            panic!("cannot {what}: {code}");
        }
    }
}

/// librdkafka's calls block.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(call).await;
    done.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}
