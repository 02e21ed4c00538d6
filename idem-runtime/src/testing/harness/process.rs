//! One process of the program, as far as one lane goes: everything but the consumer is the real thing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use uuid::Uuid;

use super::database::refused;
use crate::config::Config;
use crate::group::GroupContext;
use crate::handler::{Handler, States};
use crate::health::Health;
use crate::kafka::consumer::Partition;
use crate::kafka::record::Record;
use crate::lane::Lane;
use crate::parking::Parking;
use crate::pg::parked::{Owner, Waiting};
use crate::pg::progress::{self, Decided, Position, Taken};
use crate::pg::session::{Pools, on_service};
use crate::probe::{WAITS, World};
use crate::run::{RunError, Running};
use crate::stop;
use crate::testing::TestingError;

/// How often an event is tried in place before the test is told: what is away comes back by somebody's
/// hand only.
const PATIENCE: usize = 5;
/// The longest start of a process.
const START: Duration = Duration::from_secs(30);
/// The longest time for an event, besides its handler's own.
const SLACK: Duration = Duration::from_secs(15);
/// What is left to do after an event is done with.
const DRAIN: Duration = Duration::from_secs(10);

pub(super) struct Process {
    pub config: Arc<Config>,
    pub group: Arc<GroupContext>,
    failed: mpsc::UnboundedReceiver<RunError>,
}

/// How the work of a process ended.
pub(super) enum Ended {
    /// With this outcome of an attempt.
    Settled(&'static str),
    /// Without an attempt: the event waits behind others of its key.
    Behind,
    /// At the point where it was to die.
    Died,
}

impl Process {
    /// What `run()` does before it consumes. `handlers` are all of one group. `lineage`: what the database
    /// was found to be; else it is made ready first.
    pub(super) async fn start(
        config: Config,
        states: States,
        handlers: Vec<Handler>,
        lineage: Option<Uuid>,
    ) -> Result<Self, TestingError> {
        let (_stopper, stop) = stop::channel();
        let running = Running {
            config: Arc::new(config),
            states: Arc::new(states),
            health: Health::default(),
            registry: Arc::default(),
            stop,
        };
        let config = Arc::clone(&running.config);
        let longest = handlers.iter().map(|handler| handler.spec.timeout).max().unwrap_or_default();
        let pools = Pools::new(&config.database, &config.client_id, config.pool_size, longest);
        let lineage = match lineage {
            Some(lineage) => lineage,
            None => match tokio::time::timeout(START, running.database(&pools, &handlers)).await {
                Ok(Ok(Some(lineage))) => lineage,
                Ok(Err(error)) => return Err(TestingError::Run(error)),
                Ok(Ok(None)) | Err(_) => return Err(TestingError::Stuck(running.health.reasons())),
            },
        };
        let (failures, failed) = mpsc::unbounded_channel();
        let groups = running.assemble(handlers, &pools, lineage, failures).map_err(TestingError::Run)?.groups;
        let group =
            groups.into_iter().next().ok_or_else(|| TestingError::NoHandler("no handler is linked".to_owned()))?;
        Ok(Self { config, group, failed })
    }

    /// Takes the record's partition over at the record, and lets a lane work until it is done with it; without
    /// a record, until it is done with a parked event. When the process dies, nobody says goodbye.
    pub(super) async fn handle(
        &mut self,
        world: &Arc<World>,
        partition: &Partition,
        record: Option<Record>,
    ) -> Result<Ended, TestingError> {
        let from = record.as_ref().map(|record| record.offset);
        let (owner, position, parked) = self.take_over(partition, from).await?;
        let server = Arc::clone(&owner.server);
        let (mut lane, sender) = world.enter(|| {
            let parking = Parking::new(&self.group, owner, &parked);
            Lane::start(Arc::clone(&self.group), partition, position, server, parking)
        });
        // There is nobody who takes over.
        lane.reservation().raise(i64::MAX);
        if let Some(record) = record {
            // The queue is empty, and takes one record whatever its size.
            let _ = sender.try_send(record);
        }
        let before = world.seen().outcomes.len();
        let limit = self.group.longest_handler + SLACK;
        let ended = tokio::select! {
            ended = ended(world, &lane, before, from) => ended,
            Some(error) = self.failed.recv() => return Err(TestingError::Run(error)),
            () = tokio::time::sleep(limit) => None,
        };
        match ended {
            Some(Ended::Died) => lane.abort().await,
            Some(_) => lane.drain(DRAIN, Duration::ZERO).await,
            None => {
                lane.abort().await;
                return Err(TestingError::Stuck(self.group.health.reasons()));
            }
        }
        drop(sender);
        Ok(ended.unwrap_or(Ended::Died))
    }

    async fn take_over(
        &self,
        partition: &Partition,
        from: Option<i64>,
    ) -> Result<(Owner, i64, Vec<Waiting>), TestingError> {
        let (group, of) = (Arc::clone(&self.group.name), partition.clone());
        let taken = on_service(&self.group.pools, move |connection| {
            Box::pin(async move {
                progress::take_over(connection, &group, std::slice::from_ref(&of), |found| {
                    let row = found.rows.get(&of);
                    let next_offset = from.or(row.map(|row| row.next_offset)).unwrap_or_default();
                    let epoch = row.map_or(1, |row| row.epoch);
                    let position = Position { epoch, next_offset, reread_below: None };
                    Some(Decided { own: vec![(of.clone(), position)], others: Vec::new() })
                })
                .await
            })
        });
        let Taken { server, positions, mut parked } = taken.await.map_err(refused("take a partition over"))?;
        let (epoch, offset) = positions.first().map_or((1, 0), |(_, at)| (at.epoch, at.next_offset));
        let owner = Owner { group: Arc::clone(&self.group.name), partition: partition.clone(), epoch, server };
        Ok((owner, offset, parked.remove(partition).unwrap_or_default()))
    }
}

/// How the work on one event ended. `None`: it can't be done now.
async fn ended(world: &World, lane: &Lane, before: usize, from: Option<i64>) -> Option<Ended> {
    loop {
        let seen = world.seen();
        let outcomes = seen.outcomes.get(before..).unwrap_or_default();
        if seen.dies {
            return Some(Ended::Died);
        }
        if let Some(outcome) = outcomes.iter().find(|outcome| **outcome != WAITS) {
            return Some(Ended::Settled(outcome));
        }
        if outcomes.len() >= PATIENCE {
            return None;
        }
        if from.is_some_and(|offset| lane.position().0 > offset) {
            return Some(Ended::Behind);
        }
        // A record that is parked behind others makes no sound.
        let _ = tokio::time::timeout(Duration::from_millis(5), world.changed()).await;
    }
}
