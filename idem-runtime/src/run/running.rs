//! One run of the program: its groups, what works beside them, and their end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::RunError;
use crate::circuit::Circuit;
use crate::config::Config;
use crate::group::{self, Coordinator, GroupContext};
use crate::handler::{Handler, States};
use crate::health::{Health, Obstacle};
use crate::kafka::producer::Producer;
use crate::kafka::queue::Memory;
use crate::money;
use crate::outbox::{backlog, relay};
use crate::pg::maintenance::{self, FirstPositions};
use crate::pg::money as rows;
use crate::pg::session::Pools;
use crate::spec::Order;
use crate::stop::{self, Stop};
use crate::telemetry::{GroupStats, Registry, open_calls};
use crate::turns::Turns;

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
    pub(super) async fn drive(self, handlers: Vec<Handler>) -> Result<(), RunError> {
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
                let pays = handlers.iter().any(|handler| handler.spec.money.is_some());
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
                    provider: provider.clone().filter(|_| pays),
                    lineage,
                    circuits,
                    health: self.health.clone(),
                    stats,
                    missing_partition: Arc::clone(&missing_partition),
                    first_positions: first_positions.clone(),
                    doubt: Notify::new(),
                    short: Notify::new(),
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
}
