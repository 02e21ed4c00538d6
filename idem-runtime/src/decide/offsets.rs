//! The watermark of a partition: the offset below which every delivered event is done.

use std::collections::VecDeque;

/// Offsets in progress of one partition, and the contiguous prefix that is finished.
///
/// Offsets may have holes (compaction, transaction markers), so the prefix is over the offsets
/// that were delivered, and the position is the last finished one + 1, as Kafka wants it.
#[derive(Debug)]
pub(crate) struct Watermark {
    next_offset: i64,
    event_millis: Option<i64>,
    in_progress: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    offset: i64,
    event_millis: Option<i64>,
    finished: bool,
}

impl Watermark {
    /// A partition that starts at this offset.
    pub(crate) fn starting_at(next_offset: i64) -> Self {
        Self { next_offset, event_millis: None, in_progress: VecDeque::new() }
    }

    /// Notes a delivered event. `false`: it was delivered before, or lies below the watermark, and
    /// must not be handled again by this lane.
    #[must_use]
    pub(crate) fn deliver(&mut self, offset: i64, event_millis: Option<i64>) -> bool {
        if offset < self.delivered_below() {
            return false;
        }
        self.in_progress.push_back(Entry { offset, event_millis, finished: false });
        true
    }

    /// Notes that an event is done, and moves the watermark over the finished prefix.
    pub(crate) fn finish(&mut self, offset: i64) {
        if let Ok(at) = self.in_progress.binary_search_by_key(&offset, |entry| entry.offset) {
            self.in_progress[at].finished = true;
        }
        while let Some(entry) = self.in_progress.pop_front_if(|entry| entry.finished) {
            self.next_offset = entry.offset + 1;
            self.event_millis = entry.event_millis.or(self.event_millis);
        }
    }

    /// The offset to read next after a restart.
    pub(crate) fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// One past the last delivered event.
    pub(crate) fn delivered_below(&self) -> i64 {
        self.in_progress.back().map_or(self.next_offset, |last| last.offset + 1)
    }

    /// One past the last finished event; what is not finished below it keeps the watermark back.
    pub(crate) fn finished_below(&self) -> i64 {
        self.in_progress.iter().rev().find(|entry| entry.finished).map_or(self.next_offset, |last| last.offset + 1)
    }

    /// Whether every delivered event is finished.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_progress.is_empty()
    }

    /// The time of the last finished event, milliseconds since the Unix epoch.
    pub(crate) fn event_millis(&self) -> Option<i64> {
        self.event_millis
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_contiguous_finished_prefix_counts() {
        let mut watermark = Watermark::starting_at(0);
        for offset in 0..6 {
            assert!(watermark.deliver(offset, Some(offset * 10)));
        }
        for offset in [0, 1, 3, 4] {
            watermark.finish(offset);
        }
        assert_eq!(watermark.next_offset(), 2, "2 still runs");
        assert_eq!(watermark.event_millis(), Some(10));
        assert_eq!(watermark.finished_below(), 5, "2 keeps 3 and 4 back");
        watermark.finish(2);
        assert_eq!(watermark.next_offset(), 5, "5 failed and is not finished");
        assert_eq!(watermark.finished_below(), 5);
    }

    #[test]
    fn holes_in_the_offsets_do_not_stop_it() {
        let mut watermark = Watermark::starting_at(10);
        for offset in [12, 17, 40] {
            assert!(watermark.deliver(offset, None));
        }
        watermark.finish(17);
        assert_eq!(watermark.next_offset(), 10);
        watermark.finish(12);
        assert_eq!(watermark.next_offset(), 18);
    }

    #[test]
    fn a_second_delivery_is_recognised() {
        let mut watermark = Watermark::starting_at(5);
        assert!(!watermark.deliver(4, None));
        assert!(watermark.deliver(5, None));
        assert!(!watermark.deliver(5, None));
        watermark.finish(5);
        assert!(!watermark.deliver(5, None));
        assert!(watermark.deliver(6, None));
    }

    proptest! {
        #[test]
        fn it_equals_the_first_unfinished_delivery(
            offsets in prop::collection::btree_set(0_i64..200, 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        ) {
            let offsets: Vec<i64> = offsets.into_iter().collect();
            let mut watermark = Watermark::starting_at(0);
            for &offset in &offsets {
                prop_assert!(watermark.deliver(offset, None));
            }
            let mut finished = BTreeSet::new();
            for index in order {
                let offset = *index.get(&offsets);
                watermark.finish(offset);
                finished.insert(offset);
                let prefix = offsets.iter().take_while(|offset| finished.contains(offset)).last();
                prop_assert_eq!(watermark.next_offset(), prefix.map_or(0, |last| last + 1));
            }
        }
    }
}
