//! The gate in time: which event ids are believed.

use std::time::Duration;

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
}
