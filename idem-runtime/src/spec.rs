//! What the attribute says of a handler, checked by the macro.

use std::time::Duration;

/// What the attribute says of a handler.
#[derive(Debug, Clone, Copy)]
pub struct HandlerSpec {
    /// `module_path!()` and the function's name.
    pub name: &'static str,
    /// The file of the handler.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
    /// The Kafka topic.
    pub topic: &'static str,
    /// The Kafka consumer group.
    pub group: &'static str,
    /// The `event_type` it takes, when several handlers share a topic and a group.
    pub event_type: Option<&'static str>,
    /// Delay tiers; `None`: from the configuration.
    pub retry: Option<&'static [Duration]>,
    /// Longest time the handler may take.
    pub timeout: Duration,
    /// Events of different keys in progress at once, per partition.
    pub concurrency: u16,
    /// What `money = true` and its companions say.
    pub money: Option<Money>,
    /// Whether events share a transaction.
    pub transaction: Transaction,
    /// The most events of one call.
    pub batch: Option<u16>,
    /// What waits behind a failed event.
    pub order: Order,
    /// What happens to an event whose id may have been forgotten.
    pub expired: Expired,
    /// An older version than the one applied is skipped.
    pub stale: bool,
    /// What it does, for people.
    pub summary: Option<&'static str>,
}

/// How a handler's money calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Money {
    /// Names the calls; part of their keys.
    pub operation: Option<&'static str>,
    /// What HTTP 409 means.
    pub conflict: Conflict,
}

/// What a provider's HTTP 409 means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// Decided by what was recorded of earlier attempts.
    Auto,
    /// Done already.
    Processed,
    /// Still in flight.
    InFlight,
}

/// How many events are in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction {
    /// One.
    Own,
    /// Consecutive ones of a partition.
    Shared,
}

/// What waits while an event waits for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    Partition,
    /// Later events of its Kafka key.
    Key,
}

/// What happens to an event whose id may have been forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// Dead-lettered.
    Dlq,
    /// Handled all the same.
    Process,
    /// Skipped.
    Skip,
}
