//! `order = "key"`: what is parked on a partition, and what follows for an event of a parked key.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use super::step::Step;

/// The parked rows of one partition by their keys, without their values.
///
/// A key is parked while it has a row: its events run one after another, the lowest offset first.
#[derive(Debug)]
pub(crate) struct Parked<K> {
    keys: HashMap<K, Rows>,
    // The heads that nobody drives, by when they are due.
    waiting: BTreeSet<(u64, K)>,
    len: usize,
    limit: usize,
}

#[derive(Debug, Default)]
struct Rows {
    // When each is due, by its offset.
    due: BTreeMap<i64, u64>,
    driven: bool,
}

/// What to do with a record that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Arrival {
    /// Nothing of its key waits: it is handled.
    Handle,
    /// It is parked behind the rows of its key.
    Behind,
    /// Its own row is there: it was delivered before.
    Known,
}

impl<K: Hash + Ord + Copy> Parked<K> {
    /// Nothing parked; full at `limit` rows.
    pub(crate) fn new(limit: usize) -> Self {
        Self { keys: HashMap::new(), waiting: BTreeSet::new(), len: 0, limit }
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the partition must wait until some of its rows are gone.
    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// What to do with a record that arrives, for the first time or again.
    pub(crate) fn arrival(&self, key: K, offset: i64) -> Arrival {
        match self.keys.get(&key) {
            None => Arrival::Handle,
            Some(rows) if rows.due.contains_key(&offset) => Arrival::Known,
            Some(_) => Arrival::Behind,
        }
    }

    /// Notes a new row. Whoever drives the key goes on.
    pub(crate) fn insert(&mut self, key: K, offset: i64, due: u64) {
        let driven = self.keys.get(&key).is_some_and(|rows| rows.driven);
        self.change(key, driven, |rows| rows.insert(offset, due));
    }

    /// Notes that a row is due at another time now. Whoever drove the key is done with it.
    pub(crate) fn postpone(&mut self, key: K, offset: i64, due: u64) {
        self.change(key, false, |rows| rows.insert(offset, due));
    }

    /// Notes that the row is gone. Whoever drove the key is done with it.
    pub(crate) fn remove(&mut self, key: K, offset: i64) {
        self.change(key, false, |rows| rows.remove(&offset));
    }

    /// Takes a key whose head is due. It is not given again until its head is postponed or
    /// removed.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<K> {
        let &(due, key) = self.waiting.first()?;
        if due > now {
            return None;
        }
        self.waiting.pop_first();
        if let Some(rows) = self.keys.get_mut(&key) {
            rows.driven = true;
        }
        Some(key)
    }

    /// When the next head is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// The row of a key that comes next.
    pub(crate) fn head(&self, key: K) -> Option<i64> {
        self.keys.get(&key)?.due.first_key_value().map(|(offset, _)| *offset)
    }

    fn change(&mut self, key: K, driven: bool, change: impl FnOnce(&mut BTreeMap<i64, u64>) -> Option<u64>) {
        let rows = self.keys.entry(key).or_default();
        if let (false, Some((_, &due))) = (rows.driven, rows.due.first_key_value()) {
            self.waiting.remove(&(due, key));
        }
        let before = rows.due.len();
        let _before = change(&mut rows.due);
        self.len = self.len + rows.due.len() - before;
        rows.driven = driven;
        match rows.due.first_key_value() {
            Some(_) if driven => {}
            Some((_, &due)) => drop(self.waiting.insert((due, key))),
            None => drop(self.keys.remove(&key)),
        }
    }
}

/// Where an event waits when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In retry topics: it has no order to keep.
    Topics,
    /// In a row that it does not have yet.
    Key,
    /// In its row.
    Row,
}

/// What happens to the row of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Keep {
    /// It has none and gets none, or keeps it as it is.
    Nothing,
    /// It gets one, due after the tier's delay.
    Park(Duration),
    /// Its row is due again after the tier's delay.
    Postpone(Duration),
    /// Its row goes, after all else that the step asks for.
    Remove,
}

