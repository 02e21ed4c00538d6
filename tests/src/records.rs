//! Records as tests write and read them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::client::LIMIT;
use idem_runtime::RawHeader;
use idem_runtime::testing::headers;

/// A record to produce; what is not said is absent.
#[derive(Debug, Clone)]
#[must_use]
pub struct Record<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) timestamp: Option<i64>,
    pub(crate) headers: Vec<RawHeader>,
}

impl<'a> Record<'a> {
    /// A record without key, value or headers.
    pub fn to(topic: &'a str) -> Self {
        Self { topic, partition: None, key: None, value: None, timestamp: None, headers: Vec::new() }
    }

    /// The partition; otherwise the key's hash chooses it.
    pub fn partition(self, partition: i32) -> Self {
        Self { partition: Some(partition), ..self }
    }

    /// The key.
    pub fn key(self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { key: Some(key.as_ref()), ..self }
    }

    /// The value.
    pub fn value(self, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { value: Some(value.as_ref()), ..self }
    }

    /// The timestamp, in milliseconds since the Unix epoch.
    pub fn timestamp(self, millis: i64) -> Self {
        Self { timestamp: Some(millis), ..self }
    }

    /// One more header, of any bytes.
    pub fn header(mut self, name: impl AsRef<[u8]>, value: Option<&[u8]>) -> Self {
        self.headers.push((name.as_ref().to_vec(), value.map(<[u8]>::to_vec)));
        self
    }
}

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRecord {
    pub partition: i32,
    pub offset: i64,
    pub timestamp: Option<i64>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// In order; names and values are any bytes.
    pub headers: Vec<RawHeader>,
}

impl ReadRecord {
    /// The first value of the header with this name, as text for comparison.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let (_, value) = self.headers.iter().find(|(found, _)| found == name.as_bytes())?;
        value.as_deref().map(|value| String::from_utf8_lossy(value).into_owned())
    }
}

/// The partitions of a topic; none if it does not exist.
pub(crate) fn partitions(consumer: &BaseConsumer, topic: &str) -> Vec<i32> {
    let seen = consumer.fetch_metadata(Some(topic), LIMIT);
    let seen = seen.unwrap_or_else(|error| panic!("cannot look at the topic {topic}: {error}"));
    let found = seen.topics().iter().find(|found| found.name() == topic && found.error().is_none());
    found.map_or_else(Vec::new, |found| found.partitions().iter().map(|each| each.id()).collect())
}

/// The first offset of a partition and the one past its last. A partition that was just made has no
/// leader for a moment.
fn bounds(consumer: &BaseConsumer, topic: &str, partition: i32) -> (i64, i64) {
    let start = Instant::now();
    loop {
        match consumer.fetch_watermarks(topic, partition, LIMIT) {
            Ok(bounds) => return bounds,
            Err(_) if start.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => panic!("cannot find the end of {topic}/{partition}: {error}"),
        }
    }
}

/// Every record up to the ends seen at the beginning.
pub(crate) fn read_all(consumer: &BaseConsumer, topic: &str) -> Vec<ReadRecord> {
    let mut wanted = TopicPartitionList::new();
    let mut ends = BTreeMap::new();
    for partition in partitions(consumer, topic) {
        let (low, end) = bounds(consumer, topic, partition);
        if low < end {
            wanted.add_partition_offset(topic, partition, Offset::Beginning).expect("a valid offset");
            ends.insert(partition, end);
        }
    }
    consumer.assign(&wanted).expect("a consumer with a group name");
    let start = Instant::now();
    let mut records = Vec::new();
    while !ends.is_empty() {
        assert!(start.elapsed() < LIMIT, "{topic} was not read to its end within {LIMIT:?}; open: {ends:?}");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                let (partition, offset) = (message.partition(), message.offset());
                let Some(&end) = ends.get(&partition) else {
                    continue;
                };
                if offset < end {
                    records.push(ReadRecord {
                        partition,
                        offset,
                        timestamp: message.timestamp().to_millis(),
                        key: message.key().map(<[u8]>::to_vec),
                        value: message.payload().map(<[u8]>::to_vec),
                        headers: headers::read(&message),
                    });
                }
                if offset + 1 >= end {
                    ends.remove(&partition);
                }
            }
            // Only the end tells, where the last offsets are no records (transactions, compaction).
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ends.remove(&partition);
            }
            Some(Err(error)) => panic!("cannot read {topic}: {error}"),
            None => {}
        }
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}
