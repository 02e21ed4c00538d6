//! How many events share the next transaction of a lane.

use std::time::Duration;

/// How long the handlers of a shared transaction should take: long enough to make its commit cheap, short
/// enough that its locks and its rollback are no harm. The rest costs as much for one event as for many: if it
/// counted, a server whose COMMIT is slow would be given small transactions, which are slower still.
const TARGET: Duration = Duration::from_millis(100);
/// A lane begins small: nobody knows yet how long a handler takes.
const FIRST: usize = 8;
/// The most events of one transaction, where the handler names no number.
pub(crate) const MOST: usize = 2_000;
/// The most that a handler may name.
const MOST_NAMED: usize = 10_000;
/// How many transactions a lane grows slowly after a conflict.
const CAREFUL: u32 = 32;

/// The size of a lane's transactions, which follows what the last ones took.
#[derive(Debug)]
pub(crate) struct BatchSize {
    size: usize,
    careful: u32,
}

impl Default for BatchSize {
    fn default() -> Self {
        Self { size: FIRST, careful: 0 }
    }
}

impl BatchSize {
    /// The most events of the next transaction, of a handler that takes at most so many.
    pub(crate) fn limit(&self, most: usize) -> usize {
        self.size.min(most)
    }

    /// Notes a transaction of so many events that was committed, and how long their handlers took. `most`: what
    /// its handler takes.
    pub(crate) fn committed(&mut self, events: usize, most: usize, took: Duration) {
        self.careful = self.careful.saturating_sub(1);
        let fits = TARGET.as_micros().saturating_mul(events as u128) / took.as_micros().max(1);
        let fits = usize::try_from(fits).unwrap_or(MOST_NAMED);
        if took > TARGET {
            self.size = self.size.min(fits.max(self.size / 2)).max(1);
        } else if events >= self.limit(most) {
            // Only a full one says that more would fit.
            let step = if self.careful > 0 { self.size / 8 + 1 } else { self.size };
            self.size = fits.clamp(self.size, self.size + step).min(MOST_NAMED);
        }
    }

    /// Notes a transaction that was rolled back because one of its events failed: the more often that
    /// happens, the less is to be repeated.
    pub(crate) fn failed(&mut self) {
        self.size = (self.size / 2).max(1);
    }

    /// Notes a conflict with another transaction although the lanes took turns.
    pub(crate) fn conflicted(&mut self) {
        self.failed();
        self.careful = CAREFUL;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A lane with a full queue, whose events cost this much.
    fn settled(each: Duration, most: usize) -> usize {
        let mut size = BatchSize::default();
        for _ in 0..50 {
            let events = size.limit(most);
            size.committed(events, most, each * u32::try_from(events).unwrap());
        }
        size.limit(most)
    }

    #[test]
    fn a_full_queue_settles_at_the_target() {
        assert_eq!(settled(Duration::from_micros(200), MOST), 500);
        assert_eq!(settled(Duration::from_millis(10), MOST), 10);
        assert_eq!(settled(Duration::from_secs(3), MOST), 1);
        assert_eq!(settled(Duration::from_micros(1), MOST), MOST);
        assert_eq!(settled(Duration::from_micros(1), 10_000), 10_000);
        assert_eq!(settled(Duration::from_micros(200), 64), 64);
    }

    #[test]
    fn a_short_queue_changes_nothing() {
        let mut size = BatchSize { size: 300, careful: 0 };
        size.committed(1, MOST, Duration::from_millis(3));
        assert_eq!(size.limit(MOST), 300);
    }

    #[test]
    fn failures_halve_it_down_to_one_event_and_it_recovers() {
        let mut size = BatchSize { size: 500, careful: 0 };
        size.failed();
        assert_eq!(size.limit(MOST), 250);
        size.committed(250, MOST, Duration::from_millis(50));
        assert_eq!(size.limit(MOST), 500);
        for _ in 0..20 {
            size.failed();
        }
        assert_eq!(size.limit(MOST), 1);
    }

    #[test]
    fn after_a_conflict_it_grows_slowly() {
        let mut size = BatchSize { size: 500, careful: 0 };
        size.conflicted();
        size.committed(250, MOST, Duration::from_millis(10));
        assert_eq!(size.limit(MOST), 282);
    }

    proptest! {
        #[test]
        fn it_is_never_nothing_and_never_more_than_the_handler_takes(
            steps in prop::collection::vec((0_u8..3, 0_u64..10_000_000, 0_usize..10_000), 0..60),
            most in 2_usize..=10_000,
        ) {
            let mut size = BatchSize::default();
            for (what, micros, events) in steps {
                let limit = size.limit(most);
                match what {
                    0 => size.failed(),
                    1 => size.conflicted(),
                    _ => size.committed(events.min(limit), most, Duration::from_micros(micros)),
                }
                prop_assert!((1..=most).contains(&size.limit(most)));
            }
        }
    }
}
