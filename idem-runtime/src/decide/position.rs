//! Where a newly assigned partition is read from.

use uuid::Uuid;

/// What Kafka says of the group's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Committed {
    /// The committed offset.
    pub offset: i64,
    /// Whose commit it was.
    pub by: CommittedBy,
    /// How far its member had read.
    pub read: Option<Read>,
}

impl Committed {
    /// Reads a commit: its offset and its metadata.
    pub(crate) fn parse(offset: i64, metadata: &str) -> Self {
        let mut parts = metadata.strip_prefix(METADATA_PREFIX).unwrap_or_default().split(':');
        let by = match parts.next().and_then(|id| Uuid::parse_str(id).ok()) {
            Some(lineage) => CommittedBy::Lineage(lineage),
            None => CommittedBy::Other,
        };
        let mut number = || parts.next().and_then(|number| number.parse().ok());
        let read = number().zip(number()).map(|(below, server)| Read { below, server: ServerRun(server) });
        Self { offset, by, read }
    }
}

/// How far a member had read. Events of other keys run ahead of one that waits, so that is further than
/// its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Read {
    /// One past the last event that was begun.
    pub below: i64,
    /// The run of the database server that confirmed what they did.
    pub server: ServerRun,
}

/// One run of one database server, short enough for commit metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerRun(i64);

