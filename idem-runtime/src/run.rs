//! `run()`: from the linked handlers to a clean exit.

mod error;
mod running;
mod servers;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;

pub use self::error::{Problems, RunError};
pub(crate) use self::running::Running;
use crate::config::Config;
use crate::handler::{Handler, States};
use crate::health::Health;
use crate::money;
use crate::registry;
use crate::stop;
use crate::telemetry::{self, Registry};

/// Drives every handler that the program links, configured by the environment, until SIGTERM or
/// SIGINT.
///
/// ```no_run
/// #[tokio::main]
/// async fn main() -> Result<(), idem_runtime::RunError> {
///     idem_runtime::run().await
/// }
/// ```
///
/// # Errors
/// See [`RunError`]. A database or broker that can't be reached is no error: it is waited for.
///
/// # Cancel safety
/// Dropping it stops at once, without a last commit: some events are delivered again and recognised.
pub async fn run() -> Result<(), RunError> {
    builder().run().await
}

/// The same with values given in the program.
///
/// ```no_run
/// struct Rates { vat_percent: u32 }
///
/// # async fn example() -> Result<(), idem_runtime::RunError> {
/// idem_runtime::builder().state(Rates { vat_percent: 19 }).run().await
/// # }
/// ```
#[must_use]
pub fn builder() -> Builder {
    Builder::default()
}

/// See [`builder`].
#[derive(Default)]
pub struct Builder {
    states: States,
    config: Option<Config>,
    settings: BTreeMap<String, String>,
    groups: Option<Vec<String>>,
    print_asyncapi: bool,
    shutdown: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    health: Health,
}

impl Builder {
    /// Gives a value to every handler that asks for a [`State<T>`](crate::State). A second value of
    /// a type replaces the first.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// Settings in place of the environment's.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// One setting, above the environment's: `setting("IDEM_POOL_SIZE", "32")`.
    #[must_use]
    pub fn setting(mut self, variable: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(variable.into(), value.into());
        self
    }

    /// Drives only these groups: one program, several deployments.
    #[must_use]
    pub fn groups<G: Into<String>>(mut self, groups: impl IntoIterator<Item = G>) -> Self {
        self.groups = Some(groups.into_iter().map(Into::into).collect());
        self
    }

    /// With `true` the run only prints the AsyncAPI document of its handlers (see [`asyncapi`](crate::asyncapi())) to standard
    /// output, and ends; it needs no setting and no server.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), idem_runtime::RunError> {
    /// let print = std::env::args().any(|argument| argument == "--asyncapi");
    /// idem_runtime::builder().print_asyncapi(print).run().await
    /// # }
    /// ```
    #[must_use]
    pub fn print_asyncapi(mut self, print: bool) -> Self {
        self.print_asyncapi = print;
        self
    }

    /// What a readiness probe asks; valid during the run.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Ends the run when this future does, besides SIGTERM and SIGINT.
    #[must_use]
    pub fn shutdown_when(mut self, shutdown: impl Future<Output = ()> + Send + 'static) -> Self {
        self.shutdown = Some(Box::pin(shutdown));
        self
    }

    /// Runs; see [`run`].
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run(self) -> Result<(), RunError> {
        if self.print_asyncapi {
            return self.document();
        }
        let (config, handlers) = self.checked()?;
        #[cfg(feature = "otlp")]
        crate::otlp::begin();
        for handler in &handlers {
            let spec = &handler.spec;
            tracing::info!(
                handler = spec.name,
                topic = spec.topic,
                group = spec.group,
                event_type = spec.event_type,
                "found"
            );
        }
        let registry = Arc::new(Registry::default());
        let config = Arc::new(config);
        #[cfg(feature = "admin")]
        let _admin = match &config.admin {
            None => None,
            Some(settings) => {
                let bound = crate::admin::bind(settings).map_err(RunError::setup)?;
                crate::admin::record_metrics();
                // Dropped with this future, which ends the server too.
                let (running, ended) = tokio::sync::oneshot::channel::<()>();
                tokio::spawn(bound.serve(Arc::clone(&config), self.health.clone(), Arc::clone(&registry), ended));
                Some(running)
            }
        };
        let (stopper, stop) = stop::channel();
        let signals = tokio::spawn(async move {
            tokio::select! {
                () = termination() => {
                    tracing::info!("asked to end: finishing what runs");
                    stopper.stop();
                    termination().await;
                    tracing::warn!("asked again: ending at once; what is not committed is delivered again");
                    std::process::exit(1);
                }
                () = async { match self.shutdown { Some(shutdown) => shutdown.await, None => std::future::pending().await } } => {
                    stopper.stop();
                }
            }
        });
        telemetry::describe();
        let running = Running { config, states: Arc::new(self.states), health: self.health, registry, stop };
        let result = running.drive(handlers).await;
        signals.abort();
        #[cfg(feature = "otlp")]
        crate::otlp::end().await;
        result
    }

    fn document(&self) -> Result<(), RunError> {
        let (handlers, problems) = self.handlers();
        if !problems.is_empty() {
            return Err(RunError::Setup(Problems(problems)));
        }
        let document = crate::asyncapi::document(&crate::config::program_name(), &handlers);
        // Whoever closes it early has read enough.
        let _ = writeln!(std::io::stdout(), "{document:#}");
        Ok(())
    }

    /// What the run drives, and what is wrong with it.
    fn handlers(&self) -> (Vec<Handler>, Vec<String>) {
        let mut handlers = registry::handlers();
        let mut problems = Vec::new();
        if let Some(groups) = &self.groups {
            let unknown =
                groups.iter().filter(|group| handlers.iter().all(|handler| handler.spec.group != group.as_str()));
            problems
                .extend(unknown.map(|group| format!("no handler has the group `{group}` that the builder was given")));
            handlers.retain(|handler| groups.iter().any(|group| group == handler.spec.group));
        }
        problems.extend(registry::problems(&handlers, &self.states));
        (handlers, problems)
    }

    /// Everything that is wrong before anything is connected to, in one error.
    fn checked(&self) -> Result<(Config, Vec<Handler>), RunError> {
        let (handlers, mut problems) = self.handlers();
        let config = match &self.config {
            Some(_) if !self.settings.is_empty() => {
                problems
                    .push("the builder was given both a whole configuration and single settings: give one".to_owned());
                None
            }
            Some(config) => Some(config.clone()),
            None => match Config::from_env_and(self.settings.clone()) {
                Ok(config) => Some(config),
                Err(errors) => {
                    problems.extend(errors.0.iter().map(ToString::to_string));
                    None
                }
            },
        };
        if let Some(config) = &config {
            problems.extend(money::start::problems(config, &handlers));
        }
        match config {
            Some(config) if problems.is_empty() => Ok((config, handlers)),
            _ => Err(RunError::Setup(Problems(problems))),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("config", &self.config).field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// SIGTERM or SIGINT.
pub(crate) async fn termination() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            }
            _ => std::future::pending().await,
        }
    }
    #[cfg(not(unix))]
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
