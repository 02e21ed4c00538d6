//! The library under test, running in the test's own process.

use std::time::Duration;

use idem_runtime::{Builder, Config, Health, RunError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::TestEnv;

/// A run of some groups. Dropping it asks it to end, and does not wait for that: a crash takes a
/// [`Program`](crate::Program).
#[derive(Debug)]
pub struct Run {
    /// What is in its way.
    pub health: Health,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), RunError>>,
}

impl Run {
    /// Starts the groups, configured by the test's environment.
    ///
    /// # Panics
    /// When the environment is no configuration.
    #[must_use]
    pub fn start(env: &TestEnv, groups: &[&str]) -> Self {
        Self::start_with(env, groups, |builder| builder)
    }

    /// The same with more said to the builder.
    ///
    /// # Panics
    /// When the environment is no configuration.
    #[must_use]
    pub fn start_with(env: &TestEnv, groups: &[&str], more: impl FnOnce(Builder) -> Builder) -> Self {
        show_logs();
        let config = Config::from_vars(env.variables()).unwrap_or_else(|errors| panic!("{errors}"));
        let (stop, stopped) = oneshot::channel();
        let builder = more(idem_runtime::builder().config(config).groups(groups.iter().copied()));
        let health = builder.health();
        let task = tokio::spawn(builder.shutdown_when(async { drop(stopped.await) }).run());
        Self { health, stop: Some(stop), task }
    }

    /// Stops as SIGTERM would, and returns how the run ended.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn stop(mut self) -> Result<(), RunError> {
        drop(self.stop.take());
        self.ended(Duration::from_secs(40)).await
    }

    /// Waits until the run ends by itself.
    ///
    /// # Panics
    /// When it does not.
    pub async fn ended(&mut self, limit: Duration) -> Result<(), RunError> {
        let ended = tokio::time::timeout(limit, &mut self.task).await;
        ended.unwrap_or_else(|_| panic!("the run did not end within {limit:?}")).expect("no panic in the run")
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

/// Shows the library's log with `RUST_LOG`, per test.
pub fn show_logs() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}
