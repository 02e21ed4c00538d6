//! What happened when.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Notes of one campaign, and counts of its faults.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    start_unix_millis: i64,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    lines: Vec<(Duration, String)>,
    counts: BTreeMap<String, u64>,
    /// What should not have happened, apart from what the checker finds.
    complaints: Vec<String>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { start: Instant::now(), start_unix_millis: unix_millis(), notes: Mutex::default() }
    }
}

impl Timeline {
    /// Notes something, and says it on standard error.
    pub fn note(&self, what: impl Into<String>) {
        let (at, what) = (self.start.elapsed(), what.into());
        eprintln!("[{:7.1} s] {what}", at.as_secs_f64());
        self.notes().lines.push((at, what));
    }

    /// The same for what should not have happened.
    pub fn complain(&self, what: impl Into<String>) {
        let what = what.into();
        self.note(what.clone());
        self.notes().complaints.push(what);
    }

    /// Counts a fault.
    pub fn count(&self, fault: &str) {
        *self.notes().counts.entry(fault.to_owned()).or_default() += 1;
    }

    /// How often each fault happened.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.notes().counts.clone()
    }

    /// What should not have happened.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.notes().complaints.clone()
    }

    /// Milliseconds since the campaign began.
    #[must_use]
    pub fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// When it began, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn start_unix_millis(&self) -> i64 {
        self.start_unix_millis
    }

    /// What was noted around a moment of the campaign.
    #[must_use]
    pub fn around(&self, millis: u64) -> Vec<String> {
        let moment = Duration::from_millis(millis);
        let near = |at: Duration| at.abs_diff(moment) < Duration::from_secs(20);
        let notes = self.notes();
        let lines = notes.lines.iter().filter(|(at, _)| near(*at));
        lines.map(|(at, what)| format!("[{:7.1} s] {what}", at.as_secs_f64())).collect()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds since the Unix epoch.
#[must_use]
pub fn unix_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
