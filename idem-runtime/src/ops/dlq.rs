//! The dead letters of a group: [`list`] and [`show`]. [`replay`](super::replay) sends them on.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use rdkafka::error::KafkaError;
use serde::Serialize;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::dedup::{self, DedupState, Ids};
use super::{Bytes, OnProgress, Ops, OpsError, Progress, Timestamp};
use crate::handler::RawHeader;
use crate::kafka::consumer::Partition;
use crate::kafka::names;
use crate::kafka::observer::{Observer, Read};
use crate::kafka::record::{Origin, Record};

/// Which dead letters. The default is all of them; what is said must hold together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those with this reason, such as `permanent`.
    pub reason: Option<String>,
    /// Those of this handler, as `idem-handler` names it.
    pub handler: Option<String>,
    /// Those of this event.
    pub event_id: Option<Uuid>,
    /// The one at this partition and offset of the dead letter queue.
    pub at: Option<(i32, i64)>,
}

impl Filter {
    /// Those with this reason.
    pub fn reason(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..Self::default() }
    }

    /// Whether a letter passes, its event's id aside.
    pub(super) fn takes(&self, letter: &Letter) -> bool {
        let same = |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        same(&self.reason, &letter.reason)
            && same(&self.handler, &letter.handler)
            && self.at.is_none_or(|at| at == (letter.partition, letter.offset))
    }
}

/// The dead letters of a group, by reason and handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Letters {
    /// The group.
    pub group: String,
    /// Its dead letter queue.
    pub topic: String,
    /// Records that passed the filter.
    pub letters: u64,
    /// By reason and handler, the most frequent first.
    pub groups: Vec<LetterGroup>,
}

/// Dead letters with one reason, of one handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterGroup {
    /// Why; none in a record that the library did not write.
    pub reason: Option<String>,
    /// Which handler failed; none where no handler took the event.
    pub handler: Option<String>,
    /// Records.
    pub letters: u64,
    /// Different events among them, by where they were first read: an event that was replayed and
    /// failed again has several letters.
    pub events: u64,
    /// When the first of them was dead-lettered.
    pub first_seen: Option<Timestamp>,
    /// When the last of them was.
    pub last_seen: Option<Timestamp>,
    /// Where the last of them is, for [`show`].
    pub last_partition: i32,
    /// See `last_partition`.
    pub last_offset: i64,
}

/// Where an event was first read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The record's own timestamp. It tells events apart whose topic was made anew.
    pub at: Option<Timestamp>,
}

/// One dead letter, as its headers tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Letter {
    /// The partition of the dead letter queue.
    pub partition: i32,
    /// The offset in it.
    pub offset: i64,
    /// When it was dead-lettered.
    pub at: Option<Timestamp>,
    /// Why.
    pub reason: Option<String>,
    /// Which handler failed.
    pub handler: Option<String>,
    /// What failed: an error type, an SQLSTATE, a literal of the program.
    pub error: Option<String>,
    /// How often it failed since it was first read, or last replayed.
    pub attempts: Option<u32>,
    /// When it first failed.
    pub first_failed_at: Option<Timestamp>,
    /// How often it was replayed.
    pub replay_count: u32,
    /// When it was last replayed.
    pub replayed_at: Option<Timestamp>,
    /// Where it was first read. None: the library did not write this record.
    pub origin: Option<Place>,
}

impl Letter {
    pub(crate) fn of(record: &Record, headers: &[RawHeader]) -> Self {
        let origin = Origin::of_own(headers);
        let replay = origin.as_ref().and_then(|origin| origin.replay);
        Self {
            partition: record.partition,
            offset: record.offset,
            at: record.timestamp_millis.and_then(Timestamp::of_millis),
            reason: text(headers, names::REASON),
            handler: text(headers, names::HANDLER),
            error: text(headers, names::ERROR),
            attempts: origin.as_ref().map(|origin| origin.attempt),
            first_failed_at: origin.as_ref().and_then(|origin| origin.first_failed_at_millis).map(Timestamp),
            replay_count: replay.map_or(0, |replay| replay.count),
            replayed_at: replay.map(|replay| Timestamp(replay.at_millis)),
            origin: origin.map(|origin| Place {
                topic: origin.topic.to_string(),
                partition: origin.partition,
                offset: origin.offset,
                at: origin.timestamp_millis.and_then(Timestamp::of_millis),
            }),
        }
    }
}

/// A header's value as text; none where it is empty or missing.
fn text(headers: &[RawHeader], name: &str) -> Option<String> {
    let (_, value) = headers.iter().find(|(found, _)| found == name.as_bytes())?;
    value.as_deref().filter(|value| !value.is_empty()).map(|value| Bytes::new(value).to_string())
}

