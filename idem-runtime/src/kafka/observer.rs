//! Looking at a cluster in a group's name without being a member of the group.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::mpsc;

use super::consumer::{Partition, committed_offsets};
use super::producer::LogContext;
use super::record::Record;
use super::{client_config, on_thread};
use crate::config::Config;

/// Longest time for one question to the broker.
const REQUEST: Duration = Duration::from_secs(10);
/// Longest time without a record while there must be more.
const PATIENCE: Duration = Duration::from_secs(30);
/// Records on their way to a slower reader.
const AHEAD: usize = 64;

impl ConsumerContext for LogContext {}

type Client = BaseConsumer<LogContext>;

/// A record that was read; `None` is the end.
pub(crate) type Read = KafkaResult<Option<Record>>;

/// Asks and reads. Each question has a client of its own, on a thread of its own: closing one may
/// block as well.
pub(crate) struct Observer {
    config: ClientConfig,
}

impl Observer {
    pub(crate) fn new(config: &Config, group: &str) -> Self {
        Self { config: client_config::observer(config, group) }
    }

    /// Every partition of the cluster, and whether it has a leader.
    pub(crate) async fn partitions(&self) -> KafkaResult<BTreeMap<Partition, bool>> {
        // Of all topics: a question for one by its name may create it.
        self.ask(|client| {
            let metadata = client.fetch_metadata(None, REQUEST)?;
            let mut partitions = BTreeMap::new();
            for topic in metadata.topics().iter().filter(|topic| topic.error().is_none()) {
                let name: Arc<str> = topic.name().into();
                partitions.extend(topic.partitions().iter().map(|partition| {
                    (Partition { topic: Arc::clone(&name), number: partition.id() }, partition.leader() >= 0)
                }));
            }
            Ok(partitions)
        })
        .await
    }

    /// First offset and one past the last of each log. The partitions must have leaders.
    pub(crate) async fn bounds(&self, partitions: Vec<Partition>) -> KafkaResult<BTreeMap<Partition, Range<i64>>> {
        self.ask(move |client| {
            let bounds = partitions.into_iter().map(|partition| {
                let (start, end) = client.fetch_watermarks(&partition.topic, partition.number, REQUEST)?;
                Ok((partition, start..end))
            });
            bounds.collect()
        })
        .await
    }

    /// One past the last offset of each log, of those that can be asked within a bound. The partitions must
    /// exist. On a consumer's own connection each question would wait for a fetch that waits for records.
    pub(crate) async fn ends(&self, partitions: Vec<Partition>) -> KafkaResult<HashMap<Partition, i64>> {
        self.ask(move |client| {
            let start = Instant::now();
            let mut ends = HashMap::new();
            for partition in partitions {
                let left = (REQUEST * 3).saturating_sub(start.elapsed()).min(REQUEST);
                if let Ok((_, end)) = client.fetch_watermarks(&partition.topic, partition.number, left) {
                    ends.insert(partition, end);
                }
            }
            Ok(ends)
        })
        .await
    }

    /// What the group has committed, with the commits' metadata.
    pub(crate) async fn committed(&self, partitions: Vec<Partition>) -> KafkaResult<HashMap<Partition, (i64, String)>> {
        self.ask(move |client| committed_offsets(client, &partitions, REQUEST)).await
    }

    /// Commits offsets, each with its metadata. The broker refuses it while the group has members.
    pub(crate) async fn commit(&self, offsets: Vec<(Partition, i64, String)>) -> KafkaResult<()> {
        self.ask(move |client| {
            let mut list = TopicPartitionList::with_capacity(offsets.len());
            for (partition, offset, metadata) in &offsets {
                let mut element = list.add_partition(&partition.topic, partition.number);
                element.set_offset(Offset::Offset(*offset))?;
                element.set_metadata(metadata);
            }
            client.commit(&list, CommitMode::Sync)
        })
        .await
    }

    /// Which of these ranges of a topic hold no record, of those that can be read within a bound.
    pub(crate) async fn without_records(
        &self,
        topic: &Arc<str>,
        ranges: BTreeMap<i32, Range<i64>>,
    ) -> KafkaResult<Vec<i32>> {
        let topic = Arc::clone(topic);
        self.ask(move |client| without_records(client, &topic, ranges)).await
    }

    /// The records of a topic within the given ranges, each partition's in order, and `None` after the
    /// last one: a channel that ends without it was cut off. Dropping the receiver ends the reading.
    pub(crate) fn read(&self, topic: &str, ranges: BTreeMap<i32, Range<i64>>) -> mpsc::Receiver<Read> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let (config, topic) = (self.config.clone(), Arc::from(topic));
        tokio::spawn(async move {
            on_thread(move || {
                let client: KafkaResult<Client> = config.create_with_context(LogContext);
                let end = client.and_then(|client| read(&client, &topic, ranges, &sender));
                // A reader that is gone does not miss it.
                let _ = sender.blocking_send(end.map(|()| None));
            })
            .await
        });
        receiver
    }

    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Client) -> KafkaResult<T> + Send + 'static,
    ) -> KafkaResult<T> {
        let config = self.config.clone();
        let answer = on_thread(move || {
            let client: Client = config.create_with_context(LogContext)?;
            ask(&client)
        });
        answer.await.unwrap_or(Err(KafkaError::Global(RDKafkaErrorCode::Fail)))
    }
}

fn read(
    client: &Client,
    topic: &Arc<str>,
    mut open: BTreeMap<i32, Range<i64>>,
    to: &mpsc::Sender<Read>,
) -> KafkaResult<()> {
    open.retain(|_, range| !range.is_empty());
    assign(client, topic, &open)?;
    let mut heard = Instant::now();
    while !open.is_empty() {
        match client.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                let (partition, offset) = (message.partition(), message.offset());
                let Some(range) = open.get(&partition) else { continue };
                let end = range.end;
                if offset < end && to.blocking_send(Ok(Some(Record::detach(&message, Arc::clone(topic))))).is_err() {
                    return Ok(());
                }
                if offset + 1 >= end {
                    open.remove(&partition);
                }
                // The wait for a slow reader is not the broker's.
                heard = Instant::now();
            }
            // Only the end tells, where the last offsets are no records (transactions).
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(open.remove(&partition)),
            Some(Err(error)) if !will_reconnect(&error) => return Err(error),
            _ if heard.elapsed() > PATIENCE => {
                return Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut));
            }
            _ => {}
        }
    }
    Ok(())
}

fn without_records(client: &Client, topic: &str, mut open: BTreeMap<i32, Range<i64>>) -> KafkaResult<Vec<i32>> {
    assign(client, topic, &open)?;
    let start = Instant::now();
    let mut without = Vec::new();
    while !open.is_empty() && start.elapsed() < REQUEST {
        match client.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                let partition = message.partition();
                let is_behind = open.remove(&partition).is_some_and(|range| message.offset() >= range.end);
                without.extend(is_behind.then_some(partition));
            }
            // The broker's own word that there is nothing more.
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                without.extend(open.remove(&partition).map(|_| partition));
            }
            Some(Err(error)) if !will_reconnect(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(without)
}

fn assign(client: &Client, topic: &str, ranges: &BTreeMap<i32, Range<i64>>) -> KafkaResult<()> {
    let mut list = TopicPartitionList::with_capacity(ranges.len());
    for (&partition, range) in ranges {
        list.add_partition_offset(topic, partition, Offset::Offset(range.start))?;
    }
    client.assign(&list)
}

fn will_reconnect(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown)
    )
}
