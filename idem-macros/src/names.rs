//! What Kafka accepts as a name, and the durations that become parts of names.

use std::fmt;
use std::time::Duration;

/// Kafka's limit for a topic's name.
pub const MAX_NAME: usize = 249;

/// Why Kafka would refuse a name.
#[derive(Debug, PartialEq, Eq)]
pub enum NameError {
    Empty,
    Dots,
    TooLong(usize),
    Character { character: char, position: usize },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty"),
            Self::Dots => f.write_str("can't be only dots"),
            Self::TooLong(length) => {
                write!(f, "has {length} characters, and Kafka allows {MAX_NAME}")
            }
            Self::Character { character, position } => {
                write!(f, "has the character {character:?} at position {position}")
            }
        }
    }
}

/// Checks a name by the rules of Kafka's topics. Groups obey them too: theirs become topics.
pub fn check(name: &str) -> Result<(), NameError> {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if matches!(name, "." | "..") {
        return Err(NameError::Dots);
    }
    if let Some((at, character)) = name.chars().enumerate().find(|(_, c)| !allowed(c)) {
        return Err(NameError::Character { character, position: at + 1 });
    }
    if name.len() > MAX_NAME {
        return Err(NameError::TooLong(name.len()));
    }
    Ok(())
}

/// The topics that belong to a group alone, the longest name among them last.
pub fn derived(group: &str, tiers: &[Duration]) -> Vec<String> {
    let retry = tiers.iter().map(|tier| format!("{group}.retry.{}", render_duration(*tier)));
    let mut names: Vec<String> = [format!("{group}.replay"), format!("{group}.dlq")].into_iter().chain(retry).collect();
    names.sort_by_key(String::len);
    names
}

/// Units of durations, the largest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// How durations are written, for errors.
pub const DURATIONS: &str = "`250ms`, `10s`, `1m`, `2h` or `1d`";

/// Why a text is no duration.
#[derive(Debug, PartialEq, Eq)]
pub enum DurationError {
    Form,
    Zero,
    TooLong,
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "is no duration",
            Self::Zero => "is zero",
            Self::TooLong => "is longer than a year",
        })
    }
}

/// Reads a whole number with its unit.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, millis)| *millis);
    let (Some(millis), false) = (millis, number.is_empty()) else {
        return Err(DurationError::Form);
    };
    let total = number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis));
    match total {
        Some(0) => Err(DurationError::Zero),
        Some(total) if total <= 366 * 86_400_000 => Ok(Duration::from_millis(total)),
        // Digits only, so the one way to fail is to be too large.
        _ => Err(DurationError::TooLong),
    }
}

/// The duration in its largest whole unit, as it stands in the name of a retry topic.
pub fn render_duration(duration: Duration) -> String {
    let millis = millis(duration);
    let (unit, size) = UNITS.iter().find(|(_, size)| millis.is_multiple_of(*size)).unwrap_or(&UNITS[4]);
    format!("{}{unit}", millis / size)
}

/// Whole milliseconds. Every duration here was parsed, so it is at most a year.
pub fn millis(duration: Duration) -> u64 {
    duration.as_secs() * 1_000 + u64::from(duration.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_obey_kafka() {
        let longest = "a".repeat(MAX_NAME);
        let too_long = "a".repeat(MAX_NAME + 1);
        let cases = [
            ("order-service.order_v2", Ok(())),
            ("...", Ok(())),
            (longest.as_str(), Ok(())),
            (too_long.as_str(), Err(NameError::TooLong(250))),
            ("", Err(NameError::Empty)),
            (".", Err(NameError::Dots)),
            ("..", Err(NameError::Dots)),
            ("a b", Err(NameError::Character { character: ' ', position: 2 })),
            ("aé", Err(NameError::Character { character: 'é', position: 2 })),
            ("/", Err(NameError::Character { character: '/', position: 1 })),
        ];
        for (name, expected) in cases {
            assert_eq!(check(name), expected, "{name}");
        }
    }

    #[test]
    fn a_group_has_its_own_topics() {
        let tiers = [Duration::from_secs(1), Duration::from_secs(600)];
        assert_eq!(derived("g", &tiers), ["g.dlq", "g.replay", "g.retry.1s", "g.retry.10m"]);
        assert_eq!(derived("g", &[]), ["g.dlq", "g.replay"]);
    }

    #[test]
    fn durations_are_a_number_and_a_unit() {
        let cases = [
            ("250ms", Ok(250)),
            ("10s", Ok(10_000)),
            ("1m", Ok(60_000)),
            ("2h", Ok(7_200_000)),
            ("1d", Ok(86_400_000)),
            ("366d", Ok(366 * 86_400_000)),
            ("367d", Err(DurationError::TooLong)),
            ("99999999999999999999s", Err(DurationError::TooLong)),
            ("0s", Err(DurationError::Zero)),
            ("", Err(DurationError::Form)),
            ("s", Err(DurationError::Form)),
            ("10", Err(DurationError::Form)),
            ("10 s", Err(DurationError::Form)),
            ("-1s", Err(DurationError::Form)),
            ("1.5s", Err(DurationError::Form)),
            ("10S", Err(DurationError::Form)),
            ("10sec", Err(DurationError::Form)),
            ("١s", Err(DurationError::Form)),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_duration(text), expected.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn a_duration_is_rendered_in_its_largest_whole_unit() {
        for (text, expected) in [("60s", "1m"), ("90s", "90s"), ("24h", "1d"), ("1500ms", "1500ms")] {
            assert_eq!(render_duration(parse_duration(text).unwrap()), expected);
        }
    }
}