/// One dead letter in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterInFull {
    /// What its headers tell.
    #[serde(flatten)]
    pub letter: Letter,
    /// Its event's id, if one was found.
    pub event_id: Option<Uuid>,
    /// What the dedup table knows of the event.
    pub state: DedupState,
    /// All headers, in order.
    pub headers: Vec<Header>,
    /// The key's size; none without a key.
    pub key_bytes: Option<usize>,
    /// The value's size; none without a value.
    pub value_bytes: Option<usize>,
    /// The key, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Bytes>,
    /// The value, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Bytes>,
    /// Whether its topic is one of `IDEM_RESTRICTED_TOPICS`: then key, value and the producer's headers are shown
    /// to nobody.
    pub restricted: bool,
}

/// A header of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Header {
    /// Its name.
    pub name: Bytes,
    /// Its value; none is not the same as an empty one.
    pub value: Option<Bytes>,
}

/// Counts a group's dead letters, up to the end of the queue seen at the beginning.
///
/// An `event_id` in the filter makes it read payloads; it returns nothing of them.
///
/// # Errors
/// When the queue does not exist, or the broker is away.
pub async fn list(ops: &Ops, group: &str, filter: &Filter, on_progress: OnProgress<'_>) -> Result<Letters, OpsError> {
    let queue = Queue::open(ops, group, filter.at).await?;
    let ids = Ids::of_group(group);
    let mut tallies: BTreeMap<(Option<String>, Option<String>), Tally> = BTreeMap::new();
    let mut reading = queue.read();
    while let Some(record) = reading.next(on_progress).await? {
        let letter = Letter::of(&record, &record.raw_headers());
        let origin_topic = letter.origin.as_ref().map(|origin| origin.topic.as_str());
        let wanted_event = filter.event_id.is_none() || filter.event_id == dedup::id_of(&ids, &record, origin_topic);
        if filter.takes(&letter) && wanted_event {
            tallies.entry((letter.reason.clone(), letter.handler.clone())).or_default().add(letter);
        }
    }
    let mut groups: Vec<LetterGroup> =
        tallies.into_iter().map(|((reason, handler), tally)| tally.group(reason, handler)).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.letters));
    let letters = groups.iter().map(|group| group.letters).sum();
    Ok(Letters { group: group.to_owned(), topic: queue.topic.to_string(), letters, groups })
}

/// What is counted of letters with one reason, of one handler.
#[derive(Default)]
struct Tally {
    letters: u64,
    origins: HashSet<Place>,
    without_origin: u64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    place_of_last: (i32, i64),
}

impl Tally {
    fn add(&mut self, letter: Letter) {
        self.letters += 1;
        match letter.origin {
            Some(origin) => drop(self.origins.insert(origin)),
            None => self.without_origin += 1,
        }
        if letter.at >= self.last {
            (self.last, self.place_of_last) = (letter.at, (letter.partition, letter.offset));
        }
        self.first = [self.first, letter.at].into_iter().flatten().min();
    }

    fn group(self, reason: Option<String>, handler: Option<String>) -> LetterGroup {
        LetterGroup {
            reason,
            handler,
            letters: self.letters,
            events: self.origins.len() as u64 + self.without_origin,
            first_seen: self.first,
            last_seen: self.last,
            last_partition: self.place_of_last.0,
            last_offset: self.place_of_last.1,
        }
    }
}

/// One dead letter with its headers; key and value only with `with_payload`.
///
/// # Errors
/// When there is no such record, or a server is away.
pub async fn show(
    ops: &Ops,
    group: &str,
    (partition, offset): (i32, i64),
    with_payload: bool,
) -> Result<LetterInFull, OpsError> {
    let queue = Queue::open(ops, group, Some((partition, offset))).await?;
    let record = queue.read().next(&mut super::silent).await?;
    let record = record.ok_or_else(|| OpsError::NoRecord { topic: queue.topic.to_string(), partition, offset })?;
    let headers = record.raw_headers();
    let letter = Letter::of(&record, &headers);
    let origin_topic = letter.origin.as_ref().map(|origin| origin.topic.as_str());
    let event_id = dedup::id_of(&Ids::of_group(group), &record, origin_topic);
    let memory = dedup::memory(ops, group, event_id.into_iter().collect()).await?;
    let state = memory.state(event_id, letter.origin.as_ref().and_then(|origin| origin.at));
    let restricted = is_restricted(&ops.config.restricted, origin_topic);
    let shown = |bytes: &Option<Vec<u8>>| bytes.as_deref().filter(|_| with_payload && !restricted).map(Bytes::new);
    Ok(LetterInFull {
        letter,
        event_id,
        state,
        headers: headers
            .iter()
            .filter(|(name, _)| !restricted || names::OWN_HEADERS.iter().any(|own| own.as_bytes() == name))
            .map(|(name, value)| Header { name: Bytes::new(name), value: value.as_deref().map(Bytes::new) })
            .collect(),
        key_bytes: record.key.as_ref().map(Vec::len),
        value_bytes: record.payload.as_ref().map(Vec::len),
        key: shown(&record.key),
        payload: shown(&record.payload),
        restricted,
    })
}

