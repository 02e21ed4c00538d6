//! Whether a partition has been read to its end, and what that says of the events still to come.

use std::time::Duration;

use super::retention::{Position, Topic, floor_of};

/// What was seen of a partition at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// The recorded position.
    pub position: i64,
    /// One past the last offset of the log.
    pub end: i64,
    /// Nothing was in progress, and nothing stopped the lane.
    pub is_idle: bool,
}

/// The position at which everything has been read. A log may end with offsets that are no records
/// (transactions, compaction), which no position passes: a partition that was idle twice, at the same
/// position before the same end, had nothing more to read.
pub(crate) fn end_of_records(now: &Look, last: Option<&Look>) -> i64 {
    if last == Some(now) && now.is_idle { now.position.min(now.end) } else { now.end }
}

/// A recorded position of a group, with the delay of its topic if it is a retry topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub position: Position,
    pub delay: Option<Duration>,
}

/// No event that is published to the retry topic of this delay from now on is older. It comes from a
/// main topic or from a shorter delay, never from a longer one. `None`: not known yet.
pub(crate) fn floor_of_retries(delay: Duration, positions: &[Recorded]) -> Option<i64> {
    let leads_to_it = |recorded: &&Recorded| recorded.delay.is_none_or(|shorter| shorter < delay);
    let floors = positions.iter().filter(leads_to_it).filter_map(|recorded| floor_of(&recorded.position));
    floors.min().filter(|floor| *floor != i64::MIN)
}

impl Recorded {
    /// A position on a topic of this delay; `None`: no retry topic.
    pub(crate) fn new(delay: Option<Duration>, position: Position) -> Self {
        let topic = if delay.is_some() { Topic::Retry } else { position.topic };
        Self { position: Position { topic, ..position }, delay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_partition_that_stays_idle_before_its_end_is_read_without_reaching_it() {
        let look = Look { position: 7, end: 9, is_idle: true };
        let cases = [
            (look, None, 9),
            (look, Some(look), 7),
            (Look { is_idle: false, ..look }, Some(Look { is_idle: false, ..look }), 9),
            (look, Some(Look { end: 8, ..look }), 9),
            (look, Some(Look { position: 6, ..look }), 9),
            (Look { position: 9, ..look }, None, 9),
        ];
        for (now, last, expected) in cases {
            assert_eq!(end_of_records(&now, last.as_ref()), expected, "{now:?} {last:?}");
        }
    }

    #[test]
    fn a_retry_comes_from_main_topics_and_shorter_delays() {
        let at = |seconds: Option<u64>, event: Option<i64>| {
            let position = Position { topic: Topic::Main, event, caught_up: None, updated: 1_000 };
            Recorded::new(seconds.map(Duration::from_secs), position)
        };
        let floor = |seconds, positions: &[Recorded]| floor_of_retries(Duration::from_secs(seconds), positions);
        let positions = [at(None, Some(500)), at(None, Some(600)), at(Some(1), Some(300)), at(Some(60), Some(100))];
        assert_eq!(floor(1, &positions), Some(500));
        assert_eq!(floor(10, &positions), Some(300));
        assert_eq!(floor(600, &positions), Some(100));
        assert_eq!(floor(1, &[at(None, None), at(None, Some(5))]), None, "nothing is known of one of them");
        assert_eq!(floor(1, &[]), None);
    }
}
