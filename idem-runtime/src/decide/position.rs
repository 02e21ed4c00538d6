//! Where a newly assigned partition is read from.

use uuid::Uuid;

/// What Kafka says of the group's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Committed {
    /// The committed offset.
    pub offset: i64,
    /// Whose commit it was.
    pub by: CommittedBy,
}

/// Who committed an offset, told by the commit's metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommittedBy {
    /// This library, for the database with this lineage.
    Lineage(Uuid),
    /// Somebody else: an operator's tool, which clears the metadata, or another client.
    Other,
}

const METADATA_PREFIX: &str = "idem1:";

impl CommittedBy {
    /// Reads commit metadata.
    pub(crate) fn parse(metadata: &str) -> Self {
        match metadata.strip_prefix(METADATA_PREFIX).and_then(|id| Uuid::parse_str(id).ok()) {
            Some(lineage) => Self::Lineage(lineage),
            None => Self::Other,
        }
    }

    /// The metadata of our own commits.
    pub(crate) fn metadata(lineage: Uuid) -> String {
        format!("{METADATA_PREFIX}{lineage}")
    }
}

/// All that the decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// Kafka's committed offset.
    pub committed: Option<Committed>,
    /// The database's `next_offset`.
    pub recorded: Option<i64>,
    /// The lineage of the database in use.
    pub lineage: Uuid,
    /// An operator accepts the database in use, whatever Kafka's metadata names.
    pub lineage_accepted: bool,
    /// First offset of the log.
    pub log_start: i64,
    /// One past the last offset of the log.
    pub log_end: i64,
    /// Start at the log's end when nothing at all is known.
    pub start_at_end: bool,
}

/// Where to start, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Start {
    /// Read from this offset.
    At(i64, Why),
    /// Kafka's offset belongs to another database.
    AnotherDatabase {
        /// The lineage that Kafka's metadata names.
        theirs: Uuid,
    },
}

/// Why a partition starts where it does; logged, and shown to operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The database and Kafka agree.
    Agreed,
    /// The database decides: Kafka's commit came not as far.
    DatabaseAhead,
    /// The database is older than Kafka's offset: it was restored or failed over.
    DatabaseWentBack,
    /// Somebody set the group's offset.
    OperatorReset,
    /// Kafka forgot the group; the database did not.
    KafkaForgot,
    /// Nothing is known: by configuration.
    FirstTime,
    /// The offset is not in the log any more.
    OutOfRange,
}

/// Decides the position of one partition.
pub(crate) fn start(facts: &Facts) -> Start {
    let (offset, why) = match (facts.committed, facts.recorded) {
        (Some(Committed { by: CommittedBy::Lineage(theirs), .. }), _)
            if theirs != facts.lineage && !facts.lineage_accepted =>
        {
            return Start::AnotherDatabase { theirs };
        }
        (Some(Committed { by: CommittedBy::Other, offset }), recorded) if recorded != Some(offset) => {
            (offset, Why::OperatorReset)
        }
        (Some(committed), Some(recorded)) => match recorded.cmp(&committed.offset) {
            std::cmp::Ordering::Equal => (recorded, Why::Agreed),
            std::cmp::Ordering::Less => (recorded, Why::DatabaseWentBack),
            std::cmp::Ordering::Greater => (recorded, Why::DatabaseAhead),
        },
        // Our commit without a row: the database is older than the group's first record of it.
        (Some(Committed { by: CommittedBy::Lineage(theirs), .. }), None) if theirs == facts.lineage => {
            (facts.log_start, Why::DatabaseWentBack)
        }
        // An accepted database that knows nothing of the group: go on where Kafka is.
        (Some(committed), None) => (committed.offset, Why::OperatorReset),
        (None, Some(recorded)) => (recorded, Why::KafkaForgot),
        (None, None) => (if facts.start_at_end { facts.log_end } else { facts.log_start }, Why::FirstTime),
    };
    if (facts.log_start..=facts.log_end).contains(&offset) {
        Start::At(offset, why)
    } else {
        Start::At(facts.log_start, Why::OutOfRange)
    }
}

/// What a member that reads its position anew knew of the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rewind {
    /// What the database had confirmed.
    pub confirmed: i64,
    /// One past the last event that was begun.
    pub read_below: i64,
}

