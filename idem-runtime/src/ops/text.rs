//! Times and bytes as people and programs read them.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// A moment, milliseconds since the Unix epoch. Serialized and shown as RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub(crate) fn of_millis(millis: i64) -> Option<Self> {
        u64::try_from(millis).ok().map(Self)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Beyond the year 9999 there is no such text; anybody may have stamped the record.
        const LAST: u64 = 253_402_300_799_999;
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(self.0.min(LAST))).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Bytes of a record, of whatever kind. What is no plain text is shown as hexadecimal digits: a
/// terminal obeys control characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bytes {
    /// UTF-8 without control characters other than line ends and tabs.
    Text(String),
    /// Everything else.
    Hex(String),
}

impl Bytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) => {
                Self::Text(text.to_owned())
            }
            _ => Self::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Hex(digits) => write!(f, "0x{digits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_utc() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(1_764_446_400_123).to_string(), "2025-11-29T20:00:00.123Z");
        assert!(Timestamp(u64::MAX).to_string().starts_with("9999-"));
        assert_eq!(Timestamp::of_millis(-1), None);
    }

    #[test]
    fn bytes_that_a_terminal_would_obey_are_digits() {
        assert_eq!(Bytes::new("größe\n".as_bytes()), Bytes::Text("größe\n".to_owned()));
        assert_eq!(Bytes::new(b"\x1b[31m"), Bytes::Hex("1b5b33316d".to_owned()));
        assert_eq!(Bytes::new(b"\xff").to_string(), "0xff");
    }
}
