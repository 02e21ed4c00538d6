//! The queue against a table, a broker and crashes that are made up.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { rows: 8, bytes: 1_000, rows_of_a_line: 3, failing_of_a_topic: 2 };
/// As the relay has them.
const REAL: Limits = Limits { rows: 8_192, bytes: 32 << 20, rows_of_a_line: 64, failing_of_a_topic: 16 };
const NOW: Duration = Duration::from_secs(100);

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
    assert_eq!(queue.plan(&rows).take, [1, 2, 3, 4]);
    assert_eq!(started(&mut queue), [1, 3, 4]);
    queue.acknowledged(1, NOW);
    assert_eq!(started(&mut queue), [2]);
    assert_eq!(queue.plan(&rows[1..]), Plan::default(), "what is on its way is not taken twice");
}

#[test]
fn a_row_that_becomes_visible_late_is_taken() {
    let mut queue = Queue::new(LIMITS);
    assert_eq!(queue.plan(&[seen(2, "t", "b")]).take, [2]);
    queue.acknowledged(2, NOW);
    assert_eq!(queue.plan(&[seen(1, "t", "a")]).take, [1]);
}

#[test]
fn a_parked_row_holds_back_its_line_alone() {
    let mut queue = Queue::new(LIMITS);
    let mut rows = [seen(1, "t", "a"), seen(2, "t", "a"), seen(3, "t", "a"), seen(4, "t", "b")];
    let _ = queue.plan(&rows);
    assert_eq!(started(&mut queue), [1, 4]);
    assert_eq!(queue.parked(1), [2, 3]);
    assert_eq!(started(&mut queue), [0_i64; 0]);
    rows.iter_mut().take(3).for_each(|row| row.held = true);
    let plan = queue.plan(&rows[1..]);
    assert_eq!((plan.take, plan.aside), (vec![], vec![2, 3]));
    assert_eq!(queue.len(), 1);
}

#[test]
fn a_topic_that_is_stuck_leaves_room_for_others() {
    let mut queue = Queue::new(LIMITS);
    let stuck: Vec<Seen> = (0..20).map(|seq| seen(seq, "stuck", &seq.to_string())).collect();
    assert_eq!(queue.plan(&stuck).take.len(), 4);
    let other: Vec<Seen> = (20..40).map(|seq| seen(seq, "other", &seq.to_string())).collect();
    assert_eq!(queue.plan(&other).take.len(), 2);
    assert_eq!(queue.plan(&[seen(50, "third", "a")]).take.len(), 1);
}

#[test]
fn memory_is_bounded_and_a_row_that_is_larger_passes() {
    let mut queue = Queue::new(LIMITS);
    let large = |seq| Seen { bytes: 5_000, ..seen(seq, "t", &seq.to_string()) };
    assert_eq!(queue.plan(&[large(1), large(2), seen(3, "t", "c")]).take, [1, 2]);
    queue.acknowledged(1, NOW);
    assert_eq!(queue.plan(&[large(2), seen(3, "t", "c")]).take, [3]);
}

/// What a look shows of a table.
fn shown(queue: &Queue, table: &[Seen], most: usize) -> Vec<Seen> {
    let passed = queue.passed_over(true);
    let (topics, lines): (HashSet<_>, HashSet<_>) =
        (passed.topics.into_iter().collect(), passed.lines.into_iter().collect());
    let is_shown = |row: &&Seen| !topics.contains(&row.line.topic) && !lines.contains(&row.line);
    table.iter().filter(is_shown).take(most).cloned().collect()
}

#[test]
fn a_long_line_does_not_hide_the_others_and_is_shown_again_when_most_of_it_is_sent() {
    let mut queue = Queue::new(REAL);
    let mut table: Vec<Seen> = (0..20_000).map(|seq| seen(seq, "t", "hot")).collect();
    table.push(seen(20_000, "t", "cold"));
    let first = queue.plan(&shown(&queue, &table, 8_192)).take;
    assert_eq!(first, (0..64).collect::<Vec<_>>());
    assert!(!queue.is_much(first.len()), "it does not look again at once for so few");
    assert!(queue.has_room() && queue.passed_over(false).is_empty() && !queue.passed_over(true).is_empty());
    assert_eq!(queue.plan(&shown(&queue, &table, 8_192)).take, [20_000]);
    assert_eq!(started(&mut queue), [0, 20_000]);
    for seq in 0..48 {
        assert_eq!(shown(&queue, &table[..20_000], 8_192).len(), 0, "{seq}");
        queue.acknowledged(seq, NOW);
        assert_eq!(started(&mut queue), [seq + 1]);
    }
    let next = queue.plan(&shown(&queue, &table[48..20_000], 8_192)).take;
    assert_eq!(next, (64..112).collect::<Vec<_>>());
}

