//! Gathers the evidence when all is over: topics with a plain consumer, tables with plain SQL.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use idem_runtime::testing::Provider;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::Deserialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::RETRIES;
use super::checker::{Charge, Effect, Evidence, Found, Letter, Place, Published, Sent, Waiting};
use super::database::Address;
use super::load::{GROUPS, Invoice, PARTITIONS, Subject};
use super::timeline::Timeline;
use crate::Client;

/// For one question to the brokers.
const ANSWER: Duration = Duration::from_secs(10);

/// For a topic from its beginning to its end.
const READ: Duration = Duration::from_secs(300);

/// Waits until all groups have read everything that they have to and everything is sent, for so long at most.
/// Returns how long it took.
pub async fn settled(kafka: &Client, database: &Address, timeline: &Timeline, limit: Duration) -> Option<Duration> {
    let start = Instant::now();
    let mut said = Instant::now();
    loop {
        let client = kafka.clone();
        let behind = tokio::task::spawn_blocking(move || {
            let lags = Lags::new(&client)?.look()?.into_iter();
            let open =
                lags.filter(|(_, lag)| lag.next != lag.end).map(|((group, topic, partition), Lag { next, end })| {
                    format!("{topic}/{partition} by {group} from {next} to {end}")
                });
            Ok::<_, KafkaError>(open.collect::<Vec<String>>())
        });
        let behind = behind.await.expect("no panic");
        let parked = parked(database).await;
        if (&behind, parked) == (&Ok(Vec::new()), Some((0, 0))) {
            return Some(start.elapsed());
        }
        if said.elapsed() > Duration::from_secs(10) {
            let behind = behind.map_or_else(|error| error.to_string(), |open| open.join(", "));
            timeline.note(format!("to be read: {behind}; parked and to be sent: {parked:?}"));
            said = Instant::now();
        }
        if start.elapsed() > limit {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// How far the groups are with everything that they read, retries included.
pub struct Lags {
    groups: Vec<(&'static str, BaseConsumer, TopicPartitionList)>,
}

/// What a group reads: a partition of a topic.
pub type Reads = (&'static str, String, i32);

/// How far a group is there: the next offset, and the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    pub next: i64,
    pub end: i64,
}

impl Lags {
    /// # Errors
    /// When there is no broker.
    pub fn new(kafka: &Client) -> Result<Self, KafkaError> {
        let of = |group: &'static str| {
            let consumer = reader(kafka, group)?;
            let mut all = TopicPartitionList::new();
            for topic in topics(group) {
                for partition in partitions(&consumer, &topic)? {
                    all.add_partition(&topic, partition);
                }
            }
            Ok((group, consumer, all))
        };
        Ok(Self { groups: GROUPS.into_iter().map(of).collect::<Result<_, KafkaError>>()? })
    }

    /// Asks the brokers.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn look(&self) -> Result<HashMap<Reads, Lag>, KafkaError> {
        let mut lags = HashMap::new();
        for (group, consumer, all) in &self.groups {
            let committed = consumer.committed_offsets(all.clone(), ANSWER)?;
            let mut ends = all.clone();
            // A time that means the end of the log.
            ends.set_all_offsets(Offset::End)?;
            let ends = consumer.offsets_for_times(ends, ANSWER)?;
            for end in ends.elements() {
                end.error()?;
                let Offset::Offset(offset) = end.offset() else { continue };
                let next = committed.find_partition(end.topic(), end.partition()).map(|found| found.offset());
                let next = if let Some(Offset::Offset(next)) = next { next } else { 0 };
                lags.insert((*group, end.topic().to_owned(), end.partition()), Lag { next, end: offset });
            }
        }
        Ok(lags)
    }
}

/// What a group reads: its subjects, and its retry topics.
fn topics(group: &str) -> Vec<String> {
    let reads = |subject: &Subject| subject.handlers().iter().any(|(_, of)| *of == group);
    let main =
        Subject::SHARES.iter().map(|(subject, _)| *subject).filter(reads).map(|subject| subject.topic().to_owned());
    main.chain(RETRIES.iter().map(|delay| format!("{group}.retry.{delay}"))).collect()
}

/// How many events are parked, and how many are in the outbox.
async fn parked(database: &Address) -> Option<(i64, i64)> {
    let mut session = database.session().await?;
    let both = "SELECT (SELECT count(*) FROM parked_event), \
                       (SELECT count(*) FROM idem_outbox) + (SELECT count(*) FROM idem_outbox_parked)";
    sqlx::query_as(both).fetch_one(&mut session).await.ok()
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
    let (client, start) = (kafka.clone(), timeline.start_unix_millis());
    let topics = tokio::task::spawn_blocking(move || read_topics(&client, start)).await.expect("no panic");
    let mut evidence = topics.unwrap_or_else(|error| panic!("cannot read the topics: {error}"));
    let mut session = database.session().await.expect("the database answers");
    evidence.sent = sent;
    evidence.effects = effects(&mut session, start).await.expect("the effects");
    evidence.waiting.extend(parked_events(&mut session).await.expect("the parked events"));
    evidence.unsent = unsent(&mut session).await.expect("the outbox");
    let charges = provider.charges().into_iter().filter_map(|charge| {
        let body: serde_json::Value = serde_json::from_slice(&charge.body).ok()?;
        Some(Charge { event: body["event"].as_str()?.parse().ok()?, key: charge.key })
    });
    evidence.charges = charges.collect();
    evidence
}

/// What the topics tell.
fn read_topics(kafka: &Client, start_unix_millis: i64) -> Result<Evidence, KafkaError> {
    let mut evidence = Evidence::default();
    for (subject, _) in Subject::SHARES {
        read(kafka, subject.topic(), &BTreeMap::new(), |record| {
            let place = Place { subject, partition: record.partition(), offset: record.offset() };
            if subject == Subject::Invoices {
                evidence.published.extend(published(place, record));
            } else {
                evidence.found.push(Found { place, event: event(record) });
            }
        })?;
        for &(_, group) in subject.handlers() {
            let read = committed(kafka, group, subject.topic())?;
            let below = |partition| read.get(&partition).copied().unwrap_or(0);
            let all = (0..PARTITIONS.cast_signed()).map(|partition| ((group, subject, partition), below(partition)));
            evidence.read_below.extend(all);
        }
    }
    for group in GROUPS {
        read(kafka, &format!("{group}.dlq"), &BTreeMap::new(), |record| {
            evidence.letters.push(Letter {
                group: group.to_owned(),
                origin: origin(record),
                event: event(record),
                reason: header(record, "idem-reason").unwrap_or_default(),
                at_millis: record.timestamp().to_millis().unwrap_or_default() - start_unix_millis,
            });
        })?;
        for delay in RETRIES {
            let topic = format!("{group}.retry.{delay}");
            let from = committed(kafka, group, &topic)?;
            read(kafka, &topic, &from, |record| {
                if let Some(event) = event(record) {
                    let whereabouts = format!("{topic}/{}@{}", record.partition(), record.offset());
                    evidence.waiting.push(Waiting { group: group.to_owned(), event, whereabouts });
                }
            })?;
        }
    }
    Ok(evidence)
}

/// The event in a record's value, if it is one: JSON with an id that is a UUID v7.
fn event(record: &BorrowedMessage<'_>) -> Option<Uuid> {
    event_in(record.payload()?)
}

fn event_in(value: &[u8]) -> Option<Uuid> {
    #[derive(Deserialize)]
    struct Id {
        event_id: Uuid,
    }
    let id: Id = serde_json::from_slice(value).ok()?;
    Some(id.event_id).filter(|id| id.get_version_num() == 7)
}

fn published(place: Place, record: &BorrowedMessage<'_>) -> Option<Published> {
    let Invoice { event_id: event, cause, key, number, epoch } = serde_json::from_slice(record.payload()?).ok()?;
    Some(Published { place, event, cause, key, number, epoch })
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
    let rows = sqlx::query_as::<_, (i64, String, Uuid, Option<Uuid>, Option<Uuid>, i32, i64)>(
        "SELECT position, handler, event_id, before, cause, member, (extract(epoch FROM at) * 1000)::bigint FROM effect",
    );
    rows.fetch(session)
        .map_ok(|(position, handler, event, before, cause, member, at)| Effect {
            position,
            handler,
            event,
            before,
            cause,
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
        let event = event_in(&value?)?;
        Some(Waiting { group, event, whereabouts: format!("parked, from {topic}/{partition}@{offset}") })
    });
    Ok(waiting.collect())
}

/// Whose invoices are in the outbox.
async fn unsent(session: &mut PgConnection) -> Result<HashSet<Uuid>, sqlx::Error> {
    let rows: Vec<Vec<u8>> =
        sqlx::query_scalar("SELECT payload FROM idem_outbox UNION ALL SELECT payload FROM idem_outbox_parked")
            .fetch_all(session)
            .await?;
    let cause = |row: Vec<u8>| Some(serde_json::from_slice::<Invoice>(&row).ok()?.cause);
    Ok(rows.into_iter().filter_map(cause).collect())
}
