//! What it means when the database's progress is not what this member last wrote.

/// The row of `consumer_progress` as read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// The epoch of the row's owner.
    pub epoch: i64,
    /// The recorded position.
    pub next_offset: i64,
}

/// What this member believes of a partition it owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Belief {
    /// The epoch raised at assignment.
    pub epoch: i64,
    /// What it last wrote and saw confirmed.
    pub written: i64,
    /// What it tried to write since; the confirmation may have been lost.
    pub attempted: Option<i64>,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// The row is as this member wrote it.
    Unchanged {
        /// The position in the row.
        written: i64,
    },
    /// Another member owns the partition: stop, and write nothing.
    Zombie,
    /// The database is older than it was, or may be: read the position anew and go back to it.
    WentBack,
}

/// Compares the row with the belief. `same_server`: the server answering is the one, in the same
/// run, that confirmed everything this member processed. A restarted or promoted server may have
/// lost commits that the row does not show, so it counts as older.
pub(crate) fn judge(belief: Belief, row: Option<Row>, same_server: bool) -> Verdict {
    match row {
        None => Verdict::WentBack,
        Some(row) if row.epoch > belief.epoch => Verdict::Zombie,
        Some(row) if row.epoch < belief.epoch || !same_server => Verdict::WentBack,
        Some(row) if row.next_offset == belief.written || Some(row.next_offset) == belief.attempted => {
            Verdict::Unchanged { written: row.next_offset }
        }
        Some(_) => Verdict::WentBack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_has_one_meaning() {
        let belief = Belief { epoch: 3, written: 100, attempted: Some(150) };
        let row = |epoch, next_offset| Some(Row { epoch, next_offset });
        let cases = [
            (row(3, 100), true, Verdict::Unchanged { written: 100 }),
            (row(3, 150), true, Verdict::Unchanged { written: 150 }),
            (row(3, 90), true, Verdict::WentBack),
            (row(3, 100), false, Verdict::WentBack),
            (row(2, 100), true, Verdict::WentBack),
            (row(4, 100), true, Verdict::Zombie),
            (row(4, 90), false, Verdict::Zombie),
            (None, true, Verdict::WentBack),
        ];
        for (row, same_server, expected) in cases {
            assert_eq!(judge(belief, row, same_server), expected, "{row:?} {same_server}");
        }
    }
}
