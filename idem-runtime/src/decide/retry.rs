//! Retry tiers: where a failed event waits, and for how long.

use std::time::Duration;

const UNITS: [(u64, &str); 5] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];

/// The name of a delay in a topic name: the largest unit that divides it (`250ms`, `10s`, `1m`).
pub(crate) fn delay_name(delay: Duration) -> String {
    let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    match UNITS.iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", millis / unit),
        None => "0ms".to_owned(),
    }
}

/// Reads a delay's name; only the form that [`delay_name`] writes.
pub(crate) fn parse_delay(name: &str) -> Option<Duration> {
    let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (count, unit) = name.split_at(digits);
    let (millis, _) = UNITS.iter().find(|(_, name)| *name == unit)?;
    let delay = Duration::from_millis(count.parse::<u64>().ok()?.checked_mul(*millis)?);
    (delay_name(delay) == name).then_some(delay)
}

/// Checks tiers: each positive, each longer than the one before, whole milliseconds.
///
/// # Errors
/// Says which tier is wrong and why.
pub(crate) fn check_tiers(tiers: &[Duration]) -> Result<(), String> {
    for (at, tier) in tiers.iter().enumerate() {
        if tier.is_zero() || tier.subsec_nanos() % 1_000_000 != 0 {
            return Err(format!("tier {} is no positive number of milliseconds", at + 1));
        }
        if at > 0 && *tier <= tiers[at - 1] {
            return Err(format!("tier {} ({}) is not longer than the one before", at + 1, delay_name(*tier)));
        }
    }
    Ok(())
}

/// Where an event goes after its `attempt`th failure (0: the first one): the tier, or none any more.
pub(crate) fn next_tier(tiers: &[Duration], attempt: u32) -> Option<Duration> {
    tiers.get(usize::try_from(attempt).unwrap_or(usize::MAX)).copied()
}

/// The tier for an event that must not come again before `at_least`: the first one that is long enough
/// from its own on, else the last one.
pub(crate) fn tier_not_before(tiers: &[Duration], attempt: u32, at_least: Option<Duration>) -> Option<Duration> {
    let own = next_tier(tiers, attempt)?;
    let Some(at_least) = at_least else { return Some(own) };
    tiers.iter().copied().find(|tier| *tier >= own && *tier >= at_least).or(tiers.last().copied())
}

/// Reads `Retry-After` ([RFC 9110, section 10.2.3](https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3)):
/// seconds, or a date.
pub(crate) fn parse_retry_after(text: &str, now_millis: u64) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let then = httpdate::parse_http_date(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(then.saturating_sub(Duration::from_millis(now_millis)))
}

/// Longest wait for an event of a tier, whatever its header says: a member whose clock is ahead must
/// not stop the tier for as long.
pub(crate) fn longest_wait(delay: Duration) -> Duration {
    delay + delay / 10
}

/// When the event is due: the delay and up to a tenth of it more, so that events that failed
/// together do not come back together. `random` in 0..1.
pub(crate) fn due_at_millis(now_millis: u64, delay: Duration, random: f64) -> u64 {
    let delay = delay.as_millis() as f64;
    now_millis.saturating_add((delay + delay * 0.1 * random.clamp(0.0, 1.0)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_named_by_their_largest_unit() {
        let cases = [
            (250, "250ms"),
            (1_000, "1s"),
            (1_500, "1500ms"),
            (90_000, "90s"),
            (60_000, "1m"),
            (7_200_000, "2h"),
            (86_400_000, "1d"),
        ];
        for (millis, name) in cases {
            assert_eq!(delay_name(Duration::from_millis(millis)), name);
            assert_eq!(parse_delay(name), Some(Duration::from_millis(millis)));
        }
        for no_delay in ["", "s", "10", "60s", "01s", "1x", "1000ms", "-1s", "99999999999999999999d"] {
            assert_eq!(parse_delay(no_delay), None, "{no_delay}");
        }
    }

    #[test]
    fn tiers_ascend() {
        let tiers = |millis: &[u64]| millis.iter().map(|&m| Duration::from_millis(m)).collect::<Vec<_>>();
        assert!(check_tiers(&tiers(&[])).is_ok());
        assert!(check_tiers(&tiers(&[1_000, 10_000])).is_ok());
        assert!(check_tiers(&tiers(&[0])).unwrap_err().contains("tier 1"));
        assert!(check_tiers(&tiers(&[1_000, 1_000])).unwrap_err().contains("tier 2 (1s)"));
        assert!(check_tiers(&[Duration::from_micros(1)]).is_err());
    }

    #[test]
    fn attempts_are_bounded_by_the_tiers() {
        let tiers = [Duration::from_secs(1), Duration::from_secs(10)];
        assert_eq!(next_tier(&tiers, 0), Some(tiers[0]));
        assert_eq!(next_tier(&tiers, 1), Some(tiers[1]));
        assert_eq!(next_tier(&tiers, 2), None);
        assert_eq!(next_tier(&tiers, u32::MAX), None);
        assert_eq!(next_tier(&[], 0), None);
    }

    #[test]
    fn a_tier_is_long_enough_for_who_asks_for_time_if_there_is_one() {
        let seconds = |seconds: &[u64]| seconds.iter().map(|&s| Duration::from_secs(s)).collect::<Vec<_>>();
        let tiers = seconds(&[1, 10, 60]);
        let cases = [(0, 0, Some(1)), (0, 1, Some(1)), (0, 2, Some(10)), (0, 60, Some(60)), (0, 600, Some(60))];
        for (attempt, at_least, expected) in cases.into_iter().chain([(2, 1, Some(60)), (3, 1, None)]) {
            let tier = tier_not_before(&tiers, attempt, Some(Duration::from_secs(at_least)));
            assert_eq!(tier, expected.map(Duration::from_secs), "attempt {attempt}, at least {at_least} s");
        }
        assert_eq!(tier_not_before(&tiers, 1, None), Some(tiers[1]));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = 784_111_777_000; // Sun, 06 Nov 1994 08:49:37 GMT
        let cases = [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ];
        for (text, seconds) in cases {
            assert_eq!(parse_retry_after(text, now), seconds.map(Duration::from_secs), "{text:?}");
        }
    }

    #[test]
    fn jitter_adds_at_most_a_tenth() {
        let delay = Duration::from_secs(10);
        assert_eq!(due_at_millis(1_000, delay, 0.0), 11_000);
        assert_eq!(due_at_millis(1_000, delay, 0.5), 11_500);
        assert_eq!(due_at_millis(1_000, delay, 1.0), 12_000);
    }
}