/// What happens to the row of an event whose next step this is.
pub(crate) fn keep(place: Place, step: &Step) -> Keep {
    match (place, step) {
        (Place::Key, Step::Retry { delay }) => Keep::Park(*delay),
        (Place::Row, Step::Retry { delay }) => Keep::Postpone(*delay),
        (Place::Row, Step::Advance | Step::DeadLetter { .. }) => Keep::Remove,
        (Place::Row, Step::WaitInPlace | Step::StopRun) | (Place::Topics | Place::Key, _) => Keep::Nothing,
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::outcome::Reason;

    #[test]
    fn a_key_is_parked_while_it_has_rows() {
        let mut parked = Parked::new(9);
        assert_eq!(parked.arrival('a', 3), Arrival::Handle);
        parked.insert('a', 3, 100);
        let cases =
            [('a', 3, Arrival::Known), ('a', 4, Arrival::Behind), ('a', 2, Arrival::Behind), ('b', 4, Arrival::Handle)];
        for (key, offset, arrival) in cases {
            assert_eq!(parked.arrival(key, offset), arrival, "{key}/{offset}");
        }
        parked.remove('a', 3);
        assert_eq!((parked.arrival('a', 3), parked.len()), (Arrival::Handle, 0));
    }

    #[test]
    fn heads_are_driven_when_due_and_one_of_a_key_at_a_time() {
        let mut parked = Parked::new(9);
        parked.insert('a', 3, 100);
        parked.insert('a', 5, 0);
        parked.insert('b', 4, 50);
        assert_eq!((parked.next_due(), parked.take_due(49)), (Some(50), None), "a's follower is due, not its head");
        assert_eq!((parked.take_due(100), parked.take_due(100), parked.take_due(100)), (Some('b'), Some('a'), None));
        // Followers that arrive meanwhile do not make it two.
        parked.insert('a', 7, 0);
        assert_eq!((parked.take_due(100), parked.head('a')), (None, Some(3)));
        parked.postpone('a', 3, 200);
        assert_eq!((parked.take_due(199), parked.take_due(200)), (None, Some('a')));
        parked.remove('a', 3);
        assert_eq!((parked.take_due(200), parked.head('a')), (Some('a'), Some(5)), "the next one at once");
    }

    #[test]
    fn a_redelivered_event_goes_before_the_rows_behind_it() {
        let mut parked = Parked::new(9);
        parked.insert('a', 5, 1_000);
        parked.insert('a', 3, 0);
        assert_eq!((parked.take_due(0), parked.head('a')), (Some('a'), Some(3)));
        parked.remove('a', 3);
        assert_eq!((parked.take_due(999), parked.next_due()), (None, Some(1_000)));
    }

    #[test]
    fn it_is_full_at_its_limit_until_a_row_goes() {
        let mut parked = Parked::new(2);
        parked.insert('a', 1, 0);
        parked.insert('a', 1, 0);
        assert!(!parked.is_full());
        parked.insert('b', 2, 0);
        assert!(parked.is_full());
        parked.remove('b', 2);
        parked.remove('b', 2);
        assert_eq!((parked.is_full(), parked.len()), (false, 1));
    }

    #[test]
    fn every_step_has_its_consequence_for_the_row() {
        let delay = Duration::from_secs(1);
        let steps = [
            Step::Advance,
            Step::WaitInPlace,
            Step::Retry { delay },
            Step::DeadLetter { reason: Reason::Exhausted },
            Step::StopRun,
        ];
        use Keep::{Nothing, Park, Postpone, Remove};
        let cases = [
            (Place::Topics, [Nothing, Nothing, Nothing, Nothing, Nothing]),
            (Place::Key, [Nothing, Nothing, Park(delay), Nothing, Nothing]),
            (Place::Row, [Remove, Nothing, Postpone(delay), Remove, Nothing]),
        ];
        for (place, expected) in cases {
            for (step, expected) in steps.iter().zip(expected) {
                assert_eq!(keep(place, step), expected, "{place:?} {step:?}");
            }
        }
    }
}
