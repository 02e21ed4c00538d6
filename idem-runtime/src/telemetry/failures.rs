//! The last failures of a group, by what failed.

use std::collections::BTreeMap;

use crate::kafka::consumer::Partition;

/// Kinds that are kept; the one that is longest ago makes room.
const MOST: usize = 50;

/// An attempt that failed.
pub(crate) struct Failed {
    pub handler: String,
    /// An error type, an SQLSTATE, a literal of the program: nothing of a payload.
    pub error: String,
    /// What follows: `retry`, `dead-letter` or `wait`.
    pub next: &'static str,
    pub partition: Partition,
    pub offset: i64,
}

/// Failures of one handler with one error and one consequence.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    pub handler: String,
    pub error: String,
    pub next: &'static str,
    pub count: u64,
    pub first_millis: u64,
    pub last_millis: u64,
    /// Where the last one was.
    pub partition: Partition,
    pub offset: i64,
}

#[derive(Default)]
pub(crate) struct Failures {
    kinds: BTreeMap<(String, String, &'static str), Kind>,
}

impl Failures {
    pub(super) fn note(&mut self, failed: Failed, now: u64) {
        let Failed { handler, error, next, partition, offset } = failed;
        let key = (handler, error, next);
        if let Some(kind) = self.kinds.get_mut(&key) {
            kind.count += 1;
            (kind.last_millis, kind.partition, kind.offset) = (now, partition, offset);
            return;
        }
        if self.kinds.len() >= MOST {
            let oldest = self.kinds.iter().min_by_key(|(_, kind)| kind.last_millis).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.kinds.remove(&oldest));
        }
        let (handler, error, next) = key.clone();
        let kind = Kind { handler, error, next, count: 1, first_millis: now, last_millis: now, partition, offset };
        self.kinds.insert(key, kind);
    }

    /// The last one first.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.kinds.values().cloned().collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.last_millis));
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_and_the_oldest_makes_room() {
        let mut failures = Failures::default();
        let failed = |error: usize, offset| Failed {
            handler: "h".to_owned(),
            error: error.to_string(),
            next: "retry",
            partition: Partition { topic: "t".into(), number: 0 },
            offset,
        };
        for error in 0..MOST {
            failures.note(failed(error, 1), error as u64);
        }
        failures.note(failed(0, 7), 1_000);
        failures.note(failed(MOST, 8), 1_001);
        let kinds = failures.kinds();
        assert_eq!(kinds.len(), MOST);
        assert_eq!((kinds[0].offset, kinds[1].offset, kinds[1].count), (8, 7, 2));
        assert!(!kinds.iter().any(|kind| kind.error == "1"), "the one that is longest ago");
    }
}
