//! A model of two members that work on one partition: every statement is a step, and anything may
//! happen between two steps. Whatever happens, each key's effects come in the order of its offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::decide::circuit::Verdict;
use crate::decide::key_lanes::KeyLanes;
use crate::decide::offsets::Watermark;
use crate::decide::outcome::{Outcome, Reason};
use crate::decide::step;
use crate::error::Failure;

const TIERS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(60)];
const CONCURRENCY: usize = 2;

/// How an attempt ends, unless something comes between.
#[derive(Debug, Clone, Copy)]
enum Luck {
    Success,
    Transient,
    Permanent,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Deliver(usize),
    Work(usize, prop::sample::Index, Luck),
    /// An outage hits an event where it is.
    Outage(usize, prop::sample::Index),
    Progress(usize),
    Crash(usize),
    /// The member gets the partition; another one that has it does not hear of it.
    TakeOver(usize),
    /// The same, from an earlier offset.
    Rewind(usize, prop::sample::Index),
    Wait,
}

/// What both servers hold.
struct World {
    /// The key of each offset.
    log: Vec<u8>,
    /// Attempt and due time.
    rows: BTreeMap<i64, (u32, u64)>,
    effects: Vec<i64>,
    /// Whose uncommitted dedup row it is.
    locks: BTreeMap<i64, usize>,
    letters: BTreeSet<i64>,
    /// Dead letters whose followers may have run. Delivered once more they fail once more: nobody
    /// remembers them.
    given_up: BTreeSet<i64>,
    epoch: i64,
    progress: i64,
    now: u64,
}

struct Member {
    me: usize,
    epoch: i64,
    next: i64,
    watermark: Watermark,
    lanes: KeyLanes<u8, Option<i64>>,
    parked: Parked<u8>,
    parked_in_lanes: usize,
    running: Vec<Job>,
}

struct Job {
    key: u8,
    /// `None`: the parked event of the key that comes next.
    record: Option<i64>,
    stage: Stage,
}

/// The next statement of a job.
enum Stage {
    Begin,
    Follow,
    Attempt { offset: i64, attempt: u32 },
    Check { offset: i64, attempt: u32 },
    Commit { offset: i64, attempt: u32 },
    Publish { offset: i64, attempt: u32, step: Step },
    Keep { offset: i64, attempt: u32, step: Step },
    Finish,
}

impl World {
    fn take_over(&mut self, me: usize, from: i64) -> Member {
        self.locks.retain(|_, holder| *holder != me);
        self.epoch += 1;
        self.progress = from;
        let mut parked = Parked::new(1_000);
        for (offset, (_, due)) in &self.rows {
            parked.insert(self.log[*offset as usize], *offset, *due);
        }
        Member {
            me,
            epoch: self.epoch,
            next: from,
            watermark: Watermark::starting_at(from),
            lanes: KeyLanes::new(CONCURRENCY),
            parked,
            parked_in_lanes: 0,
            running: Vec::new(),
        }
    }
}

impl Member {
    fn deliver(&mut self, world: &World) {
        let Some(&key) = world.log.get(self.next as usize) else { return };
        if self.lanes.len() - self.parked_in_lanes < 4 {
            assert!(self.watermark.deliver(self.next, None));
            self.lanes.push(key, Some(self.next));
            self.next += 1;
        }
    }

    fn start(&mut self, now: u64) {
        while self.parked_in_lanes < CONCURRENCY
            && let Some(key) = self.parked.take_due(now)
        {
            self.lanes.push(key, None);
            self.parked_in_lanes += 1;
        }
        while let Some((key, record)) = self.lanes.start(|_| true) {
            self.running.push(Job { key, record, stage: Stage::Begin });
        }
    }

