//! The queue against a table, a broker and crashes that are made up.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { rows: 8, bytes: 1_000, rows_of_a_line: 3 };

fn line(topic: &str, key: &str) -> Line {
    Line { topic: topic.into(), key: key.to_owned() }
}

fn seen(seq: i64, topic: &str, key: &str) -> Seen {
    Seen { seq, line: line(topic, key), bytes: 10, held: false }
}

fn started(queue: &mut Queue) -> Vec<i64> {
    std::iter::from_fn(|| queue.start()).collect()
}

#[test]
fn rows_of_different_keys_are_on_their_way_together_and_those_of_one_after_each_other() {
    let mut queue = Queue::new(LIMITS);
    let rows = [seen(1, "t", "a"), seen(2, "t", "a"), seen(3, "t", "b"), seen(4, "u", "a")];
    assert_eq!(queue.plan(&rows, true).take, [1, 2, 3, 4]);
    assert_eq!(started(&mut queue), [1, 3, 4]);
    queue.done(1);
    assert_eq!(started(&mut queue), [2]);
    assert_eq!(queue.plan(&rows[1..], true), Plan::default(), "what is on its way is not taken twice");
}

#[test]
fn a_row_that_becomes_visible_late_is_taken() {
    let mut queue = Queue::new(LIMITS);
    assert_eq!(queue.plan(&[seen(2, "t", "b")], true).take, [2]);
    queue.done(2);
    assert_eq!(queue.plan(&[seen(1, "t", "a")], true).take, [1]);
}

#[test]
fn a_parked_row_holds_back_its_line_alone() {
    let mut queue = Queue::new(LIMITS);
    let mut rows = [seen(1, "t", "a"), seen(2, "t", "a"), seen(3, "t", "a"), seen(4, "t", "b")];
    let _ = queue.plan(&rows, true);
    assert_eq!(started(&mut queue), [1, 4]);
    assert_eq!(queue.parked(1), [2, 3]);
    assert_eq!(started(&mut queue), [0_i64; 0]);
    rows.iter_mut().take(3).for_each(|row| row.held = true);
    let plan = queue.plan(&rows[1..], true);
    assert_eq!((plan.take, plan.aside), (vec![], vec![2, 3]));
    assert_eq!(queue.len(), 1);
}

#[test]
fn a_topic_that_is_stuck_leaves_room_for_others() {
    let mut queue = Queue::new(LIMITS);
    let stuck: Vec<Seen> = (0..20).map(|seq| seen(seq, "stuck", &seq.to_string())).collect();
    assert_eq!(queue.plan(&stuck, true).take.len(), 4);
    let other: Vec<Seen> = (20..40).map(|seq| seen(seq, "other", &seq.to_string())).collect();
    assert_eq!(queue.plan(&other, true).take.len(), 2);
    assert_eq!(queue.plan(&[seen(50, "third", "a")], true).take.len(), 1);
}

#[test]
fn memory_is_bounded_and_a_row_that_is_larger_passes() {
    let mut queue = Queue::new(LIMITS);
    let large = |seq| Seen { bytes: 5_000, ..seen(seq, "t", &seq.to_string()) };
    assert_eq!(queue.plan(&[large(1), large(2), seen(3, "t", "c")], true).take, [1, 2]);
    queue.done(1);
    assert_eq!(queue.plan(&[large(2), seen(3, "t", "c")], true).take, [3]);
}

#[test]
fn behind_a_long_line_it_looks_deeper() {
    let limits = Limits { rows: 80, ..LIMITS };
    let mut queue = Queue::new(limits);
    let rows: Vec<Seen> = (0..10).map(|seq| seen(seq, "t", "a")).collect();
    let plan = queue.plan(&rows, false);
    assert_eq!((plan.take, plan.look_deeper), (vec![0, 1, 2], true));
    assert!(!queue.plan(&rows, true).look_deeper);
}

