//! `run()`: from the linked handlers to a clean exit.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::KafkaError;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::circuit::Circuit;
use crate::config::Config;
use crate::decide::sql_error;
use crate::error::Class;
use crate::group::{self, Coordinator, GroupContext};
use crate::handler::{Handler, States};
use crate::health::{Health, Obstacle};
use crate::kafka::admin::{self, Need, TopicError};
use crate::kafka::producer::Producer;
use crate::kafka::queue::Memory;
use crate::money;
use crate::outbox::{backlog, relay};
use crate::pg::adopt::{self, AdoptError};
use crate::pg::maintenance::{self, FirstPositions};
use crate::pg::migrate;
use crate::pg::money as rows;
use crate::pg::pooler;
use crate::pg::rights;
use crate::pg::session::Pools;
use crate::registry;
use crate::spec::Order;
use crate::stop::{self, Stop};
use crate::telemetry::{self, GroupStats, Registry, open_calls};
use crate::turns::Turns;

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

/// Pause before a server that could not be reached at the start is tried again.
const START_PAUSE: Duration = Duration::from_secs(1);

/// One run of the program.
pub(crate) struct Running {
    pub config: Arc<Config>,
    pub states: Arc<States>,
    pub health: Health,
    pub registry: Arc<Registry>,
    pub stop: Stop,
}

/// What a run needs before it consumes.
pub(crate) struct Assembled {
    pub groups: Vec<Arc<GroupContext>>,
    producer: Producer,
    missing_partition: Arc<Notify>,
    first_positions: FirstPositions,
    failures: mpsc::UnboundedSender<RunError>,
}

impl Running {
    async fn drive(self, handlers: Vec<Handler>) -> Result<(), RunError> {
        self.health.set(Obstacle::Start, "the run is starting".to_owned());
        let longest = handlers.iter().map(|handler| handler.spec.timeout).max().unwrap_or_default();
        let pools = Pools::new(&self.config.database, &self.config.client_id, self.config.pool_size, longest);
        let Some(lineage) = self.database(&pools, &handlers).await? else { return Ok(()) };
        let (failures, failed) = mpsc::unbounded_channel();
        let assembled = self.assemble(handlers, &pools, lineage, failures)?;
        self.consume(pools, assembled, failed).await
    }

    /// What the groups of the process work with. Connects to nothing yet.
    pub(crate) fn assemble(
        &self,
        handlers: Vec<Handler>,
        pools: &Pools,
        lineage: Uuid,
        failures: mpsc::UnboundedSender<RunError>,
    ) -> Result<Assembled, RunError> {
        let mut by_group: BTreeMap<&'static str, Vec<Handler>> = BTreeMap::new();
        for handler in handlers {
            by_group.entry(handler.spec.group).or_default().push(handler);
        }
        let producer = Producer::new(&self.config).map_err(RunError::Producer)?;
        let provider = money::start::provider(&self.config, pools, by_group.values().flatten())?;
        let permits = Arc::new(Semaphore::new(self.config.pool_size as usize));
        let memory = Memory::new(self.config.queue_memory());
        let prefetch = self.config.prefetch(by_group.len());
        let missing_partition = Arc::new(Notify::new());
        let first_positions = FirstPositions::new();
        let groups: Vec<Arc<GroupContext>> = by_group
            .into_iter()
            .map(|(name, handlers)| {
                let mut topics: HashMap<&'static str, Vec<Handler>> = HashMap::new();
                let concurrency = handlers.iter().map(|handler| handler.spec.concurrency).max().unwrap_or(1);
                // The registry made sure that they agree.
                let ordered = handlers.iter().any(|handler| handler.spec.order == Order::Key);
                let longest_handler = handlers.iter().map(|handler| handler.spec.timeout).max().unwrap_or_default();
                let name: Arc<str> = name.into();
                let stats = handlers.iter().map(|handler| (handler.spec.name, handler.spec.topic));
                let stats = Arc::new(GroupStats::new(Arc::clone(&name), stats));
                self.registry.add(Arc::clone(&stats));
                let circuits = handlers
                    .iter()
                    .map(|handler| (handler.spec.name, Circuit::new(handler.spec.name, self.health.clone())))
                    .collect();
                for handler in handlers {
                    topics.entry(handler.spec.topic).or_default().push(handler);
                }
                Arc::new(GroupContext {
                    name,
                    topics,
                    concurrency: usize::from(concurrency),
                    ordered,
                    config: Arc::clone(&self.config),
                    states: Arc::clone(&self.states),
                    pools: pools.clone(),
                    memory: Arc::clone(&memory),
                    prefetch,
                    turns: Turns::default(),
                    permits: Arc::clone(&permits),
                    producer: producer.clone(),
                    provider: provider.clone(),
                    lineage,
                    circuits,
                    health: self.health.clone(),
                    stats,
                    missing_partition: Arc::clone(&missing_partition),
                    first_positions: first_positions.clone(),
                    doubt: Notify::new(),
                    failures: failures.clone(),
                    longest_handler,
                })
            })
            .collect();
        Ok(Assembled { groups, producer, missing_partition, first_positions, failures })
    }

