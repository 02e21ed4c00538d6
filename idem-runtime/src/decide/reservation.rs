//! How far a lane may begin events.
//!
//! A money call that was begun must be known of when the database has forgotten it. Kafka is told how far a member has
//! begun, in the metadata of its commits, and a member that is killed tells nothing more. So it tells before: a lane
//! begins only what was reserved for it, some offsets ahead of the last one that it has begun.

/// Offsets that are reserved ahead: enough that a lane seldom waits for Kafka, and few enough that not much is taken for
/// begun that was not. What was taken for begun, and is old, waits for a person after a restart of the database; a hundred
/// of those in a row engage the brake.
pub(crate) fn ahead(concurrency: usize) -> i64 {
    const LEAST: usize = 8;
    i64::try_from((2 * concurrency).max(LEAST)).unwrap_or(i64::MAX)
}

/// Whether it is time to reserve more: half of it is used. `claimed_below`: one past the last event that the lane has begun,
/// or would begin if it might.
pub(crate) fn is_short(reserved_below: i64, claimed_below: i64, ahead: i64) -> bool {
    reserved_below.saturating_sub(claimed_below) < (ahead / 2).max(1)
}

/// What Kafka is told: below which offset events may have been begun, by this member, which claims those below
/// `claimed_below` and reserves so many more, or by those before it.
pub(crate) fn told_below(claimed_below: i64, reserve: i64, begun_before: i64) -> i64 {
    claimed_below.saturating_add(reserve).max(begun_before)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::decide::position::{self, Committed, CommittedBy, Facts, Read, ServerRun};

    const LINEAGE: Uuid = Uuid::from_u128(1);
    const AHEAD: i64 = 2;

    /// What can happen, in any order.
    #[derive(Debug, Clone, Copy)]
    enum Happens {
        /// The lane takes an event off its queue, and begins it if it may; an event in so many stays unfinished.
        Take { finishes: bool },
        /// The member tells Kafka, which refuses or not.
        Commit { refused: bool },
        /// The position is written to the database.
        Write,
        /// A copy of the database is taken.
        Backup,
        /// The database is the copy again, with another run of the server.
        Restore,
        /// The member is killed; another one takes over.
        Kill,
        /// The member ends by itself; another one takes over.
        Leave,
    }

    fn happens() -> impl Strategy<Value = Happens> {
        prop_oneof![
            8 => (0..4_u8).prop_map(|rest| Happens::Take { finishes: rest > 0 }),
            3 => (0..4_u8).prop_map(|rest| Happens::Commit { refused: rest == 0 }),
            2 => Just(Happens::Write),
            1 => Just(Happens::Backup),
            1 => Just(Happens::Restore),
            2 => Just(Happens::Kill),
            1 => Just(Happens::Leave),
        ]
    }

    #[derive(Debug, Clone, Default)]
    struct Database {
        next_offset: i64,
        /// Events whose calls are recorded.
        calls: BTreeSet<i64>,
        reread_below: i64,
    }

    /// A member's work on the partition.
    struct Member {
        run: i64,
        position: i64,
        delivered_below: i64,
        unfinished: BTreeSet<i64>,
        reserved_below: i64,
        /// How far others had begun.
        begun_before: i64,
    }

    struct World {
        database: Database,
        copy: Database,
        run: i64,
        committed: Option<(i64, String)>,
        member: Member,
        /// Events whose calls have left.
        asked: BTreeSet<i64>,
        log_end: i64,
    }

    impl World {
        fn new() -> Self {
            let member = Member {
                run: 1,
                position: 0,
                delivered_below: 0,
                unfinished: BTreeSet::new(),
                reserved_below: 0,
                begun_before: 0,
            };
            let database = Database::default();
            Self {
                copy: database.clone(),
                database,
                run: 1,
                committed: None,
                member,
                asked: BTreeSet::new(),
                log_end: 3,
            }
        }

        fn take_over(&mut self) {
            let committed = self.committed.as_ref().map(|(offset, metadata)| Committed::parse(*offset, metadata));
            let facts = Facts {
                committed,
                recorded: Some(self.database.next_offset),
                lineage: LINEAGE,
                lineage_accepted: false,
                log_start: 0,
                log_end: self.log_end,
                start_at_end: false,
            };
            let position::Start::At(offset, _) = position::start(&facts) else { panic!("one database") };
            let run = ServerRun::of(&self.run.to_string());
            if let Some(below) = position::reread_below(&facts, offset, None, run) {
                self.database.reread_below = self.database.reread_below.max(below);
            }
            self.database.next_offset = offset;
            self.member = Member {
                run: self.run,
                position: offset,
                delivered_below: offset,
                unfinished: BTreeSet::new(),
                reserved_below: i64::MIN,
                begun_before: position::begun_below(committed, None, self.log_end),
            };
        }

        fn tell(&mut self, reserve: i64) {
            let below = told_below(self.member.delivered_below, reserve, self.member.begun_before);
            let read = Read { below, server: ServerRun::of(&self.run.to_string()) };
            self.committed = Some((self.database.next_offset, CommittedBy::metadata(LINEAGE, Some(read))));
        }

        /// Begins an event: its call is recorded, and leaves. One that left before, and of which the database knows
        /// nothing, must be marked.
        fn begin(&mut self, offset: i64) {
            let is_known = self.database.calls.contains(&offset) || offset < self.database.reread_below;
            assert!(is_known || !self.asked.contains(&offset), "{offset} leaves again, and nobody knows");
            self.database.calls.insert(offset);
            self.asked.insert(offset);
        }

        fn happen(&mut self, what: Happens) {
            // A member notices that the database is another one before it does anything with it.
            if self.member.run != self.run && !matches!(what, Happens::Kill | Happens::Restore) {
                self.take_over();
            }
            match what {
                Happens::Take { finishes } => {
                    let offset = self.member.delivered_below;
                    // Another event comes now and then.
                    self.log_end = self.log_end.max(offset);
                    if offset >= self.member.reserved_below || offset >= self.log_end {
                        self.log_end += 1;
                        return;
                    }
                    self.member.delivered_below += 1;
                    self.begin(offset);
                    if !finishes {
                        self.member.unfinished.insert(offset);
                    }
                    let first = self.member.unfinished.first().copied();
                    self.member.position = first.unwrap_or(self.member.delivered_below);
                }
                Happens::Write => self.database.next_offset = self.member.position,
                Happens::Commit { refused: true } => {}
                Happens::Commit { refused: false } => {
                    self.tell(AHEAD);
                    self.member.reserved_below = self.member.delivered_below + AHEAD;
                }
                Happens::Leave => {
                    self.tell(0);
                    self.take_over();
                }
                Happens::Backup => self.copy = self.database.clone(),
                Happens::Restore => {
                    self.database = self.copy.clone();
                    self.run += 1;
                }
                Happens::Kill => self.take_over(),
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_begun_is_known_after_any_kill_and_restore(all in prop::collection::vec(happens(), 1..200)) {
            let mut world = World::new();
            all.into_iter().for_each(|what| world.happen(what));
        }
    }

    #[test]
    fn what_others_had_begun_goes_on_being_told() {
        use Happens::{Commit, Kill, Restore, Take};
        let (told, done, waits) = (Commit { refused: false }, Take { finishes: true }, Take { finishes: false });
        let mut world = World::new();
        // The first event waits, others go on above it; the next member begins less of them than the first one.
        for what in [told, waits, done, told, done, done, told, done, Kill, told, done, Restore, told] {
            world.happen(what);
        }
        // All that the first one had begun is read again.
        for _ in 0..4 {
            world.happen(done);
            world.happen(told);
        }
    }

    #[test]
    fn more_is_reserved_when_half_is_used() {
        assert_eq!((ahead(1), ahead(16)), (8, 32));
        assert!(is_short(i64::MIN, 0, 32) && is_short(15, 0, 32) && is_short(0, 40, 32));
        assert!(!is_short(16, 0, 32) && !is_short(i64::MAX, i64::MAX - 16, 32) && !is_short(i64::MAX, 0, 32));
    }
}
