//! Whether a partition stands still although there is work.

/// A partition at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// The offset to read next after a restart.
    pub position: i64,
    /// One past the last offset of the log.
    pub end: i64,
    /// Whether records are in memory or in progress.
    pub has_work: bool,
}

/// A position that has not moved, since then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standstill {
    first: Look,
    /// When it was first seen, milliseconds of a clock that only goes forward.
    pub since_millis: u64,
    /// Whether it counts: its lane has work, or the log has grown meanwhile. A log may end with records that
    /// no consumer sees (transactions), so being before the end alone proves nothing.
    pub is_behind: bool,
}

/// What follows from a look after an earlier one.
pub(crate) fn after(before: Option<Standstill>, look: Look, now_millis: u64) -> Standstill {
    match before {
        // One that had read to the end did not stand still until then.
        Some(before) if before.first.position == look.position && before.first.end > look.position => {
            Standstill { is_behind: look.has_work || look.end > before.first.end, ..before }
        }
        _ => Standstill { first: look, since_millis: now_millis, is_behind: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(seen: &[(i64, i64, bool)]) -> (u64, bool) {
        let mut standstill = None;
        for (at, (position, end, has_work)) in seen.iter().enumerate() {
            let look = Look { position: *position, end: *end, has_work: *has_work };
            standstill = Some(after(standstill, look, at as u64));
        }
        standstill.map(|standstill| (standstill.since_millis, standstill.is_behind)).unwrap()
    }

    #[test]
    fn a_standstill_counts_from_its_first_look_and_only_with_work() {
        let cases = [
            (&[(5, 9, false)][..], (0, false), "seen once"),
            (&[(5, 9, true), (5, 9, true), (5, 9, true)], (0, true), "it has work"),
            (&[(5, 9, true), (6, 9, true)], (1, false), "it moves"),
            (&[(9, 9, false), (9, 9, false)], (1, false), "read to the end"),
            (&[(8, 9, false), (8, 9, false)], (0, false), "the end is no record"),
            (&[(8, 9, false), (8, 12, false)], (0, true), "nothing is fetched though the log grows"),
            (&[(9, 9, false), (9, 10, true)], (1, false), "an event has just come"),
        ];
        for (seen, expected, why) in cases {
            assert_eq!(looks(seen), expected, "{why}");
        }
    }
}