    /// Drives the groups until the run is to end.
    async fn consume(
        self,
        pools: Pools,
        assembled: Assembled,
        mut failed: mpsc::UnboundedReceiver<RunError>,
    ) -> Result<(), RunError> {
        let Assembled { groups, producer, missing_partition, first_positions, failures } = assembled;
        let Some(existing) = self.topics(&groups).await? else { return Ok(()) };

        let ahead = maintenance::days_ahead(self.config.clock_skew);
        let mut maintenance = JoinSet::new();
        maintenance.spawn(maintenance::keep_attached(pools.clone(), ahead, missing_partition));
        let rules = maintenance::rules(&self.config);
        let names = groups.iter().map(|group| Arc::clone(&group.name)).collect();
        maintenance.spawn(maintenance::keep_small(pools.clone(), rules, first_positions, names));
        maintenance.spawn(rows::keep_aging(pools.service.clone(), self.config.dedup_window));
        // Ends after the handlers, which publish until they end.
        let (relay_stopper, relay_stop) = stop::channel();
        let relay = self.config.relay.then(|| {
            let relay = relay::keep(Arc::clone(&self.config), self.health.clone(), relay_stop);
            let failures = failures.clone();
            tokio::spawn(async move { relay.await.or_else(|error| failures.send(error)) })
        });
        maintenance.spawn(backlog::keep_watching(pools.clone(), self.health.clone()));
        if groups.iter().any(|group| group.provider.is_some()) {
            maintenance.spawn(open_calls::keep_counting(pools.clone()));
        }
        let (stopper, stop) = stop::channel();
        let mut coordinators = JoinSet::new();
        for group in groups {
            let topics = group::subscription(&group, &existing);
            let name = group.name.to_string();
            match Coordinator::join(group, &topics) {
                Ok(coordinator) => drop(coordinators.spawn(coordinator.run(stop.clone()))),
                Err(error) => {
                    let _ = failures.send(RunError::Consumer { group: name, error });
                }
            }
        }
        // Every group has said by now that it waits for its partitions.
        self.health.clear(&Obstacle::Start);
        let failure = tokio::select! {
            biased;
            failure = failed.recv() => failure,
            () = self.stop.requested() => None,
            ended = coordinators.join_next() => {
                Some(RunError::Internal(format!("a group's coordinator ended by itself: {ended:?}")))
            }
        };
        if let Some(failure) = &failure {
            tracing::error!(error = %failure, "the run ends");
        }
        self.health.set(Obstacle::Start, "the run ends".to_owned());
        stopper.stop();
        while coordinators.join_next().await.is_some() {}
        maintenance.abort_all();
        relay_stopper.stop();
        if let Some(relay) = relay {
            let _ = relay.await;
        }
        producer.flush(Duration::from_secs(1)).await;
        failure.map_or(Ok(()), Err)
    }

    /// Waits for the database, brings its schema up to date, and reads its lineage. `None`: asked
    /// to stop.
    pub(crate) async fn database(&self, pools: &Pools, handlers: &[Handler]) -> Result<Option<Uuid>, RunError> {
        let groups = handlers.iter().map(|handler| handler.spec.group.to_owned()).collect();
        loop {
            let ready = async {
                let unusable = |error| match error {
                    AdoptError::Unusable(problems) => Ok(Err(RunError::Setup(Problems(problems)))),
                    AdoptError::Database(error) => Err(error),
                };
                if let Some(problem) = pooler::problem(pools).await? {
                    return Ok(Err(RunError::setup(problem)));
                }
                if let Err(error) = adopt::check(pools, &groups).await {
                    return unusable(error);
                }
                if self.config.migrate {
                    migrate::migrate(&pools.service).await?;
                } else if let Some(problem) = not_migrated(migrate::pending(pools).await?) {
                    return Ok(Err(RunError::setup(problem)));
                }
                if let Some(problem) = rights::problem(pools).await? {
                    return Ok(Err(RunError::setup(problem)));
                }
                if let Err(error) = adopt::claim(pools, &groups).await {
                    return unusable(error);
                }
                adopt::settle_horizons(pools, self.config.clock_skew).await?;
                let ahead = maintenance::days_ahead(self.config.clock_skew);
                if let Err(error) = maintenance::attach_ahead(pools, ahead).await {
                    tracing::warn!(%error, "could not attach day partitions to the dedup table; trying again later");
                }
                let problems = money::start::register(pools, &self.config, handlers).await?;
                if !problems.is_empty() {
                    return Ok(Err(RunError::Setup(Problems(problems))));
                }
                migrate::lineage(&pools.service).await.map(Ok)
            };
            let ready: Result<Result<Uuid, RunError>, sqlx::Error> = tokio::select! {
                ready = ready => ready,
                () = self.stop.requested() => return Ok(None),
            };
            match ready {
                Ok(ready) => return ready.map(Some),
                Err(error) if sql_error::class(&error) == Class::Infrastructure => {
                    tracing::warn!(%error, "the database is not usable; waiting for it");
                    self.health.set(Obstacle::Start, format!("the database is not usable: {error}"));
                }
                Err(error) => {
                    let role = self.config.database.get_username();
                    return Err(match rights::refused(&error, role, self.config.migrate) {
                        Some(problem) => RunError::setup(problem),
                        None => RunError::Database(error),
                    });
                }
            }
            if !self.stop.sleep(START_PAUSE).await {
                return Ok(None);
            }
        }
    }

