//! Which rows of the outbox may be sent now. A queue, not a cursor: it looks at all rows that are visible,
//! lowest number first, so that one whose transaction committed late is not passed over.
//!
//! Rows of one topic and key are a line: only the first is sent, and the next when that is acknowledged.
//! Rows of different lines are on their way together.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// What keeps its order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub topic: Arc<str>,
    pub key: String,
}

/// A visible row, before its payload is read.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub seq: i64,
    pub line: Line,
    pub bytes: usize,
    /// A row of its line is parked, so it has to wait beside it.
    pub held: bool,
}

/// What is to be done with the visible rows.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Plan {
    /// Read these, and [`Queue::start`] those that are first in their lines.
    pub take: Vec<i64>,
    /// Park these behind the parked row of their line.
    pub aside: Vec<i64>,
    /// There may be more to take below what was looked at.
    pub look_deeper: bool,
}

/// How much may be in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub rows: usize,
    pub bytes: usize,
    /// Of one line: more than one, so that the next is at hand when the first is acknowledged.
    pub rows_of_a_line: usize,
}

/// Rows that were taken and are not acknowledged.
#[derive(Debug)]
pub(crate) struct Queue {
    limits: Limits,
    rows: HashMap<i64, (Arc<Line>, usize)>,
    lines: HashMap<Arc<Line>, VecDeque<i64>>,
    by_topic: HashMap<Arc<str>, usize>,
    bytes: usize,
    /// First in their lines, and not started.
    ready: VecDeque<i64>,
}

impl Queue {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            rows: HashMap::new(),
            lines: HashMap::new(),
            by_topic: HashMap::new(),
            bytes: 0,
            ready: VecDeque::new(),
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether so much is free that it is worth looking for more.
    pub(crate) fn has_room(&self) -> bool {
        self.rows.len() <= self.limits.rows / 4 && self.bytes <= self.limits.bytes / 2
    }

    /// Takes what may be taken of the visible rows, which are sorted; `all`: they are all there are.
    pub(crate) fn plan(&mut self, seen: &[Seen], all: bool) -> Plan {
        let mut plan = Plan::default();
        let mut left: HashSet<&Line> = HashSet::new();
        for row in seen {
            if self.rows.contains_key(&row.seq) {
                continue;
            }
            if row.held {
                plan.aside.push(row.seq);
            } else if !left.contains(&row.line) && self.may_take(row) {
                self.take(row);
                plan.take.push(row.seq);
            } else {
                // None of its line may overtake it.
                left.insert(&row.line);
            }
        }
        plan.look_deeper = !all && plan.take.len() < self.limits.rows / 8 && self.has_room();
        plan
    }

    /// A topic that can't be written to would fill all there is and hold up the others, so each may have as
    /// much as is free: half when it is alone, and something is left however many are stuck.
    fn may_take(&self, row: &Seen) -> bool {
        let of_line = self.lines.get(&row.line).map_or(0, VecDeque::len);
        let of_topic = self.by_topic.get(&row.line.topic).copied().unwrap_or(0);
        let fits = self.bytes + self.counted(row) <= self.limits.bytes;
        of_line < self.limits.rows_of_a_line && of_topic < self.limits.rows.saturating_sub(self.rows.len()) && fits
    }

    /// A row that is larger than all memory would wait for ever.
    fn counted(&self, row: &Seen) -> usize {
        row.bytes.min(self.limits.bytes / 2)
    }

    fn take(&mut self, row: &Seen) {
        let line = match self.lines.get_key_value(&row.line) {
            Some((line, _)) => Arc::clone(line),
            None => Arc::new(row.line.clone()),
        };
        let waiting = self.lines.entry(Arc::clone(&line)).or_default();
        if waiting.is_empty() {
            self.ready.push_back(row.seq);
            waiting.push_back(row.seq);
        } else {
            // Behind the first, which may be on its way.
            let at = 1 + waiting.iter().skip(1).take_while(|seq| **seq < row.seq).count();
            waiting.insert(at, row.seq);
        }
        *self.by_topic.entry(Arc::clone(&line.topic)).or_default() += 1;
        let bytes = self.counted(row);
        self.bytes += bytes;
        self.rows.insert(row.seq, (line, bytes));
    }

    /// The next row to send.
    pub(crate) fn start(&mut self) -> Option<i64> {
        self.ready.pop_front()
    }

    /// A row is acknowledged, or is not there any more: the next of its line may be sent.
    pub(crate) fn done(&mut self, seq: i64) {
        let Some(line) = self.remove(seq) else { return };
        let Some(waiting) = self.lines.get_mut(&line) else { return };
        let was_first = waiting.front() == Some(&seq);
        waiting.retain(|other| *other != seq);
        match waiting.front() {
            Some(next) if was_first => self.ready.push_back(*next),
            Some(_) => {}
            None => drop(self.lines.remove(&line)),
        }
    }

    /// A row was parked: nothing of its line is sent. Returns the others that were taken; they are
    /// seen again.
    pub(crate) fn parked(&mut self, seq: i64) -> Vec<i64> {
        let Some((line, _)) = self.rows.get(&seq) else { return Vec::new() };
        let line = Arc::clone(line);
        let waiting = self.lines.remove(&line).unwrap_or_default();
        for seq in &waiting {
            self.remove(*seq);
        }
        self.ready.retain(|ready| !waiting.contains(ready));
        waiting.into_iter().filter(|other| *other != seq).collect()
    }

    fn remove(&mut self, seq: i64) -> Option<Arc<Line>> {
        let (line, bytes) = self.rows.remove(&seq)?;
        self.bytes -= bytes;
        if let Some(count) = self.by_topic.get_mut(&line.topic) {
            *count -= 1;
            if *count == 0 {
                self.by_topic.remove(&line.topic);
            }
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests;
