//! Sending dead letters through the group once more.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use serde::Serialize;
use uuid::Uuid;

use super::dedup::{self, DedupState, Ids};
use super::dlq::{Filter, Letter, Place, Queue};
use super::{OnProgress, Ops, OpsError, Timestamp};
use crate::clock;
use crate::decide::outcome::Reason;
use crate::decide::replay::{self as decide, Facts};
use crate::kafka::names;
use crate::kafka::producer::{Producer, PublishError};
use crate::kafka::record::{Record, Replay};

pub use crate::decide::replay::Action;

/// What to replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Which dead letters.
    pub filter: Filter,
    /// At most so many; the others stay for another time.
    pub limit: Option<u64>,
    /// Only tell what would be done.
    pub dry_run: bool,
    /// Send the event of the filter's `event_id` also if the group may have processed and forgotten it.
    /// Without an `event_id` it means nothing: it is decided event by event.
    pub allow_expired: bool,
}

/// What was done, or in a dry run would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// The group.
    pub group: String,
    /// The dead letter queue.
    pub from: String,
    /// The replay topic.
    pub to: String,
    /// Whether nothing was done.
    pub dry_run: bool,
    /// Dead letters that passed the filter.
    pub matched: u64,
    /// Of them: to be replayed.
    pub to_replay: u64,
    /// Of those: acknowledged by the replay topic. Nothing in a dry run.
    pub replayed: u64,
    /// Of them: already processed by the group, skipped.
    pub done: u64,
    /// Of them: a later letter of the same event stands in the queue, skipped.
    pub superseded: u64,
    /// Of them: refused, because the group may have processed and forgotten them.
    pub expired: u64,
    /// Of them: can't be replayed, because their value did not fit into the queue, they do not fit
    /// into the replay topic, or the library did not write them.
    pub impossible: u64,
    /// Whether the limit ended it before the end of the queue.
    pub limit_reached: bool,
    /// The dedup states of those that passed the filter, before anything was sent.
    pub states: States,
    /// Each of them, in the order of the queue.
    pub events: Vec<ReplayedEvent>,
}

/// How many events are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct States {
    /// See [`DedupState::Done`].
    pub done: u64,
    /// See [`DedupState::InWindow`].
    pub in_window: u64,
    /// See [`DedupState::Expired`].
    pub expired: u64,
    /// See [`DedupState::NoId`].
    pub no_id: u64,
}

/// One dead letter of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayedEvent {
    /// The partition of the dead letter queue.
    pub partition: i32,
    /// The offset in it.
    pub offset: i64,
    /// When it was dead-lettered.
    pub at: Option<Timestamp>,
    /// Why.
    pub reason: Option<String>,
    /// Where the event was first read.
    pub origin: Option<Place>,
    /// The event's id, if one was found.
    pub event_id: Option<Uuid>,
    /// What the dedup table knew of it.
    pub state: DedupState,
    /// How often it has been replayed, this time included.
    pub replay_count: u32,
    /// What was done with it.
    pub action: Action,
}

/// Sends dead letters to `<group>.replay`, up to the end of the queue seen at the beginning, where the
/// group handles them as it does new events: attempts begin anew and are bounded, what fails for good
/// is dead-lettered again.
///
/// It can be repeated harmlessly: an event that the group has processed is skipped, and of several
/// letters of one event only the last is sent, so that the queue does not double with each replay of
/// an event that fails. An event processed in the meantime is recognised as a duplicate.
///
/// An event that the group may have processed and forgotten is refused, since its effect might happen
/// twice. The letter of one that was never processed, because it failed from the first, may be sent at any
/// age: who knows that allows it, event by event.
///
/// # Errors
/// When a topic is missing, a server is away, or the replay topic stops taking records.
///
/// # Cancel safety
/// Dropping it stops; records on their way may still arrive.
pub async fn replay(
    ops: &Ops,
    group: &str,
    options: &Options,
    on_progress: OnProgress<'_>,
) -> Result<Replayed, OpsError> {
    let queue = Queue::open(ops, group, options.filter.at).await?;
    let to = names::replay_topic(group);
    if !queue.cluster.keys().any(|partition| *partition.topic == *to) {
        let hint = "start a program with this group and IDEM_CREATE_TOPICS=true, or create it";
        return Err(OpsError::NoTopic { topic: to, hint });
    }
    let last = match options.filter.at {
        // Somebody chose this very record.
        Some(_) => HashMap::new(),
        None => last_letters(&queue).await?,
    };
    let producer = match options.dry_run {
        true => None,
        false => Some(Producer::new(&ops.config).map_err(OpsError::kafka("make a producer"))?),
    };
    let mut work = Work {
        ops,
        producer,
        ids: Ids::of_group(group),
        last,
        options,
        report: Replayed {
            group: group.to_owned(),
            from: queue.topic.to_string(),
            to,
            dry_run: options.dry_run,
            matched: 0,
            to_replay: 0,
            replayed: 0,
            done: 0,
            superseded: 0,
            expired: 0,
            impossible: 0,
            limit_reached: false,
            states: States::default(),
            events: Vec::new(),
        },
    };
    let mut reading = queue.read();
    let mut batch = Batch::default();
    while let Some(record) = reading.next(on_progress).await? {
        batch.bytes += record.payload.as_ref().map_or(0, Vec::len);
        work.add(record, &mut batch.letters);
        if batch.is_full() {
            work.send(std::mem::take(&mut batch)).await?;
            if work.report.limit_reached {
                break;
            }
        }
    }
    work.send(batch).await?;
    Ok(work.report)
}

