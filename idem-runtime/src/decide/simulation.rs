//! A group in a simulated world, driven by the decisions of the real one: members that crash or sleep
//! through a rebalance, a database that restarts, goes back or loses an answer, Kafka that forgets a commit.
//! Whatever happens, at the end no event is lost, none has two effects, and the events of a key that never
//! failed took effect in their order.
//!
//! A step is one statement, or one record; anything may happen between two steps. The dedup insert, the
//! check of the server's run and the compare-and-set are modelled as the statements do them. Events with
//! `order = "key"` have a model of their own, in `parking/model.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::batch_size::BatchSize;
use super::circuit::Verdict as Circuit;
use super::key_lanes::KeyLanes;
use super::offsets::Watermark;
use super::outcome::{Outcome, Reason};
use super::position::{self, Committed, CommittedBy, Facts, Read, Rewind, ServerRun, Start, Why};
use super::progress::{self, Belief, Row, Verdict};
use super::retry;
use super::step::{self, Step};
use crate::error::Failure;

const LINEAGE: Uuid = Uuid::from_u128(7);
const MAIN: usize = 2;
const TIERS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(20)];
/// Two partitions of the main topic, and one of each retry topic.
const PARTITIONS: usize = MAIN + TIERS.len();
const MEMBERS: usize = 3;
const CONCURRENCY: usize = 2;
const LOOK_AHEAD: usize = 4;
/// A handler that shares transactions.
const MOST: usize = 3;

/// How an attempt ends, unless something comes between.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Luck {
    Success,
    Transient,
    Permanent,
    Outage,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Fetch(usize, usize),
    Work(usize, usize, usize, Luck),
    /// `true`: the answer is lost.
    Write(usize, bool),
    Commit(usize),
    Compare(usize),
    TakeOver(usize),
    Rebalance(usize, usize),
    Crash(usize),
    Sleep(usize),
    Wake(usize),
    Restart,
    /// The last commits of the database are lost.
    GoBack(usize),
    /// Kafka forgets the group's commit.
    Forget(usize),
    Wait,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    event: usize,
    key: u8,
    attempt: u32,
    due: u64,
}

/// What the database holds.
#[derive(Debug, Clone, Default)]
struct Database {
    effects: Vec<usize>,
    rows: BTreeMap<usize, Row>,
}

#[derive(Default)]
struct World {
    logs: [Vec<Record>; PARTITIONS],
    letters: BTreeSet<usize>,
    database: Database,
    /// How it was before each of its commits.
    history: Vec<Database>,
    /// Which run of the server.
    run: i64,
    /// Whose uncommitted dedup row it is: member, and run of the server.
    locks: BTreeMap<usize, (usize, i64)>,
    committed: BTreeMap<usize, (i64, String)>,
    assigned: [usize; PARTITIONS],
    /// Events that failed at some time: their order is not kept.
    failed: BTreeSet<usize>,
    now: u64,
    shared: bool,
}

#[derive(Default)]
struct Member {
    asleep: bool,
    owned: BTreeMap<usize, Owned>,
    /// Partitions that it reads the position of anew.
    rewinds: BTreeMap<usize, Rewind>,
}

struct Owned {
    epoch: i64,
    run: i64,
    written: i64,
    attempted: Option<i64>,
    next: i64,
    watermark: Watermark,
    lanes: KeyLanes<u8, i64>,
    /// With shared transactions, instead of lanes.
    backlog: VecDeque<i64>,
    size: BatchSize,
    alone: usize,
    jobs: Vec<Job>,
}

struct Job {
    offsets: Vec<i64>,
    stage: Stage,
}

enum Stage {
    Begin,
    /// Holds uncommitted dedup rows of this run of the server.
    Open(i64),
    Publish(Step),
    Finish,
}

impl World {
    fn commit(&mut self, change: impl FnOnce(&mut Database)) {
        self.history.push(self.database.clone());
        change(&mut self.database);
    }

    fn record(&mut self, partition: usize, row: Row) {
        self.commit(|database| {
            database.rows.insert(partition, row);
        });
    }

    /// Another run of the server: sessions are gone.
    fn restart(&mut self) {
        self.run += 1;
        self.locks.clear();
    }

