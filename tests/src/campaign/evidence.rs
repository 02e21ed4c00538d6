//! Gathers the evidence when all is over: topics with a plain consumer, tables with plain SQL.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use idem_runtime::testing::Provider;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use sqlx::PgConnection;
use uuid::Uuid;

use super::RETRIES;
use super::checker::{Charge, Effect, Evidence, Found, Letter, Place, Sent, Waiting};
use super::database::Address;
use super::load::{Body, GROUPS, Subject};
use super::timeline::Timeline;
use crate::Client;

/// For one question to the brokers.
const ANSWER: Duration = Duration::from_secs(10);

/// For a topic from its beginning to its end.
const READ: Duration = Duration::from_secs(300);

/// Waits until both groups have read everything that they have to, for so long at most.
pub async fn settled(kafka: &Client, database: &Address, timeline: &Timeline, limit: Duration) -> bool {
    let start = Instant::now();
    let mut said = Instant::now();
    loop {
        let client = kafka.clone();
        let behind = tokio::task::spawn_blocking(move || behind(&client)).await.expect("no panic");
        let parked = parked(database).await;
        if (&behind, parked) == (&Ok(0), Some(0)) {
            return true;
        }
        if said.elapsed() > Duration::from_secs(10) {
            timeline.note(format!("to be read: {behind:?}, parked: {parked:?}"));
            said = Instant::now();
        }
        if start.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// How many offsets the groups have before them, retries included.
fn behind(kafka: &Client) -> Result<i64, KafkaError> {
    let mut behind = 0;
    for group in GROUPS {
        let consumer = reader(kafka, group)?;
        for topic in topics(group) {
            let mut asked = TopicPartitionList::new();
            for partition in partitions(&consumer, &topic)? {
                asked.add_partition(&topic, partition);
            }
            for element in consumer.committed_offsets(asked, ANSWER)?.elements() {
                let (low, end) = consumer.fetch_watermarks(&topic, element.partition(), ANSWER)?;
                let next = if let Offset::Offset(offset) = element.offset() { offset } else { low };
                behind += end - next;
            }
        }
    }
    Ok(behind)
}

/// What a group reads: its subjects, and its retry topics.
fn topics(group: &str) -> Vec<String> {
    let reads = |subject: &Subject| subject.handlers().iter().any(|(_, of)| *of == group);
    let main =
        Subject::SHARES.iter().map(|(subject, _)| *subject).filter(reads).map(|subject| subject.topic().to_owned());
    main.chain(RETRIES.iter().map(|delay| format!("{group}.retry.{delay}"))).collect()
}

async fn parked(database: &Address) -> Option<i64> {
    let mut session = database.session().await?;
    sqlx::query_scalar("SELECT count(*) FROM parked_event").fetch_one(&mut session).await.ok()
}

/// Gathers everything.
///
/// # Panics
/// When a server does not answer: nothing may be wrong with them any more.
pub async fn gather(
    kafka: &Client,
    database: &Address,
    provider: &Provider,
    sent: Vec<Sent>,
    timeline: &Timeline,
) -> Evidence {
    let client = kafka.clone();
    let topics = tokio::task::spawn_blocking(move || read_topics(&client)).await.expect("no panic");
    let (found, letters, mut waiting) = topics.unwrap_or_else(|error| panic!("cannot read the topics: {error}"));
    let mut session = database.session().await.expect("the database answers");
    let effects = effects(&mut session, timeline.start_unix_millis()).await.expect("the effects");
    waiting.extend(parked_events(&mut session).await.expect("the parked events"));
    let charges = provider.charges().into_iter().filter_map(|charge| {
        let body: serde_json::Value = serde_json::from_slice(&charge.body).ok()?;
        Some(Charge { event: body["event"].as_str()?.parse().ok()?, key: charge.key })
    });
    Evidence { sent, found, effects, charges: charges.collect(), letters, waiting }
}

type Topics = (Vec<Found>, Vec<Letter>, Vec<Waiting>);

fn read_topics(kafka: &Client) -> Result<Topics, KafkaError> {
    let (mut found, mut letters, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for (subject, _) in Subject::SHARES {
        read(kafka, subject.topic(), &BTreeMap::new(), |record| {
            let place = Place { subject, partition: record.partition(), offset: record.offset() };
            found.push(Found { place, event: event(record) });
        })?;
    }
    for group in GROUPS {
        read(kafka, &format!("{group}.dlq"), &BTreeMap::new(), |record| {
            letters.push(Letter {
                group: group.to_owned(),
                origin: origin(record),
                event: event(record),
                reason: header(record, "idem-reason").unwrap_or_default(),
            });
        })?;
        for delay in RETRIES {
            let topic = format!("{group}.retry.{delay}");
            let from = committed(kafka, group, &topic)?;
            read(kafka, &topic, &from, |record| {
                if let Some(event) = event(record) {
                    let whereabouts = format!("{topic}/{}@{}", record.partition(), record.offset());
                    waiting.push(Waiting { group: group.to_owned(), event, whereabouts });
                }
            })?;
        }
    }
    Ok((found, letters, waiting))
}

/// The event in a record's value, if it is one: the right fields, and an id that is a UUID v7.
fn event(record: &BorrowedMessage<'_>) -> Option<Uuid> {
    let body: Body = serde_json::from_slice(record.payload()?).ok()?;
    Some(body.event_id).filter(|id| id.get_version_num() == 7)
}

fn origin(record: &BorrowedMessage<'_>) -> Option<Place> {
    Some(Place {
        subject: Subject::of_topic(&header(record, "idem-origin-topic")?)?,
        partition: header(record, "idem-origin-partition")?.parse().ok()?,
        offset: header(record, "idem-origin-offset")?.parse().ok()?,
    })
}

fn header(record: &BorrowedMessage<'_>, name: &str) -> Option<String> {
    let value = record.headers()?.iter().find(|header| header.key == name)?.value?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Shows every record from these offsets, or the beginning, to the ends seen now.
fn read(
    kafka: &Client,
    topic: &str,
    from: &BTreeMap<i32, i64>,
    mut show: impl FnMut(&BorrowedMessage<'_>),
) -> Result<(), KafkaError> {
    let consumer = reader(kafka, "campaign-checker")?;
    let mut ends = BTreeMap::new();
    let mut wanted = TopicPartitionList::new();
    for partition in partitions(&consumer, topic)? {
        let (low, end) = consumer.fetch_watermarks(topic, partition, ANSWER)?;
        let start = from.get(&partition).copied().unwrap_or(0).max(low);
        if start < end {
            wanted.add_partition_offset(topic, partition, Offset::Offset(start))?;
            ends.insert(partition, end);
        }
    }
    consumer.assign(&wanted)?;
    let start = Instant::now();
    while !ends.is_empty() {
        assert!(start.elapsed() < READ, "{topic} was not read to its end within {READ:?}; open: {ends:?}");
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(record)) => {
                let Some(&end) = ends.get(&record.partition()) else { continue };
                if record.offset() < end {
                    show(&record);
                }
                if record.offset() + 1 >= end {
                    ends.remove(&record.partition());
                }
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(ends.remove(&partition)),
            // A broker that was away is found again.
            Some(Err(_)) | None => {}
        }
    }
    Ok(())
}

fn committed(kafka: &Client, group: &str, topic: &str) -> Result<BTreeMap<i32, i64>, KafkaError> {
    let consumer = reader(kafka, group)?;
    let mut asked = TopicPartitionList::new();
    for partition in partitions(&consumer, topic)? {
        asked.add_partition(topic, partition);
    }
    let told = consumer.committed_offsets(asked, ANSWER)?;
    let offsets = told.elements().into_iter().filter_map(|element| match element.offset() {
        Offset::Offset(offset) => Some((element.partition(), offset)),
        _ => None,
    });
    Ok(offsets.collect())
}

/// A consumer that joins no group, though it asks in a group's name.
fn reader(kafka: &Client, group: &str) -> Result<BaseConsumer, KafkaError> {
    let mut config = kafka.config();
    config.set("group.id", group).set("enable.auto.commit", "false").set("enable.partition.eof", "true");
    config.create()
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> Result<Vec<i32>, KafkaError> {
    let seen = consumer.fetch_metadata(Some(topic), ANSWER)?;
    let found = seen.topics().iter().find(|found| found.name() == topic && found.error().is_none());
    Ok(found.map_or_else(Vec::new, |found| found.partitions().iter().map(|each| each.id()).collect()))
}

async fn effects(session: &mut PgConnection, start_unix_millis: i64) -> Result<Vec<Effect>, sqlx::Error> {
    let rows = sqlx::query_as::<_, (i64, String, Uuid, i32, i64)>(
        "SELECT position, handler, event_id, member, (extract(epoch FROM at) * 1000)::bigint FROM effect",
    );
    rows.fetch(session)
        .map_ok(|(position, handler, event, member, at)| Effect {
            position,
            handler,
            event,
            member,
            at_millis: at - start_unix_millis,
        })
        .try_collect()
        .await
}

async fn parked_events(session: &mut PgConnection) -> Result<Vec<Waiting>, sqlx::Error> {
    type Row = (String, String, i32, i64, Option<Vec<u8>>);
    let rows: Vec<Row> =
        sqlx::query_as("SELECT consumer_group, topic, partition, record_offset, value FROM parked_event")
            .fetch_all(session)
            .await?;
    let waiting = rows.into_iter().filter_map(|(group, topic, partition, offset, value)| {
        let body: Body = serde_json::from_slice(&value?).ok()?;
        Some(Waiting { group, event: body.event_id, whereabouts: format!("parked, from {topic}/{partition}@{offset}") })
    });
    Ok(waiting.collect())
}