    /// One statement of a job, with what memory does before the next.
    fn work(&mut self, world: &mut World, luck: Luck, choose: impl FnOnce(usize) -> usize) {
        self.start(world.now);
        if self.running.is_empty() {
            return;
        }
        let at = choose(self.running.len());
        let Job { key, record, stage } = self.running.swap_remove(at);
        let is_owner = world.epoch == self.epoch;
        let place = if record.is_some() { Place::Key } else { Place::Row };
        let stage = match stage {
            Stage::Begin => match record {
                Some(offset) => match self.parked.arrival(key, offset) {
                    Arrival::Handle => Stage::Attempt { offset, attempt: 0 },
                    Arrival::Behind => Stage::Follow,
                    Arrival::Known => Stage::Finish,
                },
                None => match self.parked.head(key) {
                    None => Stage::Finish,
                    Some(_) if !is_owner => Stage::Begin,
                    Some(offset) => {
                        let attempt = world.rows.get(&offset).expect("the owner knows its rows").0;
                        Stage::Attempt { offset, attempt }
                    }
                },
            },
            Stage::Follow if is_owner => {
                let offset = record.expect("a record");
                world.rows.entry(offset).or_insert((0, world.now));
                self.parked.insert(key, offset, world.now);
                Stage::Finish
            }
            Stage::Attempt { offset, attempt } if world.effects.contains(&offset) => {
                after(offset, attempt, &Outcome::Duplicate)
            }
            // Waits for whoever has inserted its dedup row.
            Stage::Attempt { offset, attempt } if world.locks.contains_key(&offset) => {
                Stage::Attempt { offset, attempt }
            }
            Stage::Attempt { offset, attempt } => {
                world.locks.insert(offset, self.me);
                Stage::Check { offset, attempt }
            }
            Stage::Check { offset, attempt } => {
                let luck = if world.given_up.contains(&offset) { Luck::Permanent } else { luck };
                let failure = Failure::new("as planned");
                let outcome = match luck {
                    _ if !is_owner => Outcome::Infrastructure(failure),
                    Luck::Success => Outcome::Done,
                    Luck::Transient => Outcome::Transient { failure, panicked: false },
                    Luck::Permanent => Outcome::permanent(Reason::Permanent, failure),
                };
                if matches!(outcome, Outcome::Done) {
                    Stage::Commit { offset, attempt }
                } else {
                    world.locks.remove(&offset);
                    after(offset, attempt, &outcome)
                }
            }
            Stage::Commit { offset, attempt } => {
                world.locks.remove(&offset);
                world.effects.push(offset);
                after(offset, attempt, &Outcome::Done)
            }
            Stage::Publish { offset, attempt, step } => {
                world.letters.insert(offset);
                Stage::Keep { offset, attempt, step }
            }
            Stage::Keep { offset, attempt, step } => match keep(place, &step) {
                keep if keep != Keep::Nothing && !is_owner => Stage::Keep { offset, attempt, step },
                _ if is_owner && matches!(step, Step::DeadLetter { .. }) && world.given_up.insert(offset) => {
                    Stage::Keep { offset, attempt, step }
                }
                Keep::Nothing => Stage::Finish,
                Keep::Park(delay) => {
                    let due = world.now + delay.as_millis() as u64;
                    world.rows.entry(offset).or_insert((attempt + 1, due));
                    self.parked.insert(key, offset, due);
                    Stage::Finish
                }
                Keep::Postpone(delay) => {
                    let due = world.now + delay.as_millis() as u64;
                    world.rows.insert(offset, (attempt + 1, due));
                    self.parked.postpone(key, offset, due);
                    Stage::Finish
                }
                Keep::Remove => {
                    world.rows.remove(&offset);
                    self.parked.remove(key, offset);
                    Stage::Finish
                }
            },
            stage @ (Stage::Follow | Stage::Finish) => stage,
        };
        if !matches!(stage, Stage::Finish) {
            self.running.push(Job { key, record, stage });
            return;
        }
        match record {
            Some(offset) => self.watermark.finish(offset),
            None => self.parked_in_lanes -= 1,
        }
        self.lanes.finish(key);
    }

    fn outage(&mut self, world: &mut World, at: prop::sample::Index) {
        if self.running.is_empty() {
            return;
        }
        let at = at.index(self.running.len());
        let job = &mut self.running[at];
        if let Stage::Check { offset, attempt } | Stage::Commit { offset, attempt } = job.stage {
            world.locks.remove(&offset);
            job.stage = Stage::Attempt { offset, attempt };
        }
    }
}

