//! Which rows of the outbox may be sent now. A queue, not a cursor: it looks at all rows that are visible,
//! lowest number first, so that one whose transaction committed late is not passed over.
//!
//! Rows of one topic and key are a line: only the first is sent, and the next when that is acknowledged.
//! Rows of different lines are on their way together.
//!
//! What can't go on must not fill the memory, or be looked at again and again: a line that has enough rows in memory
//! is passed over, and a topic that can't be written to rests (`trouble.rs`).

mod trouble;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use self::trouble::Trouble;

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
}

/// What need not be looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PassedOver {
    /// Topics that can't be written to now.
    pub topics: Vec<Arc<str>>,
    /// Lines that have enough rows in memory, or stand still.
    pub lines: Vec<Arc<Line>>,
}

impl PassedOver {
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.lines.is_empty()
    }
}

/// How much may be in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub rows: usize,
    pub bytes: usize,
    /// Of one line: more than one, so that the next is at hand when the first is acknowledged.
    pub rows_of_a_line: usize,
    /// Rows of a topic that fail and are tried again by themselves; with one more the topic rests.
    pub failing_of_a_topic: usize,
}

/// Rows that were taken and are not acknowledged.
#[derive(Debug)]
pub(crate) struct Queue {
    limits: Limits,
    rows: HashMap<i64, Held>,
    lines: HashMap<Arc<Line>, VecDeque<i64>>,
    by_topic: HashMap<Arc<str>, Share>,
    bytes: usize,
    /// First in their lines, and not started.
    ready: VecDeque<i64>,
    /// Were not acknowledged at least once. They are the first of their lines, and alone.
    failing: HashSet<i64>,
    trouble: Trouble,
}

#[derive(Debug)]
struct Held {
    line: Arc<Line>,
    bytes: usize,
    /// It is to show whether its topic can be written to again.
    is_trial: bool,
    /// It was not acknowledged, and waits to be sent again.
    is_paused: bool,
}

/// What a topic has in memory.
#[derive(Debug, Default, Clone, Copy)]
struct Share {
    rows: usize,
    bytes: usize,
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
            failing: HashSet::new(),
            trouble: Trouble::default(),
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

    /// Takes what may be taken of the visible rows, which are sorted.
    pub(crate) fn plan(&mut self, seen: &[Seen]) -> Plan {
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
        plan
    }

    /// Whether so many were taken that it is worth looking for more at once.
    pub(crate) fn is_much(&self, taken: usize) -> bool {
        taken >= self.limits.rows / 8
    }

    /// What the next look need not show; with `long_lines` also lines of which little is gone of what was taken: it
    /// costs the server more, and shows what is behind them.
    pub(crate) fn passed_over(&self, long_lines: bool) -> PassedOver {
        let enough = self.limits.rows_of_a_line / 4;
        let stands = |waiting: &VecDeque<i64>| waiting.front().is_some_and(|first| self.failing.contains(first));
        let is_long = |waiting: &VecDeque<i64>| long_lines && (waiting.len() > enough || stands(waiting));
        let lines = self.lines.iter().filter(|(_, waiting)| is_long(waiting));
        PassedOver {
            topics: self.trouble.topics().cloned().collect(),
            lines: lines.map(|(line, _)| Arc::clone(line)).collect(),
        }
    }

    /// A topic must not fill all there is and hold up the others, so each may have as much as is free: half when it
    /// is alone.
    fn may_take(&self, row: &Seen) -> bool {
        let Limits { rows, bytes, rows_of_a_line, .. } = self.limits;
        let line = self.lines.get(&row.line);
        let stands = line.and_then(VecDeque::front).is_some_and(|first| self.failing.contains(first));
        let share = self.share(&row.line.topic);
        line.map_or(0, VecDeque::len) < rows_of_a_line
            && !stands
            && share.rows < rows.saturating_sub(self.rows.len()).min(self.trouble.window(&row.line.topic))
            && share.bytes <= bytes.saturating_sub(self.bytes)
            && self.bytes + self.counted(row) <= bytes
    }

    fn share(&self, topic: &str) -> Share {
        self.by_topic.get(topic).copied().unwrap_or_default()
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
        let bytes = self.counted(row);
        let share = self.by_topic.entry(Arc::clone(&line.topic)).or_default();
        share.rows += 1;
        share.bytes += bytes;
        self.bytes += bytes;
        let is_trial = self.trouble.has(&line.topic);
        self.rows.insert(row.seq, Held { line, bytes, is_trial, is_paused: false });
    }

    /// The next row to send.
    pub(crate) fn start(&mut self) -> Option<i64> {
        self.ready.pop_front()
    }

