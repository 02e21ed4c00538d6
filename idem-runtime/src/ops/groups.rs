//! The groups that a database knows, and orders to a group.

use std::collections::HashMap;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use serde::Serialize;
use uuid::Uuid;

use super::{Ops, OpsError, Timestamp};
use crate::decide::position::{Committed, CommittedBy};
use crate::kafka::consumer::Partition;
use crate::pg::brakes;
use crate::pg::maintenance::floors;

/// A group of `consumer_progress`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its name.
    pub group: String,
    /// The topics it has positions on, its retry and replay topics included.
    pub topics: Vec<String>,
    /// How many partitions they have.
    pub partitions: i64,
    /// When its progress was last recorded.
    pub updated_at: Timestamp,
    /// No event that it still has to read is older than this, but for clock skew; the dedup table keeps
    /// rows from there on. None: not known yet, so it keeps all.
    pub reads_from: Option<Timestamp>,
    /// It may have forgotten events whose ids are older than this.
    pub horizon: Option<Timestamp>,
    /// It may have forgotten events with natural keys whose records are older than this.
    pub natural_horizon: Option<Timestamp>,
    /// Its events that wait in `parked_event`.
    pub parked: i64,
}

/// The groups that the database knows.
///
/// # Errors
/// When the database is away, or has no tables.
pub async fn list(ops: &Ops) -> Result<Vec<Group>, OpsError> {
    ops.database("list the groups", |connection| {
        Box::pin(async move {
            type Row = (String, Vec<String>, i64, i64, Option<i64>, Option<i64>, i64);
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT name, topics, partitions, (extract(epoch FROM coalesce(updated_at, raised_at)) * 1000)::bigint, \
                        (extract(epoch FROM ids_before) * 1000)::bigint, \
                        (extract(epoch FROM natural_before) * 1000)::bigint, \
                        (SELECT count(*) FROM parked_event WHERE consumer_group = name) \
                   FROM (SELECT consumer_group AS name FROM consumer_progress UNION SELECT consumer_group FROM group_horizon) AS known \
                   LEFT JOIN group_horizon ON consumer_group = name, \
                LATERAL (SELECT coalesce(array_agg(DISTINCT topic ORDER BY topic), '{}') AS topics, count(*) AS partitions, \
                                max(updated_at) AS updated_at \
                           FROM consumer_progress WHERE consumer_group = name) AS progress \
                  ORDER BY name",
            )
            .fetch_all(&mut *connection)
            .await?;
            let floors = floors(connection).await?;
            let group = |(group, topics, partitions, updated_at, ids, naturals, parked): Row| Group {
                topics,
                partitions,
                updated_at: Timestamp(updated_at.unsigned_abs()),
                reads_from: floors
                    .iter()
                    .find(|floor| floor.group == group)
                    .and_then(|floor| Timestamp::of_millis(floor.millis)),
                horizon: ids.and_then(Timestamp::of_millis),
                natural_horizon: naturals.and_then(Timestamp::of_millis),
                parked,
                group,
            };
            Ok(rows.into_iter().map(group).collect())
        })
    })
    .await
}

/// A lane that was stopped because everything in it went to the dead letter queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoppedLane {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
}

/// An engaged brake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Brake {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The reason of its last dead letters.
    pub reason: String,
    /// When it was engaged.
    pub since: Timestamp,
}

/// The lanes of all groups that are stopped.
///
/// # Errors
/// When the database is away, or has no tables.
pub async fn stopped(ops: &Ops) -> Result<Vec<Brake>, OpsError> {
    ops.database("list the brakes", |connection| {
        Box::pin(async move {
            let rows: Vec<(String, String, i32, String, i64)> = sqlx::query_as(
                "SELECT consumer_group, topic, partition, reason, (extract(epoch FROM engaged_at) * 1000)::bigint \
                   FROM lane_brake ORDER BY 1, 2, 3",
            )
            .fetch_all(connection)
            .await?;
            let brake = |(group, topic, partition, reason, since): (_, _, _, _, i64)| Brake {
                group,
                topic,
                partition,
                reason,
                since: Timestamp(since.unsigned_abs()),
            };
            Ok(rows.into_iter().map(brake).collect())
        })
    })
    .await
}

/// What [`resume`] let go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resumed {
    /// The group.
    pub group: String,
    /// Its lanes that were stopped.
    pub lanes: Vec<StoppedLane>,
}

/// Lets the stopped lanes of a group go on, within a second or two.
///
/// # Errors
/// When the database is away, or has no tables.
pub async fn resume(ops: &Ops, name: &str) -> Result<Resumed, OpsError> {
    let group = name.to_owned();
    let released = ops.database("release the brakes of a group", |connection| {
        Box::pin(async move { brakes::release(connection, &group).await })
    });
    let lane = |Partition { topic, number }| StoppedLane { topic: topic.to_string(), partition: number };
    Ok(Resumed { group: name.to_owned(), lanes: released.await?.into_iter().map(lane).collect() })
}