/// Whether nothing of a record from this topic may be shown. Of one that does not say where it comes from,
/// nobody knows.
fn is_restricted(restricted: &BTreeSet<String>, origin_topic: Option<&str>) -> bool {
    origin_topic.map_or(!restricted.is_empty(), |topic| restricted.contains(topic))
}

/// How many records the dead letter queues of these groups hold, by group. It counts offsets, so it may be
/// a little too many; a queue that does not exist has none.
///
/// # Errors
/// When the broker is away.
pub async fn depths(ops: &Ops, groups: &[String]) -> Result<BTreeMap<String, u64>, OpsError> {
    let observer = ops.observer("idem-depths");
    let cluster = observer.partitions().await.map_err(OpsError::kafka("list its topics"))?;
    let queues: BTreeMap<String, &String> = groups.iter().map(|group| (names::dlq_topic(group), group)).collect();
    let led = cluster.into_iter().filter(|(partition, is_led)| *is_led && queues.contains_key(&*partition.topic));
    let bounds = observer.bounds(led.map(|(partition, _)| partition).collect()).await;
    let mut depths: BTreeMap<String, u64> = groups.iter().map(|group| (group.clone(), 0)).collect();
    for (partition, range) in bounds.map_err(OpsError::kafka("tell the ends of the dead letter queues"))? {
        if let Some(depth) = queues.get(&*partition.topic).and_then(|group| depths.get_mut(*group)) {
            *depth += u64::try_from(range.end - range.start).unwrap_or(0);
        }
    }
    Ok(depths)
}

/// A dead letter queue, up to the end seen when it was opened.
pub(super) struct Queue {
    pub(super) topic: Arc<str>,
    /// The partitions of the cluster, to look for other topics.
    pub(super) cluster: BTreeMap<Partition, bool>,
    observer: Observer,
    ranges: BTreeMap<i32, Range<i64>>,
}

impl Queue {
    /// The whole queue, or the one record at a partition and offset.
    pub(super) async fn open(ops: &Ops, group: &str, at: Option<(i32, i64)>) -> Result<Self, OpsError> {
        let topic: Arc<str> = names::dlq_topic(group).into();
        let observer = ops.observer(group);
        let cluster = observer.partitions().await.map_err(OpsError::kafka("list its topics"))?;
        let partitions: Vec<(&Partition, &bool)> = cluster.iter().filter(|(found, _)| found.topic == topic).collect();
        if partitions.is_empty() {
            let hint = "no program with this group has been started on this broker; is the group's name right?";
            return Err(OpsError::NoTopic { topic: topic.to_string(), hint });
        }
        if let Some((partition, _)) = partitions.iter().find(|(_, has_leader)| !**has_leader) {
            return Err(OpsError::NoLeader { topic: topic.to_string(), partition: partition.number });
        }
        let partitions = partitions.into_iter().map(|(partition, _)| partition.clone()).collect();
        let bounds = observer.bounds(partitions).await;
        let mut ranges: BTreeMap<i32, Range<i64>> = bounds
            .map_err(OpsError::kafka(format!("tell the end of `{topic}`")))?
            .into_iter()
            .map(|(partition, range)| (partition.number, range))
            .collect();
        if let Some((partition, offset)) = at {
            let there = ranges.get(&partition).is_some_and(|range| range.contains(&offset));
            if !there {
                return Err(OpsError::NoRecord { topic: topic.to_string(), partition, offset });
            }
            ranges = BTreeMap::from([(partition, offset..offset + 1)]);
        }
        Ok(Self { topic, cluster, observer, ranges })
    }

    /// Reads it, once more from its beginning at each call.
    pub(super) fn read(&self) -> Reading<'_> {
        let length = |range: &Range<i64>| u64::try_from(range.end - range.start).unwrap_or(0);
        Reading {
            queue: self,
            total: self.ranges.values().map(length).sum(),
            passed: BTreeMap::new(),
            records: self.observer.read(&self.topic, self.ranges.clone()),
        }
    }
}

/// A dead letter queue being read.
pub(super) struct Reading<'a> {
    queue: &'a Queue,
    total: u64,
    /// By partition: offsets that are no records, such as the ends of transactions, count too.
    passed: BTreeMap<i32, u64>,
    records: mpsc::Receiver<Read>,
}

impl Reading<'_> {
    pub(super) async fn next(&mut self, on_progress: OnProgress<'_>) -> Result<Option<Record>, OpsError> {
        let read = self.records.recv().await.unwrap_or(Err(KafkaError::Canceled));
        let Some(record) = read.map_err(OpsError::kafka(format!("give out `{}`", self.queue.topic)))? else {
            on_progress(Progress { read: self.total, total: self.total });
            return Ok(None);
        };
        let start = self.queue.ranges.get(&record.partition).map_or(0, |range| range.start);
        self.passed.insert(record.partition, u64::try_from(record.offset - start + 1).unwrap_or(0));
        on_progress(Progress { read: self.passed.values().sum(), total: self.total });
        Ok(Some(record))
    }
}