/// What follows from an attempt.
fn after(offset: i64, attempt: u32, outcome: &Outcome) -> Stage {
    match step::after(outcome, attempt, &TIERS, false, Verdict::Counts) {
        Step::WaitInPlace => Stage::Attempt { offset, attempt },
        step @ Step::DeadLetter { .. } => Stage::Publish { offset, attempt, step },
        step => Stage::Keep { offset, attempt, step },
    }
}

fn run(log: Vec<u8>, actions: Vec<Action>) -> Result<(), TestCaseError> {
    let mut world = World {
        log,
        rows: BTreeMap::new(),
        effects: Vec::new(),
        locks: BTreeMap::new(),
        letters: BTreeSet::new(),
        given_up: BTreeSet::new(),
        epoch: 0,
        progress: 0,
        now: 0,
    };
    let mut members = [Some(world.take_over(0, 0)), None];
    for action in actions {
        match action {
            Action::TakeOver(at) => members[at] = Some(world.take_over(at, world.progress)),
            Action::Rewind(at, to) => {
                let from = to.index(world.progress as usize + 1) as i64;
                members[at] = Some(world.take_over(at, from));
            }
            Action::Crash(at) => {
                members[at] = None;
                world.locks.retain(|_, holder| *holder != at);
            }
            Action::Wait => world.now += 15,
            Action::Deliver(at) => members[at].iter_mut().for_each(|member| member.deliver(&world)),
            Action::Work(at, which, luck) => members[at].iter_mut().for_each(|member| {
                member.work(&mut world, luck, |running| which.index(running));
            }),
            Action::Outage(at, which) => members[at].iter_mut().for_each(|member| member.outage(&mut world, which)),
            Action::Progress(at) => {
                if let Some(member) = &members[at]
                    && member.epoch == world.epoch
                {
                    world.progress = member.watermark.next_offset();
                }
            }
        }
    }
    // Both are gone, and a last one finishes.
    world.locks.clear();
    let mut last = world.take_over(0, world.progress);
    let end = world.log.len() as i64;
    let mut steps = 0_usize;
    while last.watermark.next_offset() < end || !world.rows.is_empty() {
        last.deliver(&world);
        last.work(&mut world, Luck::Success, |running| steps % running);
        world.now += 1;
        steps += 1;
        prop_assert!(steps < 20_000, "stranded: {:?}", world.rows);
    }
    for key in 0..3 {
        let effects: Vec<i64> =
            world.effects.iter().copied().filter(|offset| world.log[*offset as usize] == key).collect();
        prop_assert!(effects.is_sorted_by(|before, after| before < after), "key {}: {:?}", key, effects);
    }
    let settled: BTreeSet<i64> = world.letters.iter().chain(&world.effects).copied().collect();
    prop_assert_eq!(settled, (0..end).collect::<BTreeSet<i64>>());
    prop_assert_eq!(last.parked.len(), 0);
    Ok(())
}

fn action() -> impl Strategy<Value = Action> {
    let which = any::<prop::sample::Index>;
    let luck = prop_oneof![5 => Just(Luck::Success), 5 => Just(Luck::Transient), 1 => Just(Luck::Permanent)];
    prop_oneof![
        6 => (0..2_usize).prop_map(Action::Deliver),
        30 => (0..2_usize, which(), luck).prop_map(|(member, which, luck)| Action::Work(member, which, luck)),
        2 => (0..2_usize, which()).prop_map(|(member, which)| Action::Outage(member, which)),
        3 => (0..2_usize).prop_map(Action::Progress),
        1 => (0..2_usize).prop_map(Action::Crash),
        1 => (0..2_usize).prop_map(Action::TakeOver),
        1 => (0..2_usize, which()).prop_map(|(member, to)| Action::Rewind(member, to)),
        4 => Just(Action::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn each_key_keeps_its_order_and_nothing_is_stranded(
        log in prop::collection::vec(0..3_u8, 1..14),
        actions in prop::collection::vec(action(), 0..400),
    ) {
        run(log, actions)?;
    }
}
