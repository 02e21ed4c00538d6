//! A Kafka cluster that refuses requests when it is told to.

use std::sync::mpsc;
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

/// librdkafka's mock cluster of one broker, in a thread of its own.
#[derive(Debug)]
pub struct Refusing {
    bootstrap: String,
    orders: mpsc::Sender<(RDKafkaApiKey, RDKafkaRespErr)>,
}

impl Refusing {
    /// Starts a cluster with these topics, each of one partition, whose broker takes so long to answer.
    ///
    /// # Panics
    /// When librdkafka can't start it.
    #[must_use]
    pub fn start(topics: &[&str], answers_after: Duration) -> Self {
        let topics: Vec<String> = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let ((orders, ordered), (started, start)) = (mpsc::channel(), mpsc::channel());
        // Its handle may not move between threads.
        std::thread::spawn(move || {
            let cluster = MockCluster::new(1).expect("a cluster in this process");
            for topic in &topics {
                cluster.create_topic(topic, 1, 1).expect("a new topic");
            }
            cluster.broker_round_trip_time(1, answers_after).expect("its one broker");
            started.send(cluster.bootstrap_servers()).expect("somebody waits for it");
            while let Ok((request, error)) = ordered.recv() {
                cluster.request_errors(request, &[error]);
            }
        });
        Self { bootstrap: start.recv().expect("the cluster starts"), orders }
    }

    /// Where clients find it.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Has the next request of this kind answered with an error.
    ///
    /// # Panics
    /// When the cluster is gone.
    pub fn refuse(&self, request: RDKafkaApiKey, error: RDKafkaRespErr) {
        self.orders.send((request, error)).expect("the cluster is there");
    }
}
