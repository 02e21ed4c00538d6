//! Which rows of the dedup table may go. All times are milliseconds since the Unix epoch, by the
//! database's clock.

/// How long rows are kept, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// A row is kept for so long after its event was processed.
    pub window: i64,
    /// Clocks, and the order of events in a topic, may differ by so much.
    pub skew: i64,
    /// The longest that a group which still has to read can keep a row, after its event was processed.
    pub max_hold: i64,
}

/// What a group's recorded position on a partition is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// A topic that a handler reads.
    Main,
    /// A retry topic.
    Retry,
    /// The replay topic: whoever replays is told what the group remembers.
    Replay,
}

/// A recorded position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub topic: Topic,
    /// The time of the last event that is done, but none later than when that was recorded: a producer may
    /// stamp anything. On a retry topic, what no event in it is older than.
    pub event: Option<i64>,
    /// When everything in the partition had been read.
    pub caught_up: Option<i64>,
}

/// No event that is still to be read from this partition is older, but for the skew. `None`: it has no say.
pub(crate) fn floor_of(position: &Position) -> Option<i64> {
    match position.topic {
        Topic::Replay => None,
        Topic::Retry => Some(position.event.unwrap_or(i64::MIN)),
        Topic::Main => Some(position.event.max(position.caught_up).unwrap_or(i64::MIN)),
    }
}

/// A group, and the time of the oldest event that it may still have to handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Floor {
    pub group: String,
    /// `i64::MIN`: nothing is known.
    pub millis: i64,
}

/// What happens to a partition of ids whose times end before `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// Its rows are in the window.
    Remembered,
    /// These groups may still have to read events of that time.
    Held(Vec<String>),
    /// Rows that were processed before this time may go.
    Due { processed_before: i64 },
}

/// Judges a partition of ids by the end of its times.
///
/// Emptying raises the horizon of the groups whose rows go to `end`, so it waits until they have read
/// everything older. Who takes too long keeps rows for so long after they were written, however old the
/// events are: a group may read the history of years.
pub(crate) fn judge(end: i64, now: i64, rules: &Rules, floors: &[Floor]) -> Verdict {
    if now < droppable_from(end, rules) {
        return Verdict::Remembered;
    }
    let holds = |floor: &&Floor| floor.millis.saturating_sub(rules.skew) < end;
    let by: Vec<String> = floors.iter().filter(holds).map(|floor| floor.group.clone()).collect();
    if by.is_empty() {
        Verdict::Due { processed_before: now.saturating_sub(rules.window) }
    } else if now >= end.saturating_add(rules.max_hold) {
        Verdict::Due { processed_before: now.saturating_sub(rules.max_hold) }
    } else {
        Verdict::Held(by)
    }
}

/// The earliest time at which a partition is emptied.
pub(crate) fn droppable_from(end: i64, rules: &Rules) -> i64 {
    end.saturating_add(rules.window)
}

/// What of a group may be deleted row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    pub group: String,
    /// Rows of ids with an older time.
    pub ids_before: i64,
    /// Rows of natural keys that were processed before. Their records may be stamped later by the
    /// skew, and so is the horizon, which must not pass what the group has not read.
    pub natural_before: i64,
}

/// The limits of groups that still have to read; a group without one is bound by the window alone.
pub(crate) fn limits(rules: &Rules, floors: &[Floor]) -> Vec<Limit> {
    let limit = |floor: &Floor| Limit {
        group: floor.group.clone(),
        ids_before: floor.millis.saturating_sub(rules.skew),
        natural_before: floor.millis.saturating_sub(rules.skew.saturating_mul(2)),
    };
    floors.iter().map(limit).collect()
}

/// The horizon of a group that brings rows of its own: the oldest of them was processed at `oldest`, and
/// somebody may have deleted older ones. Their ids may be ahead of that by the skew. But not by so
/// much that what is published from now on looks forgotten, where rows are deleted after a few hours.
pub(crate) fn horizon_of_adopted(oldest: i64, now: i64, skew: i64) -> i64 {
    oldest.saturating_add(skew).min(oldest.max(now.saturating_sub(skew)))
}

/// How many of the oldest days are merged into `late`, by what is there: each day in order, and whether it
/// is empty. Only empty ones from the first on, only when there are very many, and not too many at once.
pub(crate) fn days_to_merge(days: &[(i64, bool)]) -> usize {
    const MANY: usize = 400;
    const LEFT: usize = 200;
    const AT_ONCE: usize = 100;
    if days.len() <= MANY {
        return 0;
    }
    let empty = days.iter().take_while(|(_, is_empty)| *is_empty).count();
    empty.min(days.len() - LEFT).min(AT_ONCE)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