/// Below which offset events were read before, and then the database went back over them: what they did
/// may not be in it. `None`: nothing says that it lost anything.
///
/// A few events before a crash may lie above it, whose position was not committed yet. They were read
/// moments before, which is no time for a provider to forget a key.
pub(crate) fn reread_below(facts: &Facts, offset: i64, rewind: Option<Rewind>) -> Option<i64> {
    let is_lost = |confirmed: i64| facts.recorded.is_none_or(|recorded| recorded < confirmed);
    let committed = facts
        .committed
        .filter(|committed| committed.by == CommittedBy::Lineage(facts.lineage) && is_lost(committed.offset))
        .map(|committed| committed.offset);
    let read = rewind.filter(|rewind| is_lost(rewind.confirmed)).map(|rewind| rewind.read_below);
    committed.max(read).filter(|below| *below > offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Uuid = Uuid::from_u128(1);
    const THEIRS: Uuid = Uuid::from_u128(2);

    fn facts(committed: Option<(i64, CommittedBy)>, recorded: Option<i64>) -> Facts {
        Facts {
            committed: committed.map(|(offset, by)| Committed { offset, by }),
            recorded,
            lineage: OURS,
            lineage_accepted: false,
            log_start: 10,
            log_end: 1_000,
            start_at_end: false,
        }
    }

    #[test]
    fn the_database_decides_unless_an_operator_did() {
        let ours = CommittedBy::Lineage(OURS);
        let cases = [
            (facts(Some((500, ours)), Some(500)), 500, Why::Agreed),
            (facts(Some((500, ours)), Some(400)), 400, Why::DatabaseWentBack),
            (facts(Some((500, ours)), Some(520)), 520, Why::DatabaseAhead),
            (facts(Some((500, ours)), None), 10, Why::DatabaseWentBack),
            (facts(Some((700, CommittedBy::Other)), Some(400)), 700, Why::OperatorReset),
            (facts(Some((20, CommittedBy::Other)), Some(400)), 20, Why::OperatorReset),
            (facts(Some((400, CommittedBy::Other)), Some(400)), 400, Why::Agreed),
            (facts(Some((400, CommittedBy::Other)), None), 400, Why::OperatorReset),
            (facts(None, Some(400)), 400, Why::KafkaForgot),
            (facts(None, None), 10, Why::FirstTime),
            (Facts { start_at_end: true, ..facts(None, None) }, 1_000, Why::FirstTime),
            (Facts { start_at_end: true, ..facts(None, Some(40)) }, 40, Why::KafkaForgot),
        ];
        for (facts, offset, why) in cases {
            assert_eq!(start(&facts), Start::At(offset, why), "{facts:?}");
        }
    }

    #[test]
    fn an_offset_outside_the_log_starts_at_its_beginning() {
        for offset in [9, 1_001] {
            assert_eq!(start(&facts(None, Some(offset))), Start::At(10, Why::OutOfRange));
        }
        assert_eq!(start(&facts(None, Some(1_000))), Start::At(1_000, Why::KafkaForgot));
    }

    #[test]
    fn another_database_stops_unless_accepted() {
        for recorded in [None, Some(400)] {
            let stopped = facts(Some((500, CommittedBy::Lineage(THEIRS))), recorded);
            assert_eq!(start(&stopped), Start::AnotherDatabase { theirs: THEIRS });
            let Start::At(offset, _) = start(&Facts { lineage_accepted: true, ..stopped }) else { panic!("accepted") };
            assert_eq!(offset, recorded.unwrap_or(500));
        }
    }

    #[test]
    fn only_what_the_database_has_lost_is_a_range_that_is_reread() {
        let ours = |offset| Some((offset, CommittedBy::Lineage(OURS)));
        let rewind = |confirmed, read_below| Some(Rewind { confirmed, read_below });
        let cases = [
            (facts(ours(500), Some(400)), None, Some(500)),
            (facts(ours(400), Some(400)), None, None),
            (facts(ours(400), Some(500)), None, None),
            (facts(ours(500), None), None, Some(500)),
            (facts(Some((500, CommittedBy::Other)), Some(400)), None, None),
            (facts(None, Some(400)), None, None),
            // A restart of the server loses nothing that shows.
            (facts(ours(400), Some(400)), rewind(400, 450), None),
            (facts(ours(400), Some(300)), rewind(400, 450), Some(450)),
            (facts(ours(390), Some(395)), rewind(400, 450), Some(450)),
            (facts(None, None), rewind(400, 450), Some(450)),
        ];
        for (facts, rewind, expected) in cases {
            let Start::At(offset, _) = start(&facts) else { panic!("{facts:?}") };
            assert_eq!(reread_below(&facts, offset, rewind), expected, "{facts:?} {rewind:?}");
        }
    }

    #[test]
    fn metadata_is_read_back() {
        assert_eq!(CommittedBy::parse(&CommittedBy::metadata(OURS)), CommittedBy::Lineage(OURS));
        for foreign in ["", "idem1:", "idem1:x", "something else"] {
            assert_eq!(CommittedBy::parse(foreign), CommittedBy::Other, "{foreign:?}");
        }
    }
}