    fn release(&mut self, member: usize) {
        self.locks.retain(|_, (holder, _)| *holder != member);
    }

    fn take_over(&mut self, partition: usize, rewind: Option<Rewind>) -> Owned {
        let row = self.database.rows.get(&partition).copied();
        let facts = Facts {
            committed: self.committed.get(&partition).map(|(offset, metadata)| Committed::parse(*offset, metadata)),
            recorded: row.map(|row| row.next_offset),
            lineage: LINEAGE,
            lineage_accepted: false,
            log_start: 0,
            log_end: self.logs[partition].len() as i64,
            start_at_end: false,
        };
        let Start::At(offset, why) = position::start(&facts) else { panic!("one database: {facts:?}") };
        assert_ne!(why, Why::OperatorReset, "{facts:?}");
        assert_ne!(why, Why::OutOfRange, "{facts:?}");
        let _ = position::reread_below(&facts, offset, rewind, ServerRun::of(&self.run.to_string()));
        let epoch = row.map_or(1, |row| row.epoch + 1);
        self.record(partition, Row { epoch, next_offset: offset });
        Owned {
            epoch,
            run: self.run,
            written: offset,
            attempted: None,
            next: offset,
            watermark: Watermark::starting_at(offset),
            lanes: KeyLanes::new(CONCURRENCY),
            backlog: VecDeque::new(),
            size: BatchSize::default(),
            alone: 0,
            jobs: Vec::new(),
        }
    }
}

impl Owned {
    fn fetch(&mut self, log: &[Record], shared: bool) {
        let waiting = if shared { self.backlog.len() } else { self.lanes.len() };
        let Some(record) = log.get(self.next as usize).filter(|_| waiting < LOOK_AHEAD) else { return };
        assert!(self.watermark.deliver(self.next, None));
        if shared {
            self.backlog.push_back(self.next)
        } else {
            self.lanes.push(record.key, self.next)
        }
        self.next += 1;
    }

    fn start(&mut self, shared: bool) {
        if shared && self.jobs.is_empty() && !self.backlog.is_empty() {
            let most = if self.alone > 0 { 1 } else { self.size.limit(MOST) };
            self.alone = self.alone.saturating_sub(1);
            let offsets = self.backlog.drain(..most.min(self.backlog.len())).collect();
            self.jobs.push(Job { offsets, stage: Stage::Begin });
        }
        while let Some((_, offset)) = self.lanes.start(|_| true) {
            self.jobs.push(Job { offsets: vec![offset], stage: Stage::Begin });
        }
    }