    /// Waits for the broker, and makes or names missing topics. `None`: asked to stop.
    async fn topics(
        &self,
        groups: &[Arc<GroupContext>],
    ) -> Result<Option<std::collections::HashSet<String>>, RunError> {
        let needs: Vec<Need> = groups
            .iter()
            .map(|group| Need {
                group: group.name.to_string(),
                topics: group.topics.keys().copied().collect(),
                tiers: group.all_tiers(),
                concurrency: group.concurrency,
            })
            .collect();
        loop {
            let ready = tokio::select! {
                ready = admin::ensure(&self.config, &needs) => ready,
                () = self.stop.requested() => return Ok(None),
            };
            match ready {
                Ok(existing) => return Ok(Some(existing)),
                Err(TopicError::Missing(problems)) => return Err(RunError::Setup(Problems(problems))),
                Err(error @ TopicError::Unreachable(_)) => {
                    self.health.set(Obstacle::Start, error.to_string());
                    tracing::warn!(%error, "waiting for the broker");
                }
            }
            if !self.stop.sleep(START_PAUSE).await {
                return Ok(None);
            }
        }
    }
}

/// What is wrong with a schema that this program may not bring up to date.
fn not_migrated(pending: Option<Vec<String>>) -> Option<String> {
    const CURE: &str = "run `idem migrate` with the role that owns the tables, or set IDEM_MIGRATE=true";
    match pending {
        None => Some(format!("the database has no idem tables that this role can see: {CURE}")),
        Some(pending) if pending.is_empty() => None,
        Some(pending) => Some(format!("the schema lacks {}: {CURE}", pending.join(", "))),
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

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program or its settings are wrong; everything that is, at once.
    #[error("{0}")]
    Setup(Problems),
    /// The database refused something that no waiting cures.
    #[error("the database refused: {0}")]
    Database(#[source] sqlx::Error),
    /// A consumer can't go on.
    #[error("the consumer of group `{group}` failed for good: {error}")]
    Consumer {
        /// The group.
        group: String,
        /// librdkafka's error.
        error: KafkaError,
    },
    /// The producer can't go on.
    #[error("the producer failed for good: {0}")]
    Producer(#[source] KafkaError),
    /// A handler ran COMMIT or ROLLBACK itself; or, where events share transactions, SET CONSTRAINTS ALL
    /// IMMEDIATE, which looks like a COMMIT to the guard of the transaction.
    #[error(
        "{handler} ended the transaction itself (COMMIT or ROLLBACK), so the dedup row and its writes are not one any more; \
         or it shares transactions and made all constraints immediate (SET CONSTRAINTS ALL IMMEDIATE; name those that you \
         mean). Remove the statement; the library commits after the handler, and rolls back when it fails"
    )]
    TransactionEnded {
        /// The handler.
        handler: String,
    },
    /// A bug of the library's.
    #[error("the library failed: {0}. Nothing is lost: what is not committed is delivered again")]
    Internal(String),
    /// The group's offsets in Kafka were committed for another database.
    #[error(
        "group `{group}` was last run on another database: Kafka's offsets of topic `{topic}` name the lineage {theirs}, \
         this database is {ours}. Nothing was processed. If this database is the right one now, accept it with \
         IDEM_ACCEPT_DATABASE={ours}"
    )]
    AnotherDatabase {
        /// The group.
        group: String,
        /// A topic with such offsets.
        topic: String,
        /// The lineage of the database in use.
        ours: Uuid,
        /// The lineage that Kafka's offsets name.
        theirs: Uuid,
    },
}

impl RunError {
    /// The one thing that is wrong before the start.
    pub(crate) fn setup(problem: String) -> Self {
        Self::Setup(Problems(vec![problem]))
    }
}

/// Everything that is wrong, one sentence each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} problem{} before the start", self.0.len(), if self.0.len() == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}
