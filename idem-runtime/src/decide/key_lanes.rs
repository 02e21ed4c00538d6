//! Which queued events may run at once: different keys side by side, one key in order.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Items waiting or running, by key. An item of a key never overtakes an earlier one of that key,
/// and at most `concurrency` items run at once.
#[derive(Debug)]
pub(crate) struct KeyLanes<K, T> {
    concurrency: usize,
    running: usize,
    // A key is here while one of its items is ready or runs; the queue holds those behind it.
    behind: HashMap<K, VecDeque<T>>,
    // Items whose key is free, in the order of arrival.
    ready: VecDeque<(K, T)>,
    len: usize,
}

impl<K: Hash + Eq + Clone, T> KeyLanes<K, T> {
    /// Room for this many running items.
    pub(crate) fn new(concurrency: usize) -> Self {
        Self { concurrency, running: 0, behind: HashMap::new(), ready: VecDeque::new(), len: 0 }
    }

    /// Items waiting or running.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an item behind those of its key.
    pub(crate) fn push(&mut self, key: K, item: T) {
        self.len += 1;
        match self.behind.get_mut(&key) {
            Some(queue) => queue.push_back(item),
            None => {
                self.behind.insert(key.clone(), VecDeque::new());
                self.ready.push_back((key, item));
            }
        }
    }

    /// The next item to start among those that are wanted, if one may start now.
    #[must_use]
    pub(crate) fn start(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<(K, T)> {
        if self.running == self.concurrency {
            return None;
        }
        let at = self.ready.iter().position(|(_, item)| is_wanted(item))?;
        let next = self.ready.remove(at)?;
        self.running += 1;
        Some(next)
    }

    /// Items that nothing but their start is missing of.
    pub(crate) fn startable(&self) -> impl Iterator<Item = &T> {
        let free = self.running < self.concurrency;
        self.ready.iter().filter(move |_| free).map(|(_, item)| item)
    }

    /// Notes that the running item of this key is done.
    pub(crate) fn finish(&mut self, key: K) {
        self.running -= 1;
        self.len -= 1;
        match self.behind.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(follower) => self.ready.push_back((key, follower)),
            None => {
                self.behind.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_at_a_time_is_strict_order() {
        let mut lanes = KeyLanes::new(1);
        for (key, item) in [("a", 1), ("b", 2), ("a", 3)] {
            lanes.push(key, item);
        }
        let mut order = vec![];
        while let Some((key, item)) = lanes.start(|_| true) {
            assert!(lanes.start(|_| true).is_none());
            order.push(item);
            lanes.finish(key);
        }
        assert_eq!(order, [1, 2, 3]);
    }

    #[test]
    fn what_is_not_wanted_keeps_its_place() {
        let mut lanes = KeyLanes::new(3);
        for (key, item) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
            lanes.push(key, item);
        }
        assert_eq!(lanes.start(|item| *item > 2), Some(("c", 4)), "3 is behind 1");
        assert_eq!(lanes.start(|item| *item > 2), None);
        assert_eq!(lanes.start(|_| true), Some(("a", 1)));
        lanes.finish("a");
        assert_eq!(lanes.start(|item| *item > 2), Some(("a", 3)));
        assert_eq!(lanes.start(|_| true), Some(("b", 2)));
    }

    proptest! {
        #[test]
        fn a_key_keeps_its_order_and_nothing_is_stranded(
            keys in prop::collection::vec(0_u8..5, 0..80),
            concurrency in 1_usize..6,
            choices in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let mut lanes = KeyLanes::new(concurrency);
            for (item, &key) in keys.iter().enumerate() {
                lanes.push(key, item);
            }
            let (mut running, mut started) = (Vec::new(), Vec::new());
            let mut choices = choices.iter();
            loop {
                while let Some((key, item)) = lanes.start(|_| true) {
                    prop_assert!(running.iter().all(|&other| other != key), "one of a key at a time");
                    running.push(key);
                    started.push((key, item));
                }
                prop_assert!(running.len() <= concurrency);
                if running.is_empty() {
                    break;
                }
                let at = choices.next().map_or(0, |choice| choice.index(running.len()));
                lanes.finish(running.swap_remove(at));
            }
            prop_assert_eq!(started.len(), keys.len());
            prop_assert_eq!(lanes.len(), 0);
            for key in 0..5 {
                let items: Vec<usize> = started.iter().filter(|(k, _)| *k == key).map(|(_, item)| *item).collect();
                prop_assert!(items.is_sorted(), "{:?}", items);
            }
        }
    }
}