/// Lets everything that is on its way fail or pass, by its topic, until nothing is.
fn answer(queue: &mut Queue, table: &mut Vec<Seen>, now: Duration, is_well: impl Fn(&str) -> bool) {
    let mut sent = BTreeSet::new();
    while let Some(seq) = queue.start() {
        if is_well(&queue.rows[&seq].line.topic) {
            sent.insert(seq);
            queue.acknowledged(seq, now);
        } else {
            let _ = queue.failed(seq, now);
        }
    }
    if !sent.is_empty() {
        table.retain(|row| !sent.contains(&row.seq));
    }
}

/// Looks as the relay does: only when there is room.
fn look(queue: &mut Queue, table: &[Seen], now: Duration) {
    if !queue.has_room() {
        return;
    }
    let _ = queue.plan(&shown(queue, table, 8_192));
    for _ in 0..16 {
        let Some((topic, most)) = queue.to_be_tried(now) else { break };
        let rows: Vec<Seen> = table.iter().filter(|row| row.line.topic == topic).take(most).cloned().collect();
        let _ = queue.plan(&rows);
        queue.tried(&topic, rows.len(), now);
    }
}

#[test]
fn topics_that_can_not_be_written_to_stop_no_other_and_are_tried_until_they_can() {
    let key = |seq: i64| seq.to_string();
    // One with many rows, one with large ones, many with few: each would fill the memory.
    let mut table: Vec<Seen> = (0..5_000).map(|seq| seen(seq, "stuck", &key(seq))).collect();
    table.extend((5_000..5_040).map(|seq| Seen { bytes: 1 << 20, ..seen(seq, "stuck-large", &key(seq)) }));
    table.extend((6_000..9_000).map(|seq| seen(seq, &format!("stuck-{}", seq % 200), &key(seq))));
    table.extend((10_000..15_000).map(|seq| seen(seq, "well", &key(seq % 100))));
    let stuck = table.iter().filter(|row| &*row.line.topic != "well").count();
    let mut queue = Queue::new(REAL);
    let mut now = NOW;
    for _ in 0..100 {
        look(&mut queue, &table, now);
        answer(&mut queue, &mut table, now, |topic| topic == "well");
        now += Duration::from_millis(100);
    }
    assert_eq!(table.len(), stuck, "all of the others are sent");
    assert!(queue.has_room() && queue.is_in_trouble());
    for _ in 0..500 {
        look(&mut queue, &table, now);
        answer(&mut queue, &mut table, now, |_| true);
        for seq in queue.rows.keys().copied().collect::<Vec<_>>() {
            if queue.again(seq) {
                queue.ready.push_back(seq);
            }
        }
        now += Duration::from_millis(100);
    }
    assert!(table.is_empty(), "{} rows are left", table.len());
    look(&mut queue, &table, now);
    assert!(!queue.is_in_trouble() && queue.len() == 0);
}

#[test]
fn few_rows_that_fail_are_tried_again_by_themselves_and_the_rest_of_their_topic_goes_on() {
    let mut queue = Queue::new(REAL);
    let rows: Vec<Seen> = (0..40).map(|seq| seen(seq, "t", &(seq % 20).to_string())).collect();
    let _ = queue.plan(&rows);
    assert_eq!(started(&mut queue).len(), 20);
    for seq in 0..16 {
        assert_eq!(queue.failed(seq, NOW), [seq + 20], "what is behind it is seen again");
    }
    queue.acknowledged(19, NOW);
    assert_eq!(started(&mut queue), [39]);
    assert!(!queue.is_in_trouble() && queue.again(0) && !queue.again(0));
    // A partition of it has no leader, and more and more wait for that one.
    let gone = queue.failed(16, NOW);
    assert!(queue.is_in_trouble());
    let mut waited: Vec<i64> = gone.iter().copied().filter(|seq| *seq < 20).collect();
    waited.sort_unstable();
    assert_eq!(waited, (1..17).collect::<Vec<_>>(), "those that are on their way come back by themselves");
    assert!(!queue.again(1), "it is out of memory");
    assert_eq!(queue.failed(0, NOW), [0]);
}

#[test]
fn a_topic_in_trouble_rests_longer_and_longer_and_what_passes_is_followed_by_more() {
    let mut queue = Queue::new(Limits { failing_of_a_topic: 0, ..REAL });
    let rows: Vec<Seen> = (0..600).map(|seq| seen(seq, "t", &seq.to_string())).collect();
    let (topic, millis) = (Arc::<str>::from("t"), Duration::from_millis);
    assert_eq!(queue.plan(&rows[..1]).take, [0]);
    let mut now = NOW;
    for rest in [100, 200, 400, 800, 1_600, 3_200, 6_400, 6_400] {
        assert_eq!(queue.failed(0, now), [0]);
        assert_eq!(queue.to_be_tried(now + millis(rest - 1)), None);
        now += millis(rest);
        assert_eq!(queue.to_be_tried(now), Some((Arc::clone(&topic), 1)));
        assert_eq!(queue.plan(&rows).take, [0]);
    }
    queue.acknowledged(0, now);
    assert_eq!(queue.to_be_tried(now), Some((Arc::clone(&topic), 8)));
    assert_eq!(queue.plan(&rows[1..]).take.len(), 8);
    queue.acknowledged(1, now);
    assert_eq!(queue.plan(&rows[2..]).take.len(), 64 - 7);
    let _ = queue.failed(2, now);
    assert_eq!(queue.to_be_tried(now + millis(99)), None);
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
    /// It can't be written now.
    Fail(usize),
    /// The pause of one that failed is over.
    Again(usize),
    Time,
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
        3 => (0_usize..8).prop_map(Event::Fail),
        2 => (0_usize..8).prop_map(Event::Again),
        1 => Just(Event::Time),
    ];
    proptest::collection::vec(event, 1..120)
}

