//! Looking into topics from outside: the demonstration trusts no counter of the library.

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// Longest time for one question to the broker.
const PATIENCE: Duration = Duration::from_secs(10);

/// A consumer that asks in a group's name without joining it.
pub fn observer(client: &ClientConfig, group: &str) -> KafkaResult<BaseConsumer> {
    let mut config = client.clone();
    config.set("group.id", group).set("enable.auto.commit", "false").set("enable.partition.eof", "true");
    // What it asks for is there: no broker has to wait for more.
    config.set("fetch.wait.max.ms", "10");
    config.create()
}

/// Whether there is such a topic.
pub fn exists(observer: &BaseConsumer, topic: &str) -> KafkaResult<bool> {
    let seen = observer.fetch_metadata(Some(topic), PATIENCE)?;
    Ok(seen.topics().iter().any(|found| found.name() == topic && found.error().is_none()))
}

/// The next offset of each partition; none for a topic that does not exist.
pub fn ends(observer: &BaseConsumer, topic: &str) -> KafkaResult<HashMap<i32, i64>> {
    let seen = observer.fetch_metadata(Some(topic), PATIENCE)?;
    let found = seen.topics().iter().find(|found| found.name() == topic && found.error().is_none());
    let partitions = found.map_or(&[][..], |found| found.partitions());
    partitions
        .iter()
        .map(|partition| Ok((partition.id(), observer.fetch_watermarks(topic, partition.id(), PATIENCE)?.1)))
        .collect()
}

/// How many records the observer's group has still to settle on a topic.
pub fn behind(observer: &BaseConsumer, topic: &str) -> KafkaResult<i64> {
    let ends = ends(observer, topic)?;
    let mut asked = TopicPartitionList::new();
    for &partition in ends.keys() {
        asked.add_partition(topic, partition);
    }
    let committed = observer.committed_offsets(asked, PATIENCE)?;
    let behind = committed.elements().into_iter().map(|element| {
        let settled = if let Offset::Offset(offset) = element.offset() { offset } else { 0 };
        ends.get(&element.partition()).map_or(0, |end| (end - settled).max(0))
    });
    Ok(behind.sum())
}

/// Shows every record from the given offsets (or the beginning) to the topic's present end.
pub fn read(
    observer: &BaseConsumer,
    topic: &str,
    from: &HashMap<i32, i64>,
    mut show: impl FnMut(&BorrowedMessage<'_>),
) -> KafkaResult<()> {
    let mut open = ends(observer, topic)?;
    let mut wanted = TopicPartitionList::new();
    open.retain(|partition, end| *end > from.get(partition).copied().unwrap_or(0));
    for &partition in open.keys() {
        let start = from.get(&partition).map_or(Offset::Beginning, |&offset| Offset::Offset(offset));
        wanted.add_partition_offset(topic, partition, start)?;
    }
    observer.assign(&wanted)?;
    while !open.is_empty() {
        match observer.poll(PATIENCE) {
            Some(Ok(record)) => {
                let Some(&end) = open.get(&record.partition()) else { continue };
                if record.offset() < end {
                    show(&record);
                }
                if record.offset() + 1 >= end {
                    open.remove(&record.partition());
                }
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(open.remove(&partition)),
            Some(Err(error)) => return Err(error),
            None => return Err(KafkaError::MessageConsumption(rdkafka::types::RDKafkaErrorCode::OperationTimedOut)),
        }
    }
    Ok(())
}

/// The first value of a header, as text.
pub fn header(record: &BorrowedMessage<'_>, name: &str) -> Option<String> {
    let headers = record.headers()?;
    let value = headers.iter().find(|header| header.key == name)?.value?;
    Some(String::from_utf8_lossy(value).into_owned())
}
