//! When the lanes of a group take turns, because their transactions wait for each other in a circle.

/// How long lanes take turns after a first deadlock.
const FIRST_MILLIS: u64 = 10_000;
/// The longest time, when deadlocks come back again and again.
const LONGEST_MILLIS: u64 = 300_000;

/// Whether turns are taken. Times are milliseconds on any steady clock.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    until: u64,
    pause: u64,
}

/// What a deadlock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Deadlock {
    /// From now on the lanes take turns.
    TakeTurns,
    /// They did already: the other side is another process.
    DespiteTurns,
}

impl Turns {
    /// Whether a lane waits for its turn now.
    pub(crate) fn are_taken(&self, now: u64) -> bool {
        now < self.until
    }

    /// Notes a deadlock.
    pub(crate) fn deadlock(&mut self, now: u64) -> Deadlock {
        if self.are_taken(now) {
            self.until = now + self.pause;
            return Deadlock::DespiteTurns;
        }
        // Soon after the last time: the lanes still want the same rows.
        let again = self.pause > 0 && now - self.until < self.pause;
        self.pause = if again { (self.pause * 2).min(LONGEST_MILLIS) } else { FIRST_MILLIS };
        self.until = now + self.pause;
        Deadlock::TakeTurns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_for_a_while_and_longer_when_deadlocks_come_back() {
        let mut turns = Turns::default();
        assert!(!turns.are_taken(0));
        assert_eq!(turns.deadlock(5), Deadlock::TakeTurns);
        assert!(turns.are_taken(10_004) && !turns.are_taken(10_005));
        assert_eq!(turns.deadlock(9_005), Deadlock::DespiteTurns);
        assert!(turns.are_taken(19_004) && !turns.are_taken(19_005), "begun anew");
        assert_eq!(turns.deadlock(20_000), Deadlock::TakeTurns);
        assert!(turns.are_taken(39_999) && !turns.are_taken(40_000), "twice as long");
        for now in [40_000, 80_000, 160_000, 320_000, 620_000] {
            assert_eq!(turns.deadlock(now), Deadlock::TakeTurns);
        }
        assert!(turns.are_taken(919_999) && !turns.are_taken(920_000), "bounded");
        assert_eq!(turns.deadlock(2_000_000), Deadlock::TakeTurns);
        assert!(!turns.are_taken(2_010_000), "forgotten after a quiet time");
    }
}
