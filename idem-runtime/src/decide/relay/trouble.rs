//! Topics that can't be written to now: one is missing, the right to write it is, or a partition has no leader.
//!
//! Such a topic rests. None of its rows is in memory meanwhile, so it takes no room from others; afterwards the lowest
//! one is tried, and with each that passes more of them, until the topic is one like the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The first rest, which doubles so many times at most.
const REST: Duration = Duration::from_millis(100);
const DOUBLINGS: u32 = 6;
/// How much more is tried when something has passed.
const GROWTH: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Trouble {
    topics: BTreeMap<Arc<str>, Topic>,
}

#[derive(Debug)]
struct Topic {
    /// How many of its rows may be in memory.
    window: usize,
    failures: u32,
    rests_until: Duration,
}

impl Trouble {
    pub(super) fn has(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    pub(super) fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    pub(super) fn window(&self, topic: &str) -> usize {
        self.topics.get(topic).map_or(usize::MAX, |topic| topic.window)
    }

    /// Those that may be tried, the one first that waits longest for it.
    pub(super) fn rested(&self, now: Duration) -> impl Iterator<Item = &Arc<str>> {
        let mut rested: Vec<_> = self.topics.iter().filter(|(_, topic)| topic.rests_until <= now).collect();
        rested.sort_by_key(|(_, topic)| topic.rests_until);
        rested.into_iter().map(|(name, _)| name)
    }

    /// A row of it failed. What was on its way when the rest began does not prolong it.
    pub(super) fn failed(&mut self, name: &Arc<str>, now: Duration) {
        let topic = self.topics.entry(Arc::clone(name)).or_insert(Topic {
            window: 1,
            failures: 0,
            rests_until: Duration::ZERO,
        });
        topic.window = 1;
        if topic.rests_until <= now {
            topic.rests_until = now + REST * (1 << topic.failures.min(DOUBLINGS));
            topic.failures += 1;
        }
    }

    /// A row that was tried has passed. With a window of `whole` the trouble is over.
    pub(super) fn passed(&mut self, name: &str, now: Duration, whole: usize) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        topic.window = topic.window.saturating_mul(GROWTH);
        topic.failures = 0;
        topic.rests_until = topic.rests_until.min(now);
        if topic.window >= whole {
            self.topics.remove(name);
        }
    }

    /// It comes after the others that have rested.
    pub(super) fn looked_at(&mut self, name: &str, now: Duration) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.rests_until = topic.rests_until.max(now);
        }
    }

    /// Nothing waits for it.
    pub(super) fn forget(&mut self, name: &str) {
        self.topics.remove(name);
    }
}