/// What happens to the made-up table and broker.
#[derive(Debug, Clone)]
enum Event {
    /// A transaction that holds its key's lock publishes; others may commit before it does.
    Publish(u8),
    Commit(usize),
    Look,
    Acknowledge(usize),
    /// Acknowledged, and the process dies before the row is deleted.
    Crash,
    Park(usize),
    Release,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0_u8..4).prop_map(Event::Publish),
        4 => (0_usize..8).prop_map(Event::Commit),
        4 => Just(Event::Look),
        6 => (0_usize..8).prop_map(Event::Acknowledge),
        1 => Just(Event::Crash),
        1 => (0_usize..8).prop_map(Event::Park),
        1 => Just(Event::Release),
    ];
    proptest::collection::vec(event, 1..120)
}

#[derive(Default)]
struct World {
    next: i64,
    /// Published, not committed: one per key, which is its lock.
    open: BTreeMap<u8, i64>,
    table: BTreeMap<i64, u8>,
    parked: BTreeMap<i64, u8>,
    in_flight: Vec<i64>,
    /// First deliveries by key.
    wire: BTreeMap<u8, Vec<i64>>,
    sent: BTreeSet<i64>,
}

impl World {
    fn look(&mut self, queue: &mut Queue) {
        let rows: Vec<Seen> = self
            .table
            .iter()
            .map(|(seq, key)| Seen {
                held: self.parked.values().any(|parked| parked == key),
                ..seen(*seq, "t", &key.to_string())
            })
            .collect();
        let plan = queue.plan(&rows, true);
        for seq in plan.aside {
            if let Some(key) = self.table.remove(&seq) {
                self.parked.insert(seq, key);
            }
        }
        self.start(queue);
    }

    fn start(&mut self, queue: &mut Queue) {
        self.in_flight.extend(std::iter::from_fn(|| queue.start()));
    }

    fn deliver(&mut self, seq: i64) {
        let key = self.table[&seq];
        if self.sent.insert(seq) {
            self.wire.entry(key).or_default().push(seq);
        }
    }

    fn step(&mut self, queue: &mut Queue, event: &Event) {
        match event {
            Event::Publish(key) if !self.open.contains_key(key) => {
                self.next += 1;
                self.open.insert(*key, self.next);
            }
            Event::Commit(at) => {
                if let Some((&key, _)) = self.open.iter().nth(*at) {
                    let seq = self.open.remove(&key).unwrap();
                    self.table.insert(seq, key);
                }
            }
            Event::Look => self.look(queue),
            Event::Acknowledge(at) if *at < self.in_flight.len() => {
                let seq = self.in_flight.remove(*at);
                self.deliver(seq);
                self.table.remove(&seq);
                queue.done(seq);
                self.start(queue);
            }
            Event::Crash => {
                for seq in std::mem::take(&mut self.in_flight).into_iter().step_by(2) {
                    self.deliver(seq);
                }
                *queue = Queue::new(LIMITS);
            }
            Event::Park(at) if *at < self.in_flight.len() => {
                let seq = self.in_flight.remove(*at);
                let key = self.table.remove(&seq).unwrap();
                self.parked.insert(seq, key);
                let _ = queue.parked(seq);
            }
            Event::Release => self.table.append(&mut self.parked),
            Event::Publish(_) | Event::Acknowledge(_) | Event::Park(_) => {}
        }
    }
}

proptest! {
    #[test]
    fn every_row_is_sent_and_each_key_in_its_order(events in events()) {
        let mut world = World::default();
        let mut queue = Queue::new(LIMITS);
        for event in &events {
            world.step(&mut queue, event);
            let keys: BTreeSet<u8> = world.in_flight.iter().map(|seq| world.table[seq]).collect();
            prop_assert_eq!(keys.len(), world.in_flight.len(), "one of a key at a time");
            prop_assert!(queue.len() <= LIMITS.rows);
        }
        while let Some((&key, _)) = world.open.iter().next() {
            let seq = world.open.remove(&key).unwrap();
            world.table.insert(seq, key);
        }
        world.step(&mut queue, &Event::Release);
        for _ in 0..1_000 {
            world.step(&mut queue, &Event::Look);
            world.step(&mut queue, &Event::Acknowledge(0));
        }
        prop_assert!(world.table.is_empty() && queue.len() == 0);
        prop_assert_eq!(world.sent.len() as i64, world.next);
        for sent in world.wire.values() {
            prop_assert!(sent.is_sorted(), "{sent:?}");
        }
    }
}