const MODEL: Limits = Limits { rows: 32, bytes: 1_000, rows_of_a_line: 4, failing_of_a_topic: 1 };
const TOPICS: [&str; 2] = ["t", "u"];

#[derive(Default)]
struct World {
    next: i64,
    /// Published, not committed: one per key, which is its lock.
    open: BTreeMap<u8, i64>,
    table: BTreeMap<i64, u8>,
    parked: BTreeMap<i64, u8>,
    in_flight: Vec<i64>,
    paused: Vec<i64>,
    now: Duration,
    /// First deliveries by key.
    wire: BTreeMap<u8, Vec<i64>>,
    sent: BTreeSet<i64>,
}

impl World {
    fn look(&mut self, queue: &mut Queue) {
        if queue.has_room() {
            let plan = queue.plan(&shown(queue, &self.rows(), 3));
            self.set_aside(plan);
            while let Some((topic, most)) = queue.to_be_tried(self.now) {
                let rows = self.rows().into_iter().filter(|row| row.line.topic == topic);
                let rows: Vec<Seen> = rows.take(most).collect();
                let plan = queue.plan(&rows);
                let taken = plan.take.len();
                self.set_aside(plan);
                queue.tried(&topic, rows.len(), self.now);
                if taken == 0 {
                    break;
                }
            }
        }
        self.start(queue);
    }

    fn rows(&self) -> Vec<Seen> {
        let is_held = |key: &u8| self.parked.values().any(|parked| parked == key);
        let row = |(seq, key): (&i64, &u8)| Seen {
            held: is_held(key),
            ..seen(*seq, TOPICS[usize::from(*key) % 2], &key.to_string())
        };
        self.table.iter().map(row).collect()
    }

    fn set_aside(&mut self, plan: Plan) {
        for seq in plan.aside {
            if let Some(key) = self.table.remove(&seq) {
                self.parked.insert(seq, key);
            }
        }
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
                queue.acknowledged(seq, self.now);
                self.start(queue);
            }
            Event::Crash => {
                for seq in std::mem::take(&mut self.in_flight).into_iter().step_by(2) {
                    self.deliver(seq);
                }
                self.paused.clear();
                *queue = Queue::new(MODEL);
            }
            Event::Park(at) if *at < self.in_flight.len() => {
                let seq = self.in_flight.remove(*at);
                let key = self.table.remove(&seq).unwrap();
                self.parked.insert(seq, key);
                let _ = queue.parked(seq);
            }
            Event::Release => self.table.append(&mut self.parked),
            Event::Fail(at) if *at < self.in_flight.len() => {
                let seq = self.in_flight.remove(*at);
                if !queue.failed(seq, self.now).contains(&seq) {
                    self.paused.push(seq);
                }
                self.start(queue);
            }
            Event::Again(at) if *at < self.paused.len() => {
                let seq = self.paused.remove(*at);
                self.in_flight.extend(queue.again(seq).then_some(seq));
            }
            Event::Time => self.now += Duration::from_secs(1),
            Event::Publish(_) | Event::Acknowledge(_) | Event::Park(_) | Event::Fail(_) | Event::Again(_) => {}
        }
    }
}

proptest! {
    #[test]
    fn every_row_is_sent_and_each_key_in_its_order(events in events()) {
        let mut world = World::default();
        let mut queue = Queue::new(MODEL);
        for event in &events {
            world.step(&mut queue, event);
            let keys: BTreeSet<u8> = world.in_flight.iter().map(|seq| world.table[seq]).collect();
            prop_assert_eq!(keys.len(), world.in_flight.len(), "one of a key at a time");
            prop_assert!(queue.len() <= MODEL.rows);
        }
        while let Some((&key, _)) = world.open.iter().next() {
            let seq = world.open.remove(&key).unwrap();
            world.table.insert(seq, key);
        }
        world.step(&mut queue, &Event::Release);
        for _ in 0..1_000 {
            for event in [Event::Time, Event::Again(0), Event::Look, Event::Acknowledge(0)] {
                world.step(&mut queue, &event);
            }
        }
        prop_assert!(world.table.is_empty() && queue.len() == 0);
        prop_assert_eq!(world.sent.len() as i64, world.next);
        for sent in world.wire.values() {
            prop_assert!(sent.is_sorted(), "{sent:?}");
        }
    }
}
