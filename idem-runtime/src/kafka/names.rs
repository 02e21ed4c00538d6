//! The names of a group's own topics, and the headers on them.

use std::time::Duration;

use crate::decide::retry::{delay_name, parse_delay};

/// The retry topic of a group for one delay tier.
pub(crate) fn retry_topic(group: &str, delay: Duration) -> String {
    format!("{group}.retry.{}", delay_name(delay))
}

/// The delay of a group's retry topic; `None`: it is none. Another group's topics may begin like this
/// group's.
pub(crate) fn retry_delay(group: &str, topic: &str) -> Option<Duration> {
    parse_delay(topic.strip_prefix(group)?.strip_prefix(".retry.")?)
}

/// The topic that dead letters are replayed through.
pub(crate) fn replay_topic(group: &str) -> String {
    format!("{group}.replay")
}

/// The dead letter queue of a group.
pub(crate) fn dlq_topic(group: &str) -> String {
    format!("{group}.dlq")
}

/// The library's own headers. A record that moves on loses what it carries of these, and nothing else.
pub(crate) const OWN_HEADERS: [&str; 13] = [
    ORIGIN_TOPIC,
    ORIGIN_PARTITION,
    ORIGIN_OFFSET,
    ORIGIN_TIMESTAMP,
    ATTEMPT,
    DUE_AT,
    FIRST_FAILED_AT,
    HANDLER,
    ERROR,
    REASON,
    REPLAYED_AT,
    REPLAY_COUNT,
    ALLOW_EXPIRED,
];
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
pub(crate) const REPLAYED_AT: &str = "idem-replayed-at";
pub(crate) const REPLAY_COUNT: &str = "idem-replay-count";
pub(crate) const ALLOW_EXPIRED: &str = "idem-allow-expired";
pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const TRACESTATE: &str = "tracestate";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_delay_makes_a_retry_topic() {
        let delay = |topic: &str| retry_delay("billing", topic);
        assert_eq!(delay("billing.retry.10s"), Some(Duration::from_secs(10)));
        assert_eq!(delay(&retry_topic("billing", Duration::from_millis(1_500))), Some(Duration::from_millis(1_500)));
        for other in
            ["billing.retry.dlq", "billing.retry.", "billing.retry.10s.dlq", "billing2.retry.10s", "billing.dlq"]
        {
            assert_eq!(delay(other), None, "{other}");
        }
    }
}