impl ServerRun {
    /// `server`: when it started, in seconds with six decimals, as the database tells it.
    pub(crate) fn of(server: &str) -> Self {
        let digits: String = server.chars().filter(char::is_ascii_digit).collect();
        Self(digits.parse().unwrap_or_default())
    }
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
    /// The metadata of our own commits: `idem1:<lineage>`, and how far the member had read, if it is one.
    pub(crate) fn metadata(lineage: Uuid, read: Option<Read>) -> String {
        match read {
            Some(Read { below, server: ServerRun(server) }) => format!("{METADATA_PREFIX}{lineage}:{below}:{server}"),
            None => format!("{METADATA_PREFIX}{lineage}"),
        }
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
        (Some(Committed { by: CommittedBy::Other, offset, .. }), recorded) if recorded != Some(offset) => {
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
    /// How far it had read.
    pub read: Read,
    /// What it told Kafka last. `None`: another member may have told something since.
    pub told: Option<Read>,
}

/// What Kafka was told of how far the partition was begun. What this member has told itself includes what it had reserved,
/// and it knows better.
fn told(committed: Option<Committed>, rewind: Option<Rewind>) -> Option<(i64, Read)> {
    let committed = committed.filter(|committed| committed.by != CommittedBy::Other)?;
    let read = committed.read?;
    let is_own = rewind.and_then(|rewind| rewind.told) == Some(read);
    (!is_own).then_some((committed.offset, read))
}

/// How far the partition was begun before, as far as anybody knows. Whoever goes on has to tell it too: the database may
/// go back again. Nothing was begun that is not in the log, whatever was reserved.
pub(crate) fn begun_below(committed: Option<Committed>, rewind: Option<Rewind>, log_end: i64) -> i64 {
    let told = told(committed, rewind).map(|(_, read)| read.below);
    told.max(rewind.map(|rewind| rewind.read.below)).unwrap_or_default().min(log_end)
}

/// Below which offset events were read before, and then the database went back over them: what they did
/// may not be in it. `None`: nothing says that it lost anything. `server`: the run that says what is recorded.
///
/// Events above the position may be lost although the position is not: where one waits, others went on.
/// A position says nothing of them, so another run of the server is enough. Where money calls are made, nothing is
/// begun that was not told of before (`reservation.rs`). An operator's commit wipes what was known: who restores a
/// database and sets offsets by hand as well gets no mark.
pub(crate) fn reread_below(facts: &Facts, offset: i64, rewind: Option<Rewind>, server: ServerRun) -> Option<i64> {
    let is_lost = |confirmed: i64| facts.recorded.is_none_or(|recorded| recorded < confirmed);
    let above = |confirmed: i64, read: Read| (is_lost(confirmed) || read.server != server).then_some(read.below);
    let committed = facts.committed.filter(|committed| committed.by != CommittedBy::Other);
    let below = committed.filter(|committed| is_lost(committed.offset)).map(|committed| committed.offset);
    let told = told(facts.committed, rewind).and_then(|(offset, read)| above(offset, read));
    let read = rewind.and_then(|rewind| above(rewind.confirmed, rewind.read));
    let below = below.max(told).max(read)?.min(facts.log_end);
    (below > offset).then_some(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Uuid = Uuid::from_u128(1);
    const THEIRS: Uuid = Uuid::from_u128(2);
    /// Two runs of the server.
    const BEFORE: i64 = 1;
    const NOW: i64 = 2;

    fn facts(committed: Option<(i64, CommittedBy)>, recorded: Option<i64>) -> Facts {
        Facts {
            committed: committed.map(|(offset, by)| Committed { offset, by, read: None }),
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
        let read = |below, server| Read { below, server: ServerRun(server) };
        let rewind = |confirmed, below| Some(Rewind { confirmed, read: read(below, NOW), told: None });
        let after_restart = |confirmed, below| Some(Rewind { confirmed, read: read(below, BEFORE), told: None });
        // What is in Kafka is its own, with what it had reserved.
        let own =
            |confirmed, below| Some(Rewind { confirmed, read: read(below, BEFORE), told: Some(read(450, BEFORE)) });
        let committed = |offset, read| Some(Committed { offset, by: CommittedBy::Lineage(OURS), read: Some(read) });
        let told = |offset, recorded, read| Facts { committed: committed(offset, read), ..facts(None, recorded) };
        let theirs = Facts { lineage_accepted: true, ..facts(Some((500, CommittedBy::Lineage(THEIRS))), Some(400)) };
        let cases = [
            (facts(ours(500), Some(400)), None, Some(500)),
            (theirs, None, Some(500)),
            (facts(ours(400), Some(400)), None, None),
            (facts(ours(400), Some(500)), None, None),
            (facts(ours(500), None), None, Some(500)),
            (facts(Some((500, CommittedBy::Other)), Some(400)), None, None),
            (facts(None, Some(400)), None, None),
            (facts(ours(400), Some(400)), rewind(400, 450), None),
            // Another run of the server: the position is the same, and what ran ahead of it may be lost.
            (facts(ours(400), Some(400)), after_restart(400, 450), Some(450)),
            (facts(ours(400), Some(400)), after_restart(400, 400), None),
            (told(400, Some(400), read(450, NOW)), None, None),
            (told(400, Some(400), read(450, BEFORE)), None, Some(450)),
            (told(400, Some(400), read(400, BEFORE)), None, None),
            (told(400, Some(300), read(450, NOW)), None, Some(450)),
            (told(400, Some(460), read(450, BEFORE)), None, None),
            (told(400, Some(400), read(450, BEFORE)), after_restart(400, 470), Some(470)),
            (told(400, Some(400), read(450, BEFORE)), own(400, 400), None),
            (told(400, Some(400), read(450, BEFORE)), own(400, 420), Some(420)),
            (told(400, Some(300), read(450, BEFORE)), own(400, 400), Some(400)),
            (told(400, Some(400), read(460, BEFORE)), own(400, 400), Some(460)),
            // What was reserved, and is in the log by now.
            (told(400, Some(400), read(1_256, BEFORE)), None, Some(1_000)),
            (facts(ours(400), Some(300)), rewind(400, 450), Some(450)),
            (facts(ours(390), Some(395)), rewind(400, 450), Some(450)),
            (facts(None, None), rewind(400, 450), Some(450)),
        ];
        for (facts, rewind, expected) in cases {
            let Start::At(offset, _) = start(&facts) else { panic!("{facts:?}") };
            assert_eq!(reread_below(&facts, offset, rewind, ServerRun(NOW)), expected, "{facts:?} {rewind:?}");
        }
    }

    #[test]
    fn metadata_is_read_back() {
        let server = ServerRun::of("1764457200.123456");
        assert_eq!(server, ServerRun(1_764_457_200_123_456));
        for read in [None, Some(Read { below: 70, server })] {
            let committed = Committed { offset: 50, by: CommittedBy::Lineage(OURS), read };
            assert_eq!(Committed::parse(50, &CommittedBy::metadata(OURS, read)), committed);
        }
        for foreign in ["", "idem1:", "idem1:x", "something else"] {
            let committed = Committed { offset: 50, by: CommittedBy::Other, read: None };
            assert_eq!(Committed::parse(50, foreign), committed, "{foreign:?}");
        }
    }
}
