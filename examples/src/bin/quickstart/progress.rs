//! What the demonstration is doing: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::consumer::Consumer;
use crate::error::QuickstartError;
use crate::watch::Watch;

/// How often the effects are counted.
const LOOK: Duration = Duration::from_millis(20);

/// Speaks on standard error: standard output is for the result.
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub fn new(effects: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(effects);
            bar.set_style(ProgressStyle::default_bar());
            bar
        });
        Self { bar }
    }

    /// One line that stays.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// Shows the effects grow to `wanted`. Ends with an error if the consumer does.
    pub async fn effects_until(
        &self,
        consumer: &mut Consumer,
        watch: &Watch,
        wanted: u64,
    ) -> Result<(), QuickstartError> {
        loop {
            let effects = watch.effects().await?;
            if let Some(bar) = &self.bar {
                bar.set_position(effects);
            }
            if effects >= wanted {
                return Ok(());
            }
            consumer.check()?;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes the bar away.
    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
