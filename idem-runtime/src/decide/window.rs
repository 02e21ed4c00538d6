//! The gates in time: which event ids are believed, and which may have been forgotten.

use std::time::Duration;

use super::outcome::{Outcome, Reason};
use crate::error::Failure;
use crate::spec::Expired;

/// What the gate says of an event id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Gate {
    /// The event may be handled.
    Open,
    /// The id's time lies further in the future than clocks may differ.
    Future,
}

/// Judges an id by its time; all in milliseconds since the Unix epoch.
pub(crate) fn gate(id_millis: u64, now_millis: u64, clock_skew: Duration) -> Gate {
    let skew = u64::try_from(clock_skew.as_millis()).unwrap_or(u64::MAX);
    if id_millis > now_millis.saturating_add(skew) { Gate::Future } else { Gate::Open }
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
        assert_eq!(gate(0, NOW, DAY), Gate::Open);
        assert_eq!(gate(NOW, NOW, DAY), Gate::Open);
        assert_eq!(gate(NOW + day, NOW, DAY), Gate::Open);
        assert_eq!(gate(NOW + day + 1, NOW, DAY), Gate::Future);
        assert_eq!(gate((1 << 48) - 1, NOW, DAY), Gate::Future);
        assert_eq!(gate(u64::MAX, NOW, Duration::MAX), Gate::Open);
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
