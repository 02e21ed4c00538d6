//! A Kafka broker inside the process.

use std::fmt;
use std::sync::mpsc;
use std::thread;

use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;

use super::TestingError;

/// librdkafka's mock cluster: it speaks Kafka's protocol on local ports, so that other processes
/// can connect, and keeps its records in memory.
///
/// Consumer groups, offsets, headers and the idempotent producer work. What an administrator asks
/// for does not: topics are made with [`create_topic`](Self::create_topic). A member that rejoins
/// after a crash waits until its old session has run out.
pub struct MockBroker {
    orders: mpsc::Sender<CreateTopic>,
    bootstrap: String,
}

struct CreateTopic {
    name: String,
    partitions: i32,
    reply: mpsc::Sender<Result<(), KafkaError>>,
}

impl MockBroker {
    /// Starts a cluster of one broker. It ends when this value is dropped.
    ///
    /// # Errors
    /// When librdkafka can't start it.
    pub fn start() -> Result<Self, TestingError> {
        // librdkafka's handle may not move between threads: one thread owns it and takes orders.
        let (orders, inbox) = mpsc::channel();
        let (started, start) = mpsc::channel();
        thread::spawn(move || own_cluster(&started, &inbox));
        let bootstrap = start.recv().map_err(|_| TestingError::MockGone)?;
        let bootstrap = bootstrap.map_err(|source| TestingError::Mock { what: "start".to_owned(), source })?;
        Ok(Self { orders, bootstrap })
    }

    /// The value for `bootstrap.servers`, and for `IDEM_KAFKA_BROKERS`.
    #[must_use]
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// When the name is unsuitable or taken.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), TestingError> {
        let (reply, answer) = mpsc::channel();
        let order = CreateTopic { name: name.to_owned(), partitions, reply };
        self.orders.send(order).map_err(|_| TestingError::MockGone)?;
        let created = answer.recv().map_err(|_| TestingError::MockGone)?;
        created.map_err(|source| TestingError::Mock { what: format!("create the topic {name}"), source })
    }
}

impl fmt::Debug for MockBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockBroker").field("bootstrap", &self.bootstrap).finish_non_exhaustive()
    }
}

/// Holds the cluster until the last sender of orders is gone.
fn own_cluster(started: &mpsc::Sender<Result<String, KafkaError>>, inbox: &mpsc::Receiver<CreateTopic>) {
    let cluster = match MockCluster::new(1) {
        Ok(cluster) => cluster,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    // A receiver that is gone has stopped waiting; the loop then ends by itself.
    let _ = started.send(Ok(cluster.bootstrap_servers()));
    for CreateTopic { name, partitions, reply } in inbox {
        let _ = reply.send(cluster.create_topic(&name, partitions, 1));
    }
}
