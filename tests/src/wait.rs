//! Waiting for a condition instead of sleeping.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(25);

/// Waits until `holds` says true.
///
/// # Panics
/// When it has not within `limit`; the text says what was awaited.
pub async fn eventually(limit: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    eventually_some(limit, what, async || holds().await.then_some(())).await;
}

/// Waits until `probe` gives a value.
///
/// # Panics
/// When it has not within `limit`; the text says what was awaited.
pub async fn eventually_some<T>(limit: Duration, what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain: {what}");
        tokio::time::sleep(LOOK).await;
    }
}
