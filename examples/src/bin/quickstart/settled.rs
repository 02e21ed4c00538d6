//! Tells the parent of each duplicate that the library skipped.

use std::fmt::Debug;
use std::io::Write;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Installs the process's log: one line on standard output for each duplicate, and errors on
/// standard error.
///
/// Standard output is a pipe: what is in it survives the kill.
pub fn report_duplicates() {
    let duplicates = Duplicates.with_filter(Targets::new().with_target("idem::settled", Level::DEBUG));
    let errors = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(LevelFilter::ERROR);
    tracing_subscriber::registry().with(duplicates).with(errors).init();
}

struct Duplicates;

impl<S: Subscriber> Layer<S> for Duplicates {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut duplicate = IsDuplicate(false);
        event.record(&mut duplicate);
        if duplicate.0 {
            // A parent that is gone has nothing to count.
            let _ = std::io::stdout().lock().write_all(b"duplicate\n");
        }
    }
}

/// Whether the event's outcome is a duplicate.
struct IsDuplicate(bool);

impl Visit for IsDuplicate {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0 |= field.name() == "outcome" && value == "duplicate";
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
