//! A consumer group: its handlers, its partitions, and its position in Kafka and in the database.

mod brakes;
mod caught_up;
mod commits;
mod coordinator;
mod lag;
mod progress;
mod takeover;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};
use uuid::Uuid;

pub(crate) use self::coordinator::Coordinator;
use crate::circuit::Circuit;
use crate::config::Config;
use crate::decide::reservation;
use crate::event::{DecodeError, TypeField};
use crate::handler::{Handler, States};
use crate::health::Health;
use crate::kafka::names;
use crate::kafka::producer::Producer;
use crate::kafka::queue::Memory;
use crate::money::Provider;
use crate::pg::maintenance::FirstPositions;
use crate::pg::session::Pools;
use crate::run::RunError;
use crate::spec::Transaction;
use crate::telemetry::GroupStats;
use crate::turns::Turns;

/// What everything that works for one group shares.
pub(crate) struct GroupContext {
    pub name: Arc<str>,
    pub topics: HashMap<&'static str, Vec<Handler>>,
    /// Events of different keys in progress at once, per partition.
    pub concurrency: usize,
    /// Whether later events of a key wait behind one that failed.
    pub ordered: bool,
    pub config: Arc<Config>,
    pub states: Arc<States>,
    pub pools: Pools,
    /// What the lanes' queues of the process share.
    pub memory: Arc<Memory>,
    /// What the group's consumer may prefetch, bytes.
    pub prefetch: usize,
    /// The turns that shared transactions take after a deadlock.
    pub turns: Turns,
    /// One per connection of the handlers' pool.
    pub permits: Arc<Semaphore>,
    pub producer: Producer,
    /// Where money calls go, if the group's handlers make some.
    pub provider: Option<Arc<Provider>>,
    pub lineage: Uuid,
    /// By the name of the handler.
    pub circuits: HashMap<&'static str, Circuit>,
    pub health: Health,
    pub stats: Arc<GroupStats>,
    /// Asks the maintenance for partitions of the dedup table.
    pub missing_partition: Arc<Notify>,
    /// Tells the maintenance that the group's positions are known.
    pub first_positions: FirstPositions,
    /// Asks the coordinator to compare the database with what it believes.
    pub doubt: Notify,
    /// Asks the coordinator to reserve more events for its lanes.
    pub short: Notify,
    pub failures: mpsc::UnboundedSender<RunError>,
    /// Longest time a handler of the group may take.
    pub longest_handler: Duration,
}

/// The handler of a record, if there is one.
pub(crate) enum Match<'a> {
    Handler(&'a Handler),
    None,
    Unparsable(DecodeError),
}

impl GroupContext {
    /// Ends the run with an error.
    pub(crate) fn fail(&self, error: RunError) {
        let _ = self.failures.send(error);
    }

    /// So many events a lane looks at: enough to find some of other keys behind those of a slow one.
    pub(crate) fn look_ahead(&self) -> usize {
        if self.concurrency == 1 { 1 } else { self.concurrency * 8 }
    }

    /// So many offsets are reserved ahead of those that a lane of the topic has begun. Zero: they need not be, as no
    /// handler that gets its events makes money calls. The group's own topics hold events of all of them.
    pub(crate) fn reserve(&self, topic: &str) -> i64 {
        let pays = |handlers: &Vec<Handler>| handlers.iter().any(|one| one.spec.money.is_some());
        let pays = self.topics.get(topic).map_or_else(|| self.topics.values().any(pays), pays);
        if pays { reservation::ahead(self.concurrency) } else { 0 }
    }

    /// Whether only this group reads and writes the topic.
    pub(crate) fn is_own_topic(&self, topic: &str) -> bool {
        !self.topics.contains_key(topic)
            && (names::retry_delay(&self.name, topic).is_some() || topic == names::replay_topic(&self.name))
    }

    /// Whether events of the topic may share a transaction. The group's own topics hold events of all
    /// its handlers.
    pub(crate) fn shares(&self, topic: &str) -> bool {
        let shares = |handlers: &Vec<Handler>| handlers.iter().any(|one| one.spec.transaction == Transaction::Shared);
        self.topics.get(topic).map_or_else(|| self.topics.values().any(shares), shares)
    }

    /// The handler for a value of a topic, by its `event_type` where handlers share the topic.
    pub(crate) fn handler_for(&self, topic: &str, payload: Option<&[u8]>) -> Match<'_> {
        let handlers = self.topics.get(topic).map(Vec::as_slice).unwrap_or_default();
        match (handlers, payload) {
            ([], _) => Match::None,
            ([only], _) if only.spec.event_type.is_none() => Match::Handler(only),
            // Any of them says that there is no value.
            ([first, ..], None) => Match::Handler(first),
            (handlers, Some(payload)) => {
                for field in [TypeField::EventType, TypeField::CloudEvents] {
                    let mut typed = handlers.iter().filter(|handler| handler.decode.type_field == field).peekable();
                    if typed.peek().is_none() {
                        continue;
                    }
                    match crate::event::event_type(payload, field) {
                        Ok(Some(event_type)) => {
                            if let Some(found) = typed.find(|handler| handler.spec.event_type == Some(&*event_type)) {
                                return Match::Handler(found);
                            }
                        }
                        Ok(None) => {}
                        Err(error) => return Match::Unparsable(error),
                    }
                }
                Match::None
            }
        }
    }

    /// The circuit of a handler; every handler of the group has one.
    pub(crate) fn circuit(&self, handler: &str) -> Option<&Circuit> {
        self.circuits.get(handler)
    }

    /// The delay tiers of a handler.
    pub(crate) fn tiers(&self, handler: &str) -> &[Duration] {
        self.topics
            .values()
            .flatten()
            .find(|candidate| candidate.spec.name == handler)
            .and_then(|handler| handler.spec.retry)
            .unwrap_or(&self.config.retry)
    }

    /// Every delay that some handler of the group uses.
    pub(crate) fn all_tiers(&self) -> Vec<Duration> {
        let mut tiers: Vec<Duration> = self
            .topics
            .values()
            .flatten()
            .flat_map(|handler| handler.spec.retry.unwrap_or(&self.config.retry))
            .copied()
            .collect();
        tiers.sort_unstable();
        tiers.dedup();
        tiers
    }
}

/// The topics a group reads: its handlers', its replay topic, and every retry topic that exists, so
/// that a tier which left the configuration is drained.
pub(crate) fn subscription(group: &GroupContext, existing: &HashSet<String>) -> Vec<String> {
    let mut topics: Vec<String> = group.topics.keys().map(|topic| (*topic).to_owned()).collect();
    topics.push(names::replay_topic(&group.name));
    topics.extend(group.all_tiers().into_iter().map(|delay| names::retry_topic(&group.name, delay)));
    topics.extend(existing.iter().filter(|topic| names::retry_delay(&group.name, topic).is_some()).cloned());
    topics.sort_unstable();
    topics.dedup();
    topics
}