    /// One step of a job.
    fn work(&mut self, world: &mut World, me: usize, partition: usize, which: impl FnOnce(usize) -> usize, luck: Luck) {
        self.start(world.shared);
        if self.jobs.is_empty() {
            return;
        }
        let at = which(self.jobs.len());
        let Job { offsets, stage } = &mut self.jobs[at];
        let records: Vec<Record> = offsets.iter().map(|offset| world.logs[partition][*offset as usize]).collect();
        *stage = match std::mem::replace(stage, Stage::Finish) {
            Stage::Begin if partition >= MAIN && !is_due(world, partition, records[0]) => Stage::Begin,
            Stage::Begin if luck == Luck::Outage || self.run != world.run => again(),
            // Waits for whoever holds the dedup row.
            Stage::Begin if records.iter().any(|record| world.locks.contains_key(&record.event)) => Stage::Begin,
            Stage::Begin => {
                let events = records.iter().map(|record| (record.event, (me, world.run)));
                world.locks.extend(events.filter(|(event, _)| !world.database.effects.contains(event)));
                Stage::Open(world.run)
            }
            // The connection is gone, and the transaction with it.
            Stage::Open(run) if run != world.run => again(),
            Stage::Open(_) => {
                world.locks.retain(|event, _| records.iter().all(|record| record.event != *event));
                let mut fresh: Vec<usize> = Vec::new();
                for Record { event, .. } in &records {
                    if !world.database.effects.contains(event) && !fresh.contains(event) {
                        fresh.push(*event);
                    }
                }
                match (luck, &*fresh) {
                    (Luck::Outage, _) => again(),
                    (_, []) => after(&Outcome::Duplicate, records[0].attempt),
                    (Luck::Success, _) => {
                        world.commit(|database| database.effects.extend(&fresh));
                        after(&Outcome::Done, records[0].attempt)
                    }
                    // One of several failed: each is settled alone.
                    _ if records.len() > 1 => {
                        self.size.failed();
                        self.alone += offsets.len();
                        offsets.drain(..).rev().for_each(|offset| self.backlog.push_front(offset));
                        self.jobs.remove(at);
                        return;
                    }
                    (luck, _) => {
                        world.failed.insert(records[0].event);
                        let failure = Failure::new("as planned");
                        let outcome = if luck == Luck::Transient {
                            Outcome::Transient { failure, panicked: false }
                        } else {
                            Outcome::permanent(Reason::Permanent, failure)
                        };
                        after(&outcome, records[0].attempt)
                    }
                }
            }
            Stage::Publish(Step::Retry { delay }) => {
                let tier = TIERS.iter().position(|tier| *tier == delay).expect("one of the tiers");
                let due = retry::due_at_millis(world.now, delay, 0.5);
                world.logs[MAIN + tier].push(Record { attempt: records[0].attempt + 1, due, ..records[0] });
                Stage::Finish
            }
            Stage::Publish(step) => {
                let spent = records[0].attempt as usize == TIERS.len();
                assert!(spent || step == Step::DeadLetter { reason: Reason::Permanent }, "given up early");
                world.letters.insert(records[0].event);
                Stage::Finish
            }
            Stage::Finish => Stage::Finish,
        };
        if !matches!(stage, Stage::Finish) {
            return;
        }
        let offsets = self.jobs.remove(at).offsets;
        for (offset, record) in offsets.into_iter().zip(records) {
            self.watermark.finish(offset);
            if !world.shared {
                self.lanes.finish(record.key);
            }
        }
    }

    /// The compare-and-set of progress.
    fn write(&mut self, world: &mut World, partition: usize, answer_is_lost: bool) {
        let next_offset = self.watermark.next_offset();
        if next_offset == self.written || self.attempted.is_some() {
            return;
        }
        self.attempted = Some(next_offset);
        let row = Row { epoch: self.epoch, next_offset: self.written };
        if world.database.rows.get(&partition) != Some(&row) || world.run != self.run {
            return;
        }
        world.record(partition, Row { next_offset, ..row });
        if !answer_is_lost {
            (self.written, self.attempted) = (next_offset, None);
        }
    }

    fn read(&self) -> Read {
        Read { below: self.watermark.delivered_below(), server: ServerRun::of(&self.run.to_string()) }
    }
}

impl Member {
    fn take_over(&mut self, world: &mut World, me: usize) {
        for partition in 0..PARTITIONS {
            if world.assigned[partition] == me && !self.owned.contains_key(&partition) {
                let rewind = self.rewinds.remove(&partition);
                self.owned.insert(partition, world.take_over(partition, rewind));
            }
        }
    }

    /// Compares the rows with what it believes.
    fn compare(&mut self, world: &mut World, me: usize) {
        for partition in 0..PARTITIONS {
            let Some(owned) = self.owned.get_mut(&partition) else { continue };
            let Owned { epoch, written, attempted, .. } = *owned;
            let row = world.database.rows.get(&partition).copied();
            match progress::judge(Belief { epoch, written, attempted }, row, owned.run == world.run) {
                Verdict::Unchanged { written } => (owned.written, owned.attempted) = (written, None),
                Verdict::Zombie => self.let_go(world, me, partition),
                Verdict::WentBack => {
                    self.rewinds.insert(partition, Rewind { confirmed: written, read: owned.read(), told: None });
                    self.let_go(world, me, partition);
                }
            }
        }
    }

    /// What runs on the partition is rolled back.
    fn let_go(&mut self, world: &mut World, me: usize, partition: usize) {
        let Some(owned) = self.owned.remove(&partition) else { return };
        for job in owned.jobs.iter().filter(|job| matches!(job.stage, Stage::Open(_))) {
            for offset in &job.offsets {
                let event = world.logs[partition][*offset as usize].event;
                if world.locks.get(&event).is_some_and(|(holder, _)| *holder == me) {
                    world.locks.remove(&event);
                }
            }
        }
    }

