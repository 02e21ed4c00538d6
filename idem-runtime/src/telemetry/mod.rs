//! What is counted: for Prometheus, through the `metrics` crate, and in memory for the admin server.
//!
//! Labels are bounded: groups, handlers, topics and partitions of the program, and words of the library.

#![cfg_attr(not(feature = "admin"), allow(dead_code, reason = "the admin server shows it"))]

mod failures;
mod names;
pub(crate) mod open_calls;
mod otel;
pub(crate) mod spans;
pub(crate) mod trace_context;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram};

use self::failures::Failures;
pub(crate) use self::failures::{Failed, Kind};
#[cfg(feature = "admin")]
pub(crate) use self::names::{AGE_BUCKETS, DURATION_BUCKETS, OF_PARTITIONS};
pub(crate) use self::names::{describe, outbox};
use crate::clock;
use crate::decide::outcome::Reason;
use crate::kafka::consumer::Partition;

/// How an event was settled, as the label `outcome` says it.
pub(crate) const OUTCOMES: [&str; 7] = ["done", "duplicate", "stale", "expired", "unmatched", "retry", "dead-letter"];

/// Everything that this process counts, for who shows it.
#[derive(Default)]
pub(crate) struct Registry {
    groups: Mutex<Vec<Arc<GroupStats>>>,
}

impl Registry {
    pub(crate) fn add(&self, group: Arc<GroupStats>) {
        lock(&self.groups).push(group);
    }

    pub(crate) fn groups(&self) -> Vec<Arc<GroupStats>> {
        lock(&self.groups).clone()
    }
}

/// What is counted of one group.
pub(crate) struct GroupStats {
    pub name: Arc<str>,
    pub handlers: Vec<HandlerStats>,
    in_flight: (Gauge, AtomicI64),
    rebalances: (Counter, AtomicU64),
    letters: Mutex<BTreeMap<&'static str, u64>>,
    failures: Mutex<Failures>,
    lanes: Mutex<BTreeMap<Partition, LaneView>>,
}

/// What is counted of one handler; without a name, of events that no handler took.
pub(crate) struct HandlerStats {
    pub name: &'static str,
    pub topic: &'static str,
    outcomes: [(Counter, AtomicU64); OUTCOMES.len()],
    duration: Histogram,
    calls: AtomicU64,
    call_micros: AtomicU64,
    age: Histogram,
    /// Of the last finished event; [`u64::MAX`] before the first.
    last_age_millis: AtomicU64,
}

/// A partition that this member works on.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaneView {
    pub position: i64,
    /// Events that are not handled yet; none: the broker has not said.
    pub lag: Option<i64>,
    /// Bytes that wait in memory.
    pub queued_bytes: usize,
    /// Why its brake is engaged.
    pub brake: Option<&'static str>,
    /// Since when its position has not moved although there is work.
    pub stalled_for: Option<Duration>,
}

impl GroupStats {
    /// For the handlers with these names and topics.
    pub(crate) fn new(name: Arc<str>, handlers: impl Iterator<Item = (&'static str, &'static str)>) -> Self {
        let label = name.to_string();
        // From the first scrape on, so that nobody has to tell zero from nothing.
        for reason in Reason::ALL {
            metrics::counter!("idem_dlq_total", "group" => label.clone(), "reason" => reason.as_str()).increment(0);
        }
        metrics::gauge!("idem_lane_brake", "group" => label.clone()).set(0.0);
        metrics::gauge!("idem_parked_events", "group" => label.clone()).set(0.0);
        Self {
            handlers: handlers.chain([("", "")]).map(|(name, topic)| HandlerStats::new(name, topic)).collect(),
            in_flight: (metrics::gauge!("idem_in_flight", "group" => label.clone()), AtomicI64::new(0)),
            rebalances: (metrics::counter!("idem_rebalances_total", "group" => label), AtomicU64::new(0)),
            letters: Mutex::default(),
            failures: Mutex::default(),
            lanes: Mutex::default(),
            name,
        }
    }

    /// Counts an event that is settled. `event_millis` is when it was published.
    pub(crate) fn settled(&self, handler: &str, outcome: &'static str, event_millis: Option<i64>) {
        let Some(stats) = self.handler(handler) else { return };
        stats.count(outcome, 1);
        stats.aged(event_millis);
    }

    /// Counts events of one handler that were settled together, with their times.
    pub(crate) fn settled_many(&self, handler: &str, outcome: &'static str, times: impl Iterator<Item = Option<i64>>) {
        let Some(stats) = self.handler(handler) else { return };
        let count = times.map(|millis| stats.aged(millis)).count();
        if count > 0 {
            stats.count(outcome, count as u64);
        }
    }

    /// Counts a dead letter.
    pub(crate) fn dead_letter(&self, reason: Reason) {
        let reason = reason.as_str();
        metrics::counter!("idem_dlq_total", "group" => self.name.to_string(), "reason" => reason).increment(1);
        *lock(&self.letters).entry(reason).or_default() += 1;
    }

    /// Notes what failed, in words without a payload.
    pub(crate) fn failed(&self, failed: Failed) {
        lock(&self.failures).note(failed, clock::unix_millis());
    }

