//! The whole of the dedup table against a group that never forgets: whatever is emptied, deleted, read
//! again or read late, an effect never happens twice in silence, and what was never processed is taken for
//! forgotten only where it may be.
//!
//! A model of what the statements do, in the order in which their locks let them: an insert and its look
//! at the horizon are one step, since an insert that meets rows on their way out waits for them, and so
//! is a transaction that empties.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::decide::window::may_be_forgotten;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const RULES: Rules = Rules { window: 3 * DAY, skew: 12 * HOUR, max_hold: 8 * DAY };
const START: i64 = 100 * DAY;
/// Older ids have no day of their own.
const FIRST_DAY: i64 = 97;

#[derive(Debug, Clone)]
enum Step {
    /// Time passes.
    Wait(i64),
    /// An event is published, whose id is so much older than its record; at most the skew.
    Publish(i64),
    /// A group reads on.
    Read { group: usize, events: usize },
    /// The last events are delivered again, as after a crash before the offset.
    Redeliver { group: usize, events: usize },
    /// An operator sets a group back to the beginning.
    Reset(usize),
    /// A group notes that it has read all.
    CatchUp(usize),
    /// The days are looked at, and rows of `late` are deleted one by one.
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let group = || 0..3_usize;
    prop_oneof![
        3 => (0..30 * HOUR).prop_map(Step::Wait),
        6 => (0..RULES.skew).prop_map(Step::Publish),
        5 => (group(), 1..8_usize).prop_map(|(group, events)| Step::Read { group, events }),
        2 => (group(), 1..8_usize).prop_map(|(group, events)| Step::Redeliver { group, events }),
        1 => group().prop_map(Step::Reset),
        2 => group().prop_map(Step::CatchUp),
        4 => Just(Step::Sweep),
    ]
}

#[derive(Debug, Default)]
struct Group {
    /// A group that has not begun is not known to anybody.
    known: bool,
    position: usize,
    event: Option<i64>,
    caught_up: Option<i64>,
    horizon: Option<i64>,
    /// It was away for longer than rows are kept for anybody.
    overstayed: bool,
    /// The reference, which never forgets.
    processed: BTreeSet<usize>,
}

#[derive(Debug, Default)]
struct World {
    now: i64,
    /// The time of the id and the time of the record.
    log: Vec<(i64, i64)>,
    groups: [Group; 3],
    /// By group and event: when it was processed.
    rows: BTreeMap<(usize, usize), i64>,
}

impl World {
    fn deliver(&mut self, group: usize, event: usize) -> Result<(), TestCaseError> {
        let (id, _) = self.log[event];
        let of = &mut self.groups[group];
        if self.rows.contains_key(&(group, event)) {
            prop_assert!(of.processed.contains(&event), "a duplicate was processed");
        } else if may_be_forgotten(Some(id.unsigned_abs()), None, of.horizon) {
            prop_assert!(
                of.processed.contains(&event) || of.overstayed,
                "group {} never processed {:?}, was never kept too long, and it looks forgotten: {:?}",
                group,
                self.log[event],
                of
            );
        } else {
            prop_assert!(of.processed.insert(event), "a second effect of {:?} in silence: {:?}", self.log[event], of);
            self.rows.insert((group, event), self.now);
        }
        Ok(())
    }

    fn floors(&self) -> Vec<Floor> {
        let known = self.groups.iter().enumerate().filter(|(_, group)| group.known);
        known
            .filter_map(|(number, group)| {
                let (event, caught_up) = (group.event, group.caught_up);
                let position = Position { topic: Topic::Main, event, caught_up };
                Some(Floor { group: number.to_string(), millis: floor_of(&position)? })
            })
            .collect()
    }

    fn sweep(&mut self) {
        let floors = self.floors();
        for day in FIRST_DAY..self.now / DAY {
            let end = (day + 1) * DAY;
            let Verdict::Due { processed_before } = judge(end, self.now, &RULES, &floors) else { continue };
            let log = &self.log;
            let gone: Vec<(usize, usize)> = self
                .rows
                .iter()
                .filter(|((_, event), at)| log[*event].0 / DAY == day && **at < processed_before)
                .map(|(row, _)| *row)
                .collect();
            for row in gone {
                let held = floors
                    .iter()
                    .any(|floor| floor.group == row.0.to_string() && floor.millis.saturating_sub(RULES.skew) < end);
                // Only rows that were kept for as long as may be.
                self.groups[row.0].overstayed |= held && self.rows[&row] < self.now - RULES.max_hold;
                self.groups[row.0].horizon = self.groups[row.0].horizon.max(Some(end));
                self.rows.remove(&row);
            }
        }
        // Of each group, as its own position lets them.
        let limits = limits(&RULES, &floors);
        for ((group, event), at) in self.rows.clone() {
            let id = self.log[event].0;
            let limit = limits.iter().find(|limit| limit.group == group.to_string());
            let overstayed = at < self.now - RULES.max_hold;
            let read = limit.is_none_or(|limit| id < limit.ids_before);
            if id < FIRST_DAY * DAY && at < self.now - RULES.window && (read || overstayed) {
                self.groups[group].overstayed |= !read;
                self.groups[group].horizon = self.groups[group].horizon.max(Some(id + 1));
                self.rows.remove(&(group, event));
            }
        }
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Wait(millis) => self.now += millis,
            Step::Publish(older) => self.log.push((self.now - older, self.now)),
            Step::Read { group, events } => {
                let from = self.groups[group].position;
                let to = self.log.len().min(from + events);
                self.groups[group].known = true;
                for event in from..to {
                    self.deliver(group, event)?;
                    self.groups[group].position = event + 1;
                    self.groups[group].event = Some(self.log[event].1);
                }
            }
            Step::Redeliver { group, events } => {
                let position = self.groups[group].position;
                for event in position.saturating_sub(events)..position {
                    self.deliver(group, event)?;
                }
            }
            Step::Reset(group) => {
                let group = &mut self.groups[group];
                (group.position, group.event, group.caught_up) = (0, None, None);
            }
            Step::CatchUp(group) => {
                let group = &mut self.groups[group];
                if group.known && group.position == self.log.len() {
                    group.caught_up = Some(self.now);
                }
            }
            Step::Sweep => self.sweep(),
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn no_effect_happens_twice_in_silence_and_nothing_unread_looks_forgotten(
        backlog in prop::collection::vec((0..20 * DAY, 0..RULES.skew), 0..12),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut world = World { now: START, ..World::default() };
        // What the topic held before anybody read it, in order.
        let mut backlog: Vec<(i64, i64)> = backlog.into_iter().map(|(age, older)| (START - age, older)).collect();
        backlog.sort_unstable();
        world.log = backlog.into_iter().map(|(at, older)| (at - older, at)).collect();
        for step in &steps {
            world.apply(step)?;
        }
    }
}