/// When which letter of an event was written: a later one counts more replays, or is younger.
type Rank = (u32, Option<Timestamp>, i32, i64);

fn rank(letter: &Letter) -> Rank {
    (letter.replay_count, letter.at, letter.partition, letter.offset)
}

/// The last letter of each event. An event that is replayed and fails has one more each time, and so
/// has one whose member crashed between the acknowledgement and the offset.
async fn last_letters(queue: &Queue) -> Result<HashMap<Place, Rank>, OpsError> {
    let mut last: HashMap<Place, Rank> = HashMap::new();
    let mut reading = queue.read();
    while let Some(record) = reading.next(&mut super::silent).await? {
        let letter = Letter::of(&record, &record.raw_headers());
        let rank = rank(&letter);
        if let Some(origin) = letter.origin {
            last.entry(origin).and_modify(|known| *known = rank.max(*known)).or_insert(rank);
        }
    }
    Ok(last)
}

/// Letters that are looked up in the dedup table with one statement, and sent together.
#[derive(Default)]
struct Batch {
    letters: Vec<(Letter, Option<Uuid>, Record)>,
    bytes: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.letters.len() >= 200 || self.bytes >= 8 << 20
    }
}

struct Work<'a> {
    ops: &'a Ops,
    /// None in a dry run.
    producer: Option<Producer>,
    ids: Ids,
    last: HashMap<Place, Rank>,
    options: &'a Options,
    report: Replayed,
}

impl Work<'_> {
    /// Keeps a record that passes the filter.
    fn add(&self, record: Record, letters: &mut Vec<(Letter, Option<Uuid>, Record)>) {
        let filter = &self.options.filter;
        let letter = Letter::of(&record, &record.raw_headers());
        let id = dedup::id_of(&self.ids, &record, letter.origin.as_ref().map(|origin| origin.topic.as_str()));
        if filter.takes(&letter) && (filter.event_id.is_none() || filter.event_id == id) {
            letters.push((letter, id, record));
        }
    }

    /// Decides on each letter, and sends those that go.
    async fn send(&mut self, batch: Batch) -> Result<(), OpsError> {
        let ids: HashSet<Uuid> = batch.letters.iter().filter_map(|(_, id, _)| *id).collect();
        let memory = dedup::memory(self.ops, &self.report.group, ids.into_iter().collect()).await?;
        let now = clock::unix_millis();
        let mut sent = Vec::new();
        for (letter, event_id, record) in batch.letters {
            let state = memory.state(event_id, letter.origin.as_ref().and_then(|origin| origin.at));
            let last = letter.origin.as_ref().and_then(|origin| self.last.get(origin));
            let action = decide::action(&Facts {
                is_ours: letter.origin.is_some(),
                is_last: last.is_none_or(|last| *last == rank(&letter)),
                lost_its_value: record.payload.is_none() && letter.reason.as_deref() != Some(Reason::Null.as_str()),
                state,
                may_be_expired: self.options.allow_expired && self.options.filter.event_id.is_some(),
            });
            if action == Action::Replay && self.options.limit.is_some_and(|limit| self.report.to_replay >= limit) {
                self.report.limit_reached = true;
                break;
            }
            let replay = Replay {
                count: letter.replay_count.saturating_add(1),
                at_millis: now,
                may_be_expired: state == DedupState::Expired,
            };
            if action == Action::Replay {
                let at = self.report.events.len();
                sent.extend(self.producer.as_ref().map(|producer| {
                    let headers = record.headers_for_replay(replay);
                    let sent =
                        producer.enqueue(&self.report.to, record.key.as_deref(), record.payload.as_deref(), headers);
                    async move { (at, sent.await) }
                }));
            }
            self.count(state, action);
            self.report.events.push(ReplayedEvent {
                partition: letter.partition,
                offset: letter.offset,
                at: letter.at,
                reason: letter.reason,
                origin: letter.origin,
                event_id,
                state,
                replay_count: if action == Action::Replay { replay.count } else { letter.replay_count },
                action,
            });
        }
        let mut refused: Option<PublishError> = None;
        for (at, answer) in join_all(sent).await {
            match answer {
                Ok(()) => self.report.replayed += 1,
                // It would stop every replay at the same place.
                Err(PublishError::TooLarge) => {
                    self.report.events[at].action = Action::TooLarge;
                    self.report.to_replay -= 1;
                    self.report.impossible += 1;
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            None => Ok(()),
            Some(error) => Err(OpsError::ReplayStopped {
                replayed: self.report.replayed,
                topic: self.report.to.clone(),
                source: Box::new(error),
            }),
        }
    }

    fn count(&mut self, state: DedupState, action: Action) {
        let report = &mut self.report;
        report.matched += 1;
        match state {
            DedupState::Done => report.states.done += 1,
            DedupState::InWindow => report.states.in_window += 1,
            DedupState::Expired => report.states.expired += 1,
            DedupState::NoId => report.states.no_id += 1,
        }
        match action {
            Action::Replay => report.to_replay += 1,
            Action::Done => report.done += 1,
            Action::Superseded => report.superseded += 1,
            Action::Expired => report.expired += 1,
            Action::WithoutValue | Action::TooLarge | Action::Foreign => report.impossible += 1,
        }
    }
}