    fn commit(&self, world: &mut World) {
        for (partition, owned) in self.owned.iter().filter(|(_, owned)| owned.attempted.is_none()) {
            let metadata = CommittedBy::metadata(LINEAGE, Some(owned.read()));
            world.committed.insert(*partition, (owned.written, metadata));
        }
    }
}

fn is_due(world: &World, partition: usize, record: Record) -> bool {
    // A wait is bounded by the tier, whatever the header says; the simulation's clocks agree.
    record.due.saturating_sub(retry::longest_wait(TIERS[partition - MAIN]).as_millis() as u64) <= world.now
        && record.due <= world.now
}

fn again() -> Stage {
    after(&Outcome::Infrastructure(Failure::new("away")), 0)
}

fn after(outcome: &Outcome, attempt: u32) -> Stage {
    match step::after(outcome, attempt, &TIERS, false, Circuit::Counts) {
        Step::Advance => Stage::Finish,
        Step::WaitInPlace => Stage::Begin,
        step @ (Step::Retry { .. } | Step::DeadLetter { .. }) => Stage::Publish(step),
        Step::StopRun => panic!("no handler ends its transaction here"),
    }
}

impl Action {
    fn apply(self, world: &mut World, members: &mut [Member; MEMBERS]) {
        match self {
            Self::Fetch(me, partition) => {
                if let Some(owned) = awake(members, me).and_then(|member| member.owned.get_mut(&partition)) {
                    owned.fetch(&world.logs[partition], world.shared);
                }
            }
            Self::Work(me, partition, which, luck) => {
                if let Some(owned) = awake(members, me).and_then(|member| member.owned.get_mut(&partition)) {
                    owned.work(world, me, partition, |jobs| which % jobs, luck);
                }
            }
            Self::Write(me, lost) => {
                for (partition, owned) in awake(members, me).into_iter().flat_map(|member| &mut member.owned) {
                    owned.write(world, *partition, lost);
                }
            }
            Self::Commit(me) => awake(members, me).into_iter().for_each(|member| member.commit(world)),
            Self::Compare(me) => awake(members, me).into_iter().for_each(|member| member.compare(world, me)),
            Self::TakeOver(me) => awake(members, me).into_iter().for_each(|member| member.take_over(world, me)),
            Self::Rebalance(partition, to) => {
                let from = world.assigned[partition];
                world.assigned[partition] = to;
                // Who sleeps does not hear of it.
                if let Some(member) = awake(members, from).filter(|_| from != to) {
                    if let Some(owned) = member.owned.get_mut(&partition) {
                        owned.write(world, partition, false);
                    }
                    member.commit(world);
                    member.let_go(world, from, partition);
                    member.rewinds.remove(&partition);
                }
            }
            Self::Crash(me) => {
                members[me] = Member::default();
                world.release(me);
            }
            Self::Sleep(me) => members[me].asleep = true,
            Self::Wake(me) => members[me].asleep = false,
            Self::Restart => world.restart(),
            Self::GoBack(to) => {
                let to = to % (world.history.len() + 1);
                if to < world.history.len() {
                    world.database = world.history[to].clone();
                    world.history.truncate(to);
                }
                world.restart();
            }
            Self::Forget(partition) => drop(world.committed.remove(&partition)),
            Self::Wait => world.now += 15,
        }
    }
}

fn awake(members: &mut [Member; MEMBERS], me: usize) -> Option<&mut Member> {
    Some(&mut members[me]).filter(|member| !member.asleep)
}

