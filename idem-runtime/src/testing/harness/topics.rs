//! The group's own topics on the broker of a harness.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::group::GroupContext;
use crate::kafka::consumer::Partition;
use crate::kafka::names;
use crate::kafka::observer::Observer;
use crate::kafka::record::Record;
use crate::testing::{MockBroker, TestingError};

/// A broker, and how far the harness has read each topic of one partition.
pub(super) struct Topics {
    broker: MockBroker,
    read_to: Mutex<BTreeMap<String, i64>>,
}

impl Topics {
    pub(super) fn start() -> Result<Self, TestingError> {
        Ok(Self { broker: MockBroker::start()?, read_to: Mutex::default() })
    }

    pub(super) fn brokers(&self) -> &str {
        self.broker.bootstrap_servers()
    }

    /// Makes the topics that the group moves events to.
    pub(super) fn create(&self, group: &GroupContext) -> Result<(), TestingError> {
        let mut read_to = self.lock();
        for topic in own_topics(group) {
            if let Entry::Vacant(new) = read_to.entry(topic) {
                self.broker.create_topic(new.key(), 1)?;
                new.insert(0);
            }
        }
        Ok(())
    }

    /// The last record that came to one of the group's topics and was not read yet.
    pub(super) async fn last_new(&self, config: &Config, group: &GroupContext) -> Result<Option<Record>, TestingError> {
        let failed = |source| TestingError::Mock { what: "read a topic of the group".to_owned(), source };
        let observer = Observer::new(config, &group.name);
        let partitions = own_topics(group).into_iter().map(|topic| Partition { topic: topic.into(), number: 0 });
        let ends = observer.bounds(partitions.collect()).await.map_err(failed)?;
        let mut last = None;
        for (Partition { topic, .. }, range) in ends {
            let from = self.lock().insert(topic.to_string(), range.end).unwrap_or(0);
            if from == range.end {
                continue;
            }
            let mut records = observer.read(&topic, BTreeMap::from([(0, from..range.end)]));
            while let Some(record) = records.recv().await {
                last = record.map_err(failed)?.or(last);
            }
        }
        Ok(last)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, i64>> {
        self.read_to.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn own_topics(group: &GroupContext) -> Vec<String> {
    let tiers = group.all_tiers();
    let retry = tiers.iter().map(|delay| names::retry_topic(&group.name, *delay));
    retry.chain([names::dlq_topic(&group.name)]).collect()
}
