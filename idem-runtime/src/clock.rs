//! The one place that reads the system clock.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::probe;

/// Milliseconds since the Unix epoch.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]
pub(crate) fn unix_millis() -> u64 {
    // A clock before 1970 is as good as one at 1970: every event would be from the future.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX).saturating_add(probe::ahead_millis())
}
