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
    /// What lies between the two was read, and is no record. A log may end so (transactions, compaction).
    pub has_no_more: bool,
}

impl Look {
    /// What the last look knew of the same place.
    pub(crate) fn after(self, last: Option<&Self>) -> Self {
        let same = last.filter(|last| (last.position, last.end) == (self.position, self.end));
        Self { has_no_more: same.is_some_and(|last| last.has_no_more), ..self }
    }

    /// Whether it is time to read what lies before the end: no position passes offsets that are no records.
    /// That nothing came in for a while does not say that there is nothing: fetches may fail, or be held up.
    pub(crate) fn is_worth_reading(&self, last: Option<&Self>) -> bool {
        self.position < self.end && !self.has_no_more && self.is_idle && last == Some(self)
    }

    /// The position at which everything has been read.
    pub(crate) fn end_of_records(&self) -> i64 {
        if self.has_no_more { self.position.min(self.end) } else { self.end }
    }
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

    const LOOK: Look = Look { position: 7, end: 9, is_idle: true, has_no_more: false };

    #[test]
    fn a_partition_that_stays_idle_before_its_end_is_worth_reading_once() {
        let cases = [
            (LOOK, None, false),
            (LOOK, Some(LOOK), true),
            (Look { is_idle: false, ..LOOK }, Some(Look { is_idle: false, ..LOOK }), false),
            (LOOK, Some(Look { end: 8, ..LOOK }), false),
            (LOOK, Some(Look { position: 6, ..LOOK }), false),
            (Look { position: 9, ..LOOK }, Some(Look { position: 9, ..LOOK }), false),
            (Look { has_no_more: true, ..LOOK }, Some(Look { has_no_more: true, ..LOOK }), false),
        ];
        for (now, last, expected) in cases {
            assert_eq!(now.is_worth_reading(last.as_ref()), expected, "{now:?} {last:?}");
        }
    }

    #[test]
    fn only_where_no_record_was_found_before_the_end_has_everything_been_read_without_reaching_it() {
        let empty = Look { has_no_more: true, ..LOOK };
        for (last, expected) in [
            (None, 9),
            (Some(LOOK), 9),
            (Some(empty), 7),
            (Some(Look { is_idle: false, ..empty }), 7),
            (Some(Look { end: 8, ..empty }), 9),
            (Some(Look { position: 6, ..empty }), 9),
        ] {
            assert_eq!(LOOK.after(last.as_ref()).end_of_records(), expected, "{last:?}");
        }
    }

    #[test]
    fn a_retry_comes_from_main_topics_and_shorter_delays() {
        let at = |seconds: Option<u64>, event: Option<i64>| {
            let position = Position { topic: Topic::Main, event, caught_up: None };
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
