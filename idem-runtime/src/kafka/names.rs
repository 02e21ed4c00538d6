//! The names of a group's own topics, and the headers on them.

use std::time::Duration;

use crate::decide::retry::delay_name;

/// The retry topic of a group for one delay tier.
pub(crate) fn retry_topic(group: &str, delay: Duration) -> String {
    format!("{group}.retry.{}", delay_name(delay))
}

/// What the names of all retry topics of a group begin with.
pub(crate) fn retry_prefix(group: &str) -> String {
    format!("{group}.retry.")
}

/// The topic that dead letters are replayed through.
pub(crate) fn replay_topic(group: &str) -> String {
    format!("{group}.replay")
}

/// The dead letter queue of a group.
pub(crate) fn dlq_topic(group: &str) -> String {
    format!("{group}.dlq")
}

/// What the names of the library's own headers begin with.
pub(crate) const HEADER_PREFIX: &str = "idem-";
pub(crate) const ORIGIN_TOPIC: &str = "idem-origin-topic";
pub(crate) const ORIGIN_PARTITION: &str = "idem-origin-partition";
pub(crate) const ORIGIN_OFFSET: &str = "idem-origin-offset";
pub(crate) const ORIGIN_TIMESTAMP: &str = "idem-origin-timestamp";
pub(crate) const ATTEMPT: &str = "idem-attempt";
pub(crate) const DUE_AT: &str = "idem-due-at";
pub(crate) const FIRST_FAILED_AT: &str = "idem-first-failed-at";
pub(crate) const HANDLER: &str = "idem-handler";
pub(crate) const ERROR: &str = "idem-error";
pub(crate) const REASON: &str = "idem-reason";
pub(crate) const TRACEPARENT: &str = "traceparent";
