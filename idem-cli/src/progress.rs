//! A bar on a terminal, nothing elsewhere.

use std::io::IsTerminal;

use idem_runtime::ops;
use indicatif::ProgressBar;

/// Shown on standard error: standard output is for the result.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn new() -> Self {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
        Self { bar }
    }

    /// To be told of how far the reading of a topic is.
    pub fn reading(&self) -> impl FnMut(ops::Progress) + Send + use<> {
        let bar = self.bar.clone();
        move |progress| {
            bar.set_length(progress.total);
            bar.set_position(progress.read);
        }
    }

    /// Takes the bar away.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}
