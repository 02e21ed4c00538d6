//! The gates in time: which event ids are believed, and which may have been forgotten.

use std::time::Duration;

use super::outcome::{Outcome, Reason};
use crate::error::Failure;
use crate::spec::Expired;

/// What the gate says of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Gate {
    /// The event may be handled.
    Open,
    /// Its time lies further in the future than clocks may differ.
    Future,
}

/// Judges an event by its time; all in milliseconds since the Unix epoch. It is the time in the id; a natural
/// key has none, there the record's timestamp stands for it, by which it is found to be forgotten later on.
pub(crate) fn gate(id_millis: Option<u64>, record_millis: Option<i64>, now_millis: u64, clock_skew: Duration) -> Gate {
    let time = id_millis.or_else(|| record_millis.and_then(|millis| u64::try_from(millis).ok()));
    let latest = now_millis.saturating_add(millis(clock_skew));
    if time.is_some_and(|time| time > latest) { Gate::Future } else { Gate::Open }
}

/// Whether the group may have processed an event that has no row, and forgotten it. `id_millis`: the time
/// in the id; a natural key has none, there the record's timestamp stands for it. `horizon`: the time
/// below which rows of the group may be gone.
pub(crate) fn may_be_forgotten(id_millis: Option<u64>, record_millis: Option<i64>, horizon: Option<i64>) -> bool {
    let Some(horizon) = horizon else { return false };
    match id_millis {
        Some(millis) => i64::try_from(millis).unwrap_or(i64::MAX) < horizon,
        // A record without a timestamp may be of any time.
        None => record_millis.unwrap_or(i64::MIN) < horizon,
    }
}

/// Whether somebody's permission, given at a time, to handle an event that may have been forgotten still
/// holds. The record that carries it stays in the replay topic, and may be read again after the row
/// that the permission led to has gone; so it ends while that row is sure to be there. Clocks may differ.
pub(crate) fn is_allowed(allowed_at: Option<u64>, now_millis: u64, window: Duration, clock_skew: Duration) -> bool {
    let Some(at) = allowed_at else { return false };
    let latest = at.saturating_add(millis(window.saturating_sub(clock_skew)));
    at <= now_millis.saturating_add(millis(clock_skew)) && now_millis < latest
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The end of an event that may have been forgotten. `None`: it is handled all the same.
pub(crate) fn expired(policy: Expired, is_allowed: bool) -> Option<Outcome> {
    match policy {
        _ if is_allowed => None,
        Expired::Process => None,
        Expired::Skip => Some(Outcome::Expired),
        Expired::Dlq => {
            let text = "the event is older than what the group remembers: it may have been processed before";
            Some(Outcome::permanent(Reason::Expired, Failure::new(text)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const NOW: u64 = 1_764_000_000_000;

    #[test]
    fn the_past_is_open_and_the_future_beyond_the_skew_is_not() {
        let day = 86_400_000;
        let cases = [
            (0, DAY, Gate::Open),
            (NOW, DAY, Gate::Open),
            (NOW + day, DAY, Gate::Open),
            (NOW + day + 1, DAY, Gate::Future),
            ((1 << 48) - 1, DAY, Gate::Future),
            (u64::MAX, Duration::MAX, Gate::Open),
        ];
        for (time, skew, expected) in cases {
            assert_eq!(gate(Some(time), None, NOW, skew), expected, "{time} of an id");
            let stamp = i64::try_from(time).unwrap_or(i64::MAX);
            assert_eq!(gate(None, Some(stamp), NOW, skew), expected, "{time} of a natural key's record");
        }
        assert_eq!(gate(Some(NOW), Some(i64::MAX), NOW, DAY), Gate::Open, "the id has a time");
        assert_eq!((gate(None, None, NOW, DAY), gate(None, Some(-1), NOW, DAY)), (Gate::Open, Gate::Open));
    }

    #[test]
    fn a_permission_ends_before_the_row_that_it_led_to_can_be_gone() {
        let (hour, day) = (3_600_000, 86_400_000);
        let holds = |allowed_at| is_allowed(allowed_at, NOW, 7 * DAY, DAY);
        let cases = [
            (None, false),
            (Some(NOW), true),
            (Some(NOW - 6 * day + 1), true),
            (Some(NOW - 6 * day), false),
            (Some(0), false),
            // A clock that is ahead.
            (Some(NOW + hour), true),
            (Some(NOW + day + 1), false),
            (Some(u64::MAX), false),
        ];
        for (allowed_at, expected) in cases {
            assert_eq!(holds(allowed_at), expected, "{allowed_at:?}");
        }
    }

    #[test]
    fn only_what_lies_below_the_horizon_may_be_forgotten() {
        let cases = [
            (Some(99), None, Some(100), true),
            (Some(100), Some(0), Some(100), false),
            (Some(0), Some(0), None, false),
            (None, Some(99), Some(100), true),
            (None, Some(100), Some(100), false),
            (None, None, Some(100), true),
            (None, None, None, false),
            (Some(u64::MAX), None, Some(100), false),
        ];
        for (id, record, horizon, expected) in cases {
            assert_eq!(may_be_forgotten(id, record, horizon), expected, "{id:?} {record:?} {horizon:?}");
        }
    }

    #[test]
    fn the_policy_decides_unless_somebody_allowed_the_event() {
        assert!(matches!(expired(Expired::Dlq, false), Some(Outcome::Permanent { reason: Reason::Expired, .. })));
        assert!(matches!(expired(Expired::Skip, false), Some(Outcome::Expired)));
        for (policy, allowed) in [(Expired::Process, false), (Expired::Dlq, true), (Expired::Skip, true)] {
            assert!(expired(policy, allowed).is_none(), "{policy:?} {allowed}");
        }
    }
}
