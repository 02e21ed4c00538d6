//! Taking partitions over: where each one starts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rdkafka::error::KafkaError;

use super::GroupContext;
use super::coordinator::Pending;
use crate::config::OffsetReset;
use crate::decide::position::{self, Committed, Facts, ServerRun, Start, Why};
use crate::kafka::consumer::{Consumer, Partition};
use crate::pg::parked::Waiting;
use crate::pg::progress::{self, Decided, Found, Position, Server};
use crate::pg::session::on_service;
use crate::run::RunError;

/// A partition that was taken over.
pub(super) struct Taken {
    pub offset: i64,
    /// How far it was begun before.
    pub begun_below: i64,
    pub epoch: i64,
    pub server: Server,
    pub parked: Vec<Waiting>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TakeoverError {
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
}

/// What Kafka says, read before the database's transaction begins.
struct Log {
    committed: HashMap<Partition, Committed>,
    /// First offset, and one past the last; a partition without a leader is missing.
    bounds: HashMap<Partition, (i64, i64)>,
}

/// Decides where each partition starts, raises its epoch and records it, in one transaction.
/// Partitions without a leader are left out. Nothing is returned when the run is to stop.
///
/// # Cancel safety
/// Dropped in the middle, at most an epoch has been raised.
pub(super) async fn positions(
    group: &Arc<GroupContext>,
    consumer: &Consumer,
    pending: &BTreeMap<Partition, Pending>,
) -> Result<Vec<(Partition, Taken)>, TakeoverError> {
    let partitions: Vec<Partition> = pending.keys().cloned().collect();
    let log = log(group, consumer, &partitions).await?;
    let partitions: Vec<Partition> =
        partitions.into_iter().filter(|partition| log.bounds.contains_key(partition)).collect();

    let begun_below: HashMap<Partition, i64> = pending
        .iter()
        .map(|(partition, pending)| {
            let committed = log.committed.get(partition).copied();
            let log_end = log.bounds.get(partition).map_or(i64::MAX, |(_, log_end)| *log_end);
            (partition.clone(), position::begun_below(committed, pending.rewind, log_end))
        })
        .collect();
    let (context, pending) = (Arc::clone(group), pending.clone());
    let taken = on_service(&group.pools, move |connection| {
        Box::pin(async move {
            let name = Arc::clone(&context.name);
            progress::take_over(connection, &name, &partitions, |found| decide(&context, &pending, &log, found)).await
        })
    });
    let progress::Taken { server, positions, mut parked } = taken.await?;
    let taken = |(partition, position): (Partition, Position)| {
        let parked = parked.remove(&partition).unwrap_or_default();
        let (offset, epoch) = (position.next_offset, position.epoch);
        let begun_below = begun_below.get(&partition).copied().unwrap_or_default();
        (partition, Taken { offset, begun_below, epoch, server: Arc::clone(&server), parked })
    };
    Ok(positions.into_iter().map(taken).collect())
}

async fn log(group: &GroupContext, consumer: &Consumer, partitions: &[Partition]) -> Result<Log, KafkaError> {
    let committed = consumer.committed(partitions).await?;
    let mut asked = partitions.to_vec();
    // "Latest" is resolved once, for the whole topic: a partition that another member starts later,
    // or that is added to the topic, must not lose what came in between.
    if group.config.auto_offset_reset == OffsetReset::Latest {
        let topics: HashSet<&Arc<str>> = partitions.iter().map(|partition| &partition.topic).collect();
        for topic in topics.into_iter().filter(|topic| group.topics.contains_key(&***topic)) {
            asked.extend(consumer.partitions_of(Arc::clone(topic)).await?);
        }
        asked.sort_unstable();
        asked.dedup();
    }
    Ok(Log { committed, bounds: consumer.log_bounds(asked).await? })
}

/// The positions to record, by what Kafka and the database say.
fn decide(group: &GroupContext, pending: &BTreeMap<Partition, Pending>, log: &Log, found: &Found) -> Option<Decided> {
    let another_database = |theirs, topic: &str| {
        group.fail(RunError::AnotherDatabase {
            group: group.name.to_string(),
            topic: topic.to_owned(),
            ours: found.lineage,
            theirs,
        });
    };
    if found.lineage != group.lineage {
        // The address leads to another database than at the start of this process.
        another_database(group.lineage, pending.keys().next().map_or("", |partition| &partition.topic));
        return None;
    }
    let is_new = |topic: &Arc<str>| group.topics.contains_key(&**topic) && !found.known_topics.contains(&**topic);
    let server = ServerRun::of(&found.server);
    let mut own = Vec::new();
    for (partition, pending) in pending {
        let Some(&(log_start, log_end)) = log.bounds.get(partition) else { continue };
        let row = found.rows.get(partition);
        let facts = Facts {
            committed: log.committed.get(partition).copied(),
            recorded: row.map(|row| row.next_offset),
            lineage: group.lineage,
            lineage_accepted: group.config.accept_database == Some(group.lineage),
            log_start,
            log_end,
            start_at_end: pending.rewind.is_none()
                && is_new(&partition.topic)
                && group.config.auto_offset_reset == OffsetReset::Latest,
        };
        let (offset, why) = match position::start(&facts) {
            // This member read it before, so there was a row: only a database that went back lacks it.
            Start::At(_, Why::FirstTime) if pending.rewind.is_some() => (log_start, Why::DatabaseWentBack),
            Start::At(offset, why) => (offset, why),
            Start::AnotherDatabase { theirs } => {
                another_database(theirs, &partition.topic);
                return None;
            }
        };
        tell(group, partition, offset, why, &facts);
        let epoch = row.map_or(1, |row| row.epoch);
        let reread_below = position::reread_below(&facts, offset, pending.rewind, server);
        own.push((partition.clone(), Position { epoch, next_offset: offset, reread_below }));
    }
    // The rest of a new topic, where "latest" has to be remembered for whoever starts it.
    let others = log
        .bounds
        .iter()
        .filter(|(partition, _)| is_new(&partition.topic) && !pending.contains_key(partition))
        .map(|(partition, (_, log_end))| {
            (partition.clone(), Position { epoch: 0, next_offset: *log_end, reread_below: None })
        })
        .collect();
    Some(Decided { own, others })
}

fn tell(group: &GroupContext, partition: &Partition, offset: i64, why: Why, facts: &Facts) {
    let (group, topic, number) = (&*group.name, &*partition.topic, partition.number);
    let kafka = facts.committed.map(|committed| committed.offset);
    let database = facts.recorded;
    match why {
        Why::DatabaseWentBack => tracing::warn!(
            group,
            topic,
            partition = number,
            offset,
            kafka,
            database,
            "the database is older than what was processed (a restore or a failover): going back"
        ),
        Why::OutOfRange => tracing::error!(
            group,
            topic,
            partition = number,
            offset,
            kafka,
            database,
            log_start = facts.log_start,
            log_end = facts.log_end,
            "the position is not in the log any more: events may be gone; going on at the log's start"
        ),
        _ => tracing::info!(group, topic, partition = number, offset, ?why, "starting"),
    }
}
