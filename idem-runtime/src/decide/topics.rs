//! Whether the topics and settings of a group can keep what they promise.

use std::time::Duration;

use super::retry::delay_name;

/// What a group keeps in one of its own topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Events that wait this long.
    Retry(Duration),
    /// Dead letters on their way back.
    Replay,
    /// Dead letters, until somebody looks.
    DeadLetters,
}

/// A topic's settings, as far as they matter; `None`: the broker did not say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// `cleanup.policy`.
    pub cleanup_policy: Option<String>,
    /// `retention.ms`; -1: for ever.
    pub retention_ms: Option<i64>,
    /// `max.message.bytes`.
    pub max_message_bytes: Option<u64>,
}

/// How bad a finding is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Events would be lost: no start.
    Error(String),
    /// Something is weaker than it should be: a line in the log, and no start with `IDEM_STRICT=true`.
    Warning(String),
}

/// Judges one of a group's own topics. `needed_bytes`: the origin's limit and the library's headers.
pub(crate) fn judge(topic: &str, purpose: Purpose, settings: &Settings, needed_bytes: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(policy) = settings.cleanup_policy.as_deref().filter(|policy| policy.contains("compact")) {
        findings.push(Finding::Error(format!(
            "topic `{topic}` has cleanup.policy={policy}, which drops all but the last event of a key: set it to delete"
        )));
    }
    match (purpose, settings.retention_ms) {
        (Purpose::Retry(delay), Some(retention @ 0..)) if u128::from(retention.unsigned_abs()) <= delay.as_millis() => {
            findings.push(Finding::Error(format!(
                "topic `{topic}` keeps events for {retention} ms, not as long as they wait in it ({} ms): raise retention.ms",
                delay.as_millis()
            )));
        }
        (Purpose::DeadLetters, Some(retention @ 0..)) => findings.push(Finding::Warning(format!(
            "topic `{topic}` drops dead letters after {retention} ms, looked at or not: set retention.ms=-1"
        ))),
        _ => {}
    }
    if let Some(limit) = settings.max_message_bytes.filter(|limit| *limit < needed_bytes) {
        findings.push(Finding::Warning(format!(
            "topic `{topic}` takes records of {limit} bytes, and one of its origin may need {needed_bytes}: it would go to the \
             dead letters without its value; raise max.message.bytes"
        )));
    }
    findings
}

/// Judges the tiers of a group against the time that the dedup table remembers: an event that is
/// retried after that could be taken for a forgotten one.
pub(crate) fn judge_tiers(group: &str, tiers: &[Duration], window: Duration, skew: Duration) -> Option<Finding> {
    let total: Duration = tiers.iter().sum();
    (total + skew >= window).then(|| {
        Finding::Warning(format!(
            "group `{group}` retries for {} in all, clocks may differ by {}, and IDEM_DEDUP_WINDOW is {}: shorten the \
             tiers or widen the window",
            delay_name(total),
            delay_name(skew),
            delay_name(window)
        ))
    })
}

/// How many events the groups would have in progress at once, if that is more than the pool of
/// connections lets them.
pub(crate) fn more_than_pool(in_progress: impl IntoIterator<Item = usize>, pool: usize) -> Option<usize> {
    let wanted = in_progress.into_iter().sum();
    (wanted > pool).then_some(wanted)
}

/// Judges what a topic keeps against the time that the dedup table remembers: an offset that is set back
/// further delivers events that the group has forgotten.
pub(crate) fn judge_window(topic: &str, settings: &Settings, window: Duration) -> Option<Finding> {
    let (keeps, number) = match settings.retention_ms? {
        retention @ 0.. if u128::from(retention.unsigned_abs()) <= window.as_millis() => return None,
        retention @ 0.. => (delay_name(Duration::from_millis(retention.unsigned_abs())), retention),
        retention => ("ever".to_owned(), retention),
    };
    Some(Finding::Warning(format!(
        "topic `{topic}` keeps events for {keeps} (retention.ms={number}), and IDEM_DEDUP_WINDOW is {}: what is read again \
         from before the window is taken for forgotten, and goes to the dead letters as `expired`; widen the window or \
         shorten the retention",
        delay_name(window)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(policy: &str, retention_ms: i64, bytes: u64) -> Settings {
        Settings {
            cleanup_policy: Some(policy.to_owned()),
            retention_ms: Some(retention_ms),
            max_message_bytes: Some(bytes),
        }
    }

    #[test]
    fn topics_as_the_library_makes_them_are_fine() {
        for purpose in [Purpose::Retry(Duration::from_secs(600)), Purpose::Replay] {
            assert_eq!(judge("t", purpose, &settings("delete", 2_592_000_000, 200), 200), []);
        }
        assert_eq!(judge("t", Purpose::DeadLetters, &settings("delete", -1, 200), 200), []);
        assert_eq!(judge("t", Purpose::DeadLetters, &Settings::default(), 200), [], "nothing is known");
    }

    #[test]
    fn what_would_lose_events_is_an_error_and_what_is_weak_a_warning() {
        let tier = Purpose::Retry(Duration::from_secs(600));
        let cases = [
            (tier, settings("compact", -1, 200), true, "cleanup.policy=compact"),
            (tier, settings("compact,delete", -1, 200), true, "cleanup.policy"),
            (tier, settings("delete", 600_000, 200), true, "600000 ms, not as long"),
            (Purpose::DeadLetters, settings("delete", 1_000, 200), false, "retention.ms=-1"),
            (Purpose::Replay, settings("delete", -1, 199), false, "199 bytes"),
        ];
        for (purpose, settings, is_error, part) in cases {
            let findings = judge("t", purpose, &settings, 200);
            let [finding] = &findings[..] else { panic!("{findings:?}") };
            assert_eq!(matches!(finding, Finding::Error(_)), is_error, "{finding:?}");
            assert!(format!("{finding:?}").contains(part), "{finding:?}");
        }
    }

    #[test]
    fn tiers_longer_than_the_window_are_told_with_both_numbers() {
        let days = |days: u64| Duration::from_secs(days * 86_400);
        assert_eq!(judge_tiers("g", &[days(1), days(2)], days(7), days(1)), None);
        let finding = format!("{:?}", judge_tiers("g", &[days(3), days(3)], days(7), days(1)));
        assert!(finding.contains("6d in all") && finding.contains("IDEM_DEDUP_WINDOW is 7d"), "{finding}");
    }

    #[test]
    fn a_topic_that_keeps_more_than_the_window_is_told_with_both_numbers() {
        let day = Duration::from_secs(86_400);
        let of = |retention_ms| judge_window("t", &settings("delete", retention_ms, 0), day * 7);
        assert_eq!(of(604_800_000), None, "Kafka's default and the library's");
        assert_eq!(judge_window("t", &Settings::default(), day), None);
        for (retention, text) in [(604_800_001, "retention.ms=604800001"), (-1, "for ever (retention.ms=-1)")] {
            let finding = format!("{:?}", of(retention));
            assert!(finding.contains(text) && finding.contains("IDEM_DEDUP_WINDOW is 7d"), "{finding}");
        }
    }

    #[test]
    fn more_events_than_connections_are_counted_over_all_groups() {
        assert_eq!(more_than_pool([128, 16], 128), Some(144));
        assert_eq!(more_than_pool([96, 32], 128), None);
        assert_eq!(more_than_pool([], 1), None);
    }
}