    /// A row is acknowledged, at this time.
    pub(crate) fn acknowledged(&mut self, seq: i64, now: Duration) {
        if let Some(Held { line, is_trial: true, .. }) = self.rows.get(&seq) {
            self.trouble.passed(&line.topic, now, self.limits.rows / 2);
        }
        self.gone(seq);
    }

    /// A row is not there any more: the next of its line may be sent.
    pub(crate) fn gone(&mut self, seq: i64) {
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
        let mut line = self.give_up(seq);
        line.retain(|other| *other != seq);
        line
    }

    /// A row waits, and is sent again if [`again`](Self::again) says so.
    pub(crate) fn pause(&mut self, seq: i64) {
        if let Some(held) = self.rows.get_mut(&seq) {
            held.is_paused = true;
        }
    }

    /// Whether a row that waited is still to be sent.
    pub(crate) fn again(&mut self, seq: i64) -> bool {
        self.rows.get_mut(&seq).is_some_and(|held| std::mem::take(&mut held.is_paused))
    }

    /// A row can't be written now: it waits, or its topic rests. Returns those that are out of memory for that, it
    /// may be among them; they are seen again.
    pub(crate) fn failed(&mut self, seq: i64, now: Duration) -> Vec<i64> {
        let Some(held) = self.rows.get(&seq) else { return Vec::new() };
        let line = Arc::clone(&held.line);
        let topic = &line.topic;
        self.pause(seq);
        self.failing.insert(seq);
        let rested = self.trouble.has(topic);
        if rested || self.too_much_fails(topic) {
            self.trouble.failed(topic, now);
            let mut all = self.give_up(seq);
            if !rested {
                let is_idle =
                    |seq: &&i64| self.rows.get(seq).is_some_and(|row| row.is_paused && row.line.topic == *topic);
                let idle: Vec<i64> = self.failing.iter().filter(is_idle).copied().collect();
                all.extend(idle.into_iter().flat_map(|seq| self.give_up(seq)));
            }
            return all;
        }
        // What is behind it would only fill the memory.
        let behind: Vec<i64> =
            self.lines.get_mut(&line).map(|waiting| waiting.drain(1..).collect()).unwrap_or_default();
        for seq in &behind {
            self.remove(*seq);
        }
        behind
    }

    /// Whether rows that can't be written leave too little for the others.
    fn too_much_fails(&self, topic: &str) -> bool {
        let failing = || self.failing.iter().filter_map(|seq| self.rows.get(seq));
        self.failing.len() > self.limits.rows / 16
            || failing().filter(|row| *row.line.topic == *topic).count() > self.limits.failing_of_a_topic
            || failing().map(|row| row.bytes).sum::<usize>() > self.limits.bytes / 8
    }

    /// A topic that has rested, and how many of its rows are to be looked at, from the lowest on. Those that are being
    /// tried must not fill the memory either.
    pub(crate) fn to_be_tried(&self, now: Duration) -> Option<(Arc<str>, usize)> {
        let shares = || self.trouble.topics().map(|topic| self.share(topic));
        let rows: usize = shares().map(|share| share.rows).sum();
        let bytes: usize = shares().map(|share| share.bytes).sum();
        if rows > self.limits.rows / 16 || bytes > self.limits.bytes / 8 {
            return None;
        }
        // Its rows in memory are shown too.
        let most = |topic: &str| self.share(topic).rows + self.trouble.window(topic);
        let has_room = |topic: &&Arc<str>| self.share(topic).rows < self.trouble.window(topic);
        self.trouble.rested(now).find(has_room).map(|topic| (Arc::clone(topic), most(topic)))
    }

    /// A topic was looked at: `rows` were taken, `seen` are there in all.
    pub(crate) fn tried(&mut self, topic: &str, seen: usize, now: Duration) {
        if seen == 0 {
            self.trouble.forget(topic);
        } else {
            self.trouble.looked_at(topic, now);
        }
    }

    /// Whether some topic can't be written to.
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.trouble.topics().next().is_some()
    }

    /// Removes the line of a row.
    fn give_up(&mut self, seq: i64) -> Vec<i64> {
        let Some(held) = self.rows.get(&seq) else { return Vec::new() };
        let line = Arc::clone(&held.line);
        let waiting = self.lines.remove(&line).unwrap_or_default();
        for seq in &waiting {
            self.remove(*seq);
        }
        self.ready.retain(|ready| !waiting.contains(ready));
        waiting.into()
    }

    fn remove(&mut self, seq: i64) -> Option<Arc<Line>> {
        let Held { line, bytes, .. } = self.rows.remove(&seq)?;
        self.failing.remove(&seq);
        self.bytes -= bytes;
        if let Some(share) = self.by_topic.get_mut(&line.topic) {
            share.rows -= 1;
            share.bytes -= bytes;
            if share.rows == 0 {
                self.by_topic.remove(&line.topic);
            }
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests;