    /// Counts events in progress for as long as the returned value lives.
    pub(crate) fn in_flight(&self, events: usize) -> InFlight<'_> {
        let events = i64::try_from(events).unwrap_or(i64::MAX);
        self.change_in_flight(events);
        InFlight { group: self, events }
    }

    fn change_in_flight(&self, by: i64) {
        let (gauge, count) = &self.in_flight;
        count.fetch_add(by, Relaxed);
        gauge.increment(by as f64);
    }

    /// Measures a call of a handler, also one that is dropped in the middle.
    pub(crate) fn call(&self, handler: &str) -> Call<'_> {
        Call { handler: self.handler(handler), started: Instant::now() }
    }

    pub(crate) fn rebalanced(&self) {
        self.rebalances.0.increment(1);
        self.rebalances.1.fetch_add(1, Relaxed);
    }

    /// The partitions that this member works on.
    pub(crate) fn lanes(&self) -> MutexGuard<'_, BTreeMap<Partition, LaneView>> {
        lock(&self.lanes)
    }

    pub(crate) fn failures(&self) -> Vec<Kind> {
        lock(&self.failures).kinds()
    }

    pub(crate) fn letters(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.letters).clone()
    }

    pub(crate) fn events_in_flight(&self) -> i64 {
        self.in_flight.1.load(Relaxed)
    }

    pub(crate) fn rebalances(&self) -> u64 {
        self.rebalances.1.load(Relaxed)
    }

    fn handler(&self, name: &str) -> Option<&HandlerStats> {
        self.handlers.iter().find(|handler| handler.name == name)
    }
}

impl HandlerStats {
    fn new(name: &'static str, topic: &'static str) -> Self {
        metrics::gauge!("idem_circuit_open", "handler" => name).set(0.0);
        let counter = |outcome| metrics::counter!("idem_events_total", "handler" => name, "outcome" => outcome);
        Self {
            name,
            topic,
            outcomes: OUTCOMES.map(|outcome| (counter(outcome), AtomicU64::new(0))),
            duration: metrics::histogram!("idem_handler_duration_seconds", "handler" => name),
            calls: AtomicU64::new(0),
            call_micros: AtomicU64::new(0),
            age: metrics::histogram!("idem_event_age_seconds", "handler" => name),
            last_age_millis: AtomicU64::new(u64::MAX),
        }
    }

    fn count(&self, outcome: &str, events: u64) {
        if let Some(at) = OUTCOMES.iter().position(|known| *known == outcome) {
            let (counter, count) = &self.outcomes[at];
            counter.increment(events);
            count.fetch_add(events, Relaxed);
        }
    }

    fn aged(&self, event_millis: Option<i64>) {
        let published = event_millis.and_then(|millis| u64::try_from(millis).ok());
        let Some(age) = published.map(|published| clock::unix_millis().saturating_sub(published)) else { return };
        self.age.record(Duration::from_millis(age));
        self.last_age_millis.store(age, Relaxed);
    }

    /// How many events were settled in each way, in the order of [`OUTCOMES`].
    pub(crate) fn outcomes(&self) -> [u64; OUTCOMES.len()] {
        std::array::from_fn(|at| self.outcomes[at].1.load(Relaxed))
    }

    /// Calls of the handler, and the time that they took together.
    pub(crate) fn calls(&self) -> (u64, Duration) {
        (self.calls.load(Relaxed), Duration::from_micros(self.call_micros.load(Relaxed)))
    }

    /// How long ago the last finished event had been published when it was finished.
    pub(crate) fn last_age(&self) -> Option<Duration> {
        Some(self.last_age_millis.load(Relaxed)).filter(|age| *age != u64::MAX).map(Duration::from_millis)
    }
}

/// Events in progress.
pub(crate) struct InFlight<'a> {
    group: &'a GroupStats,
    events: i64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.group.change_in_flight(-self.events);
    }
}

/// A call of a handler that runs.
pub(crate) struct Call<'a> {
    handler: Option<&'a HandlerStats>,
    started: Instant,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(handler) = self.handler {
            let took = self.started.elapsed();
            handler.duration.record(took);
            handler.calls.fetch_add(1, Relaxed);
            handler.call_micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        }
    }
}

/// A panic inside leaves a count as it was, which is good enough.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_in_the_middle_is_counted_too() {
        let group = GroupStats::new("g".into(), [("h", "t")].into_iter());
        {
            let _in_flight = group.in_flight(3);
            let _call = group.call("h");
            assert_eq!(group.events_in_flight(), 3);
        }
        assert_eq!((group.events_in_flight(), group.handlers[0].calls().0), (0, 1));
    }

    #[test]
    fn settled_events_are_counted_by_outcome_and_have_an_age() {
        let group = GroupStats::new("g".into(), [("h", "t")].into_iter());
        let now = i64::try_from(clock::unix_millis()).unwrap();
        group.settled("h", "done", Some(now - 5_000));
        group.settled_many("h", "duplicate", [None, Some(now + 60_000)].into_iter());
        group.settled("nobody", "done", None);
        group.settled("", "unmatched", None);
        assert_eq!(group.handlers[0].outcomes()[..2], [1, 2]);
        assert_eq!(group.handlers[0].last_age(), Some(Duration::ZERO), "a clock that is ahead");
        assert_eq!(group.handlers[1].outcomes()[4], 1);
    }
}