/// What [`accept`] changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Accepted {
    /// The group.
    pub group: String,
    /// The lineage of the database in use, which Kafka's offsets name now.
    pub lineage: Uuid,
    /// The partitions whose offsets named another one.
    pub partitions: Vec<AcceptedPartition>,
}

/// A partition whose committed offset named another database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AcceptedPartition {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Kafka's offset, which stays.
    pub offset: i64,
    /// The lineage it named.
    pub theirs: Uuid,
}

/// Lets a stopped group go on with the database in use, though its offsets were committed for
/// another one. Where this database knows a position of the group, it will start there; where it
/// does not, at Kafka's offset, which is recorded.
///
/// # Errors
/// When the group has running members or nobody knows it, or a server is away. It may be run again.
pub async fn accept(ops: &Ops, group: &str) -> Result<Accepted, OpsError> {
    let lineage: Uuid = ops
        .database("tell its lineage", |connection| {
            Box::pin(async move { sqlx::query_scalar("SELECT id FROM idem_lineage").fetch_one(connection).await })
        })
        .await?;
    let observer = ops.observer(group);
    let cluster = observer.partitions().await.map_err(OpsError::kafka("list its topics"))?;
    let asked = cluster.into_keys().filter(|partition| !partition.topic.starts_with("__")).collect();
    let committed = observer.committed(asked).await.map_err(OpsError::kafka("tell the group's offsets"))?;
    if committed.is_empty() {
        return Err(OpsError::NoGroup { group: group.to_owned() });
    }
    let mut read = HashMap::new();
    let mut others: Vec<(Partition, i64, Uuid)> = committed
        .into_iter()
        .filter_map(|(partition, (offset, metadata))| {
            let committed = Committed::parse(offset, &metadata);
            read.insert(partition.clone(), committed.read);
            match committed.by {
                CommittedBy::Lineage(theirs) if theirs != lineage => Some((partition, offset, theirs)),
                CommittedBy::Lineage(_) | CommittedBy::Other => None,
            }
        })
        .collect();
    others.sort_unstable();
    if !others.is_empty() {
        let commit = |whose: fn(Uuid, Uuid) -> Uuid| {
            let offsets = others.iter().map(|(partition, offset, theirs)| {
                // How far they had begun is to be known by whoever goes on.
                let read = read.get(partition).copied().flatten();
                (partition.clone(), *offset, CommittedBy::metadata(whose(lineage, *theirs), read))
            });
            observer.commit(offsets.collect())
        };
        // What is there already, first: the broker refuses it while the group has members, and then
        // nothing may be recorded.
        commit(|_, theirs| theirs).await.map_err(|error| refused(group, error))?;
        // A partition without a row would start at the log's beginning once the lineage is this one.
        record(ops, group, &others).await?;
        commit(|ours, _| ours).await.map_err(|error| refused(group, error))?;
    }
    let accepted = |(partition, offset, theirs): (Partition, i64, Uuid)| AcceptedPartition {
        topic: partition.topic.to_string(),
        partition: partition.number,
        offset,
        theirs,
    };
    Ok(Accepted { group: group.to_owned(), lineage, partitions: others.into_iter().map(accepted).collect() })
}

pub(super) fn refused(group: &str, error: KafkaError) -> OpsError {
    use RDKafkaErrorCode::{
        FencedMemberEpoch, IllegalGeneration, RebalanceInProgress, StaleMemberEpoch, UnknownMemberId,
    };
    match error.rdkafka_error_code() {
        Some(UnknownMemberId | IllegalGeneration | RebalanceInProgress | FencedMemberEpoch | StaleMemberEpoch) => {
            OpsError::GroupRunning { group: group.to_owned() }
        }
        _ => OpsError::kafka("take the group's offsets")(error),
    }
}

/// Records Kafka's offsets where the database knows none.
async fn record(ops: &Ops, group: &str, offsets: &[(Partition, i64, Uuid)]) -> Result<(), OpsError> {
    let group = group.to_owned();
    let topics: Vec<String> = offsets.iter().map(|(partition, ..)| partition.topic.to_string()).collect();
    let numbers: Vec<i32> = offsets.iter().map(|(partition, ..)| partition.number).collect();
    let offsets: Vec<i64> = offsets.iter().map(|(_, offset, _)| *offset).collect();
    ops.database("record the group's positions", move |connection| {
        Box::pin(async move {
            sqlx::query(
                "INSERT INTO consumer_progress (consumer_group, topic, partition, epoch, next_offset) \
                 SELECT $1, topic, partition, 0, next_offset \
                   FROM unnest($2::text[], $3::int[], $4::bigint[]) AS new(topic, partition, next_offset) \
                 ON CONFLICT DO NOTHING",
            )
            .bind(group)
            .bind(topics)
            .bind(numbers)
            .bind(offsets)
            .execute(connection)
            .await
            .map(drop)
        })
    })
    .await
}