fn run(
    logs: [Vec<(usize, u8)>; MAIN],
    shared: bool,
    actions: impl Iterator<Item = Action>,
) -> Result<(), TestCaseError> {
    let mut world = World { shared, run: 1, ..World::default() };
    // An event has one key and one partition; its producer may have sent it twice.
    for (partition, log) in logs.iter().enumerate() {
        let record = |(event, key): &(usize, u8)| Record {
            event: event * MAIN + partition,
            key: (*event as u8 + key) % 3,
            attempt: 0,
            due: 0,
        };
        let mut keys: BTreeMap<usize, u8> = BTreeMap::new();
        for mut record in log.iter().map(record) {
            record.key = *keys.entry(record.event).or_insert(record.key);
            world.logs[partition].push(record);
        }
    }
    let mut members: [Member; MEMBERS] = Default::default();
    for action in actions {
        action.apply(&mut world, &mut members);
    }
    // Nothing goes wrong any more: those who are left finish, without anybody starting anew.
    members.iter_mut().for_each(|member| member.asleep = false);
    let is_done = |world: &World| {
        let at_end = |(partition, log): (usize, &Vec<Record>)| {
            world.database.rows.get(&partition).map_or(0, |row| row.next_offset) == log.len() as i64
        };
        world.logs.iter().enumerate().all(at_end)
    };
    for turn in 0_usize.. {
        if is_done(&world) {
            break;
        }
        prop_assert!(turn < 2_000, "stranded: {:?} of {:?}", world.database.rows, world.logs.each_ref().map(Vec::len));
        for me in 0..MEMBERS {
            for action in [Action::Compare(me), Action::TakeOver(me), Action::Write(me, false), Action::Commit(me)] {
                action.apply(&mut world, &mut members);
            }
            for partition in 0..PARTITIONS {
                Action::Fetch(me, partition).apply(&mut world, &mut members);
                if let Some(owned) = members[me].owned.get_mut(&partition) {
                    owned.work(&mut world, me, partition, |jobs| turn % jobs, Luck::Success);
                }
            }
        }
        world.now += 5;
    }
    check(&world)
}

fn check(world: &World) -> Result<(), TestCaseError> {
    let published: BTreeSet<usize> = world.logs[..MAIN].iter().flatten().map(|record| record.event).collect();
    let effects = &world.database.effects;
    let settled: BTreeSet<usize> = effects.iter().chain(&world.letters).copied().collect();
    prop_assert_eq!(&settled, &published, "lost");
    prop_assert_eq!(effects.iter().collect::<BTreeSet<_>>().len(), effects.len(), "twice: {:?}", effects);
    for (partition, log) in world.logs[..MAIN].iter().enumerate() {
        for key in 0..3 {
            let of_key = |event: &usize| log.iter().position(|record| record.event == *event && record.key == key);
            let kept = effects.iter().filter(|event| !world.failed.contains(event));
            let offsets: Vec<usize> = kept.filter_map(of_key).collect();
            prop_assert!(offsets.is_sorted(), "key {} of partition {}: {:?}", key, partition, offsets);
        }
    }
    Ok(())
}

/// What happens next, by chance.
fn action(chance: &mut fastrand::Rng) -> Action {
    let (me, partition, which) = (chance.usize(..MEMBERS), chance.usize(..PARTITIONS), chance.usize(..));
    match chance.u8(..128) {
        0..20 => Action::Fetch(me, partition),
        20..80 => {
            let luck = match chance.u8(..13) {
                0..8 => Luck::Success,
                8..11 => Luck::Transient,
                11 => Luck::Permanent,
                _ => Luck::Outage,
            };
            Action::Work(me, partition, which, luck)
        }
        80..88 => Action::Write(me, chance.u8(..5) == 0),
        88..94 => Action::Commit(me),
        94..100 => Action::Compare(me),
        100..108 => Action::TakeOver(me),
        108..113 => Action::Rebalance(partition, me),
        113 => Action::Crash(me),
        114..116 => Action::Sleep(me),
        116..120 => Action::Wake(me),
        120 => Action::Restart,
        121 => Action::GoBack(which),
        122 => Action::Forget(partition),
        _ => Action::Wait,
    }
}

/// A seed is a whole history; a history that fails is shortened at its end.
fn simulate(seed: u64, steps: usize) -> Result<(), TestCaseError> {
    let mut chance = fastrand::Rng::with_seed(seed);
    let logs = [(); MAIN].map(|()| {
        let sent = chance.usize(..10);
        (0..sent).map(|_| (chance.usize(..8), chance.u8(..3))).collect()
    });
    let shared = chance.bool();
    run(logs, shared, (0..steps).map(|_| action(&mut chance)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_doubled_or_out_of_order_whatever_happens(seed in any::<u64>(), steps in 0..400_usize) {
        simulate(seed, steps)?;
    }
}
