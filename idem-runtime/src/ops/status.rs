//! The state of the whole: schema, dedup table, groups. And [`migrate`], which brings the schema up
//! to date.

use std::collections::BTreeSet;

use serde::Serialize;
use uuid::Uuid;

use super::groups::{self, Group};
use super::{Ops, OpsError, Timestamp, offsets};
use crate::pg::adopt::{self, AdoptError};
use crate::pg::{maintenance, migrate as migrations, rights};

/// The state of the whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The database.
    pub schema: Schema,
    /// The dedup table.
    pub dedup: Dedup,
    /// The groups that the database knows.
    pub groups: Vec<GroupStatus>,
    /// Why there are no lags.
    pub kafka_error: Option<String>,
}

/// The schema of the library's tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Schema {
    /// The identity of this database, which a restored copy shares.
    pub lineage: Uuid,
    /// Migrations that were applied.
    pub applied: Vec<Migration>,
    /// Migrations of this program that were not, by name.
    pub pending: Vec<String>,
}

/// An applied migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Migration {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: String,
    /// When it was applied.
    pub applied_at: Timestamp,
}

/// The dedup table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dedup {
    /// Its partitions.
    pub partitions: i64,
    /// Those of one day each.
    pub days: i64,
    /// The first of these days, in UTC.
    pub first_day: Option<String>,
    /// The last one.
    pub last_day: Option<String>,
    /// Rows, as the server's statistics estimate them.
    pub estimated_rows: i64,
    /// Its size with all indexes.
    pub bytes: i64,
    /// How long a row is kept after its event was processed, in milliseconds.
    pub window_ms: u64,
    /// The time of the oldest id in it.
    pub oldest_event: Option<Timestamp>,
}

/// A group and how far it is behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// The group.
    #[serde(flatten)]
    pub group: Group,
    /// Events that are not handled yet. None: see [`Status::kafka_error`].
    pub lag: Option<i64>,
    /// The same for each partition, of those that have some.
    pub lags: Vec<PartitionLag>,
}

/// How far a group is behind on one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionLag {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Events that are not handled yet.
    pub lag: i64,
}

/// The state of the whole. A broker that is away leaves the lags out.
///
/// # Errors
/// When the database is away, or has no tables.
pub async fn status(ops: &Ops) -> Result<Status, OpsError> {
    let schema = schema(ops).await?;
    let dedup = dedup(ops).await?;
    let mut status = Status { schema, dedup, groups: Vec::new(), kafka_error: None };
    for group in groups::list(ops).await? {
        // One failure is enough: each costs a timeout.
        let lag = match status.kafka_error {
            // Forgotten, but for its horizon.
            None if group.partitions == 0 => Ok(None),
            None => offsets::offsets(ops, &group.group).await.map(Some),
            Some(_) => Ok(None),
        };
        let offsets = lag.inspect_err(|error| status.kafka_error = Some(error.to_string())).ok().flatten();
        let lags = offsets.iter().flat_map(|offsets| &offsets.partitions).filter_map(|found| {
            let lag = found.lag.filter(|lag| *lag > 0)?;
            Some(PartitionLag { topic: found.topic.clone(), partition: found.partition, lag })
        });
        let lags = lags.collect();
        status.groups.push(GroupStatus { group, lag: offsets.map(|offsets| offsets.lag), lags });
    }
    Ok(status)
}

/// Brings the schema up to date and attaches the dedup table's coming days. Returns what is there now.
///
/// # Errors
/// When the database is away, or refuses.
pub async fn migrate(ops: &Ops) -> Result<Schema, OpsError> {
    let pool = &ops.pools.service;
    let failed = |error| OpsError::database("apply the migrations", error);
    adopt::check(&ops.pools, &BTreeSet::new()).await.map_err(refused)?;
    migrations::migrate(pool).await.map_err(failed)?;
    adopt::settle_horizons(&ops.pools, ops.config.clock_skew).await.map_err(failed)?;
    let ahead = maintenance::days_ahead(ops.config.clock_skew);
    maintenance::attach_ahead(&ops.pools, ahead).await.map_err(failed)?;
    schema(ops).await
}

/// Gives a database role what a service needs, and no right to change the schema: for a service that runs with
/// `IDEM_MIGRATE=false`. To be repeated after each migration, with the role that owns the tables.
///
/// # Errors
/// When there is no such role, this one does not own the tables, or the database is away.
pub async fn grant(ops: &Ops, role: &str) -> Result<(), OpsError> {
    let role = role.to_owned();
    ops.database("give a role the rights of a service", |connection| {
        Box::pin(async move { rights::grant(connection, &role).await })
    })
    .await?;
    let prepared = maintenance::prepare_adopted(&ops.pools).await;
    prepared.map_err(|error| OpsError::database("make an index on the dedup table", error))
}

/// Makes an existing `processed_event` that is in one piece the partitioned one, while everything runs, and
/// brings the schema up to date. It can be repeated, and does nothing when it is done.
///
/// # Errors
/// When the table can't be used or partitioned, and what to do; when the database is away, or refuses.
///
/// # Cancel safety
/// Dropped in the middle, everything still works, but events with natural keys may wait until it is called
/// again.
pub async fn partition(ops: &Ops) -> Result<Schema, OpsError> {
    migrate(ops).await?;
    adopt::partition(&ops.pools, maintenance::days_ahead(ops.config.clock_skew)).await.map_err(refused)?;
    schema(ops).await
}

/// Makes `processed_event` anew where its unique key holds `processed_at` or it is partitioned by
/// something else than the id, copies the ids, and brings the schema up to date. The old table stays as
/// `processed_event_before`. Who writes to it waits meanwhile.
///
/// # Errors
/// When there is nothing to rebuild, or no way to; when the database is away, or refuses.
///
/// # Cancel safety
/// Dropped in the middle, nothing was changed but the library's own tables.
pub async fn rebuild(ops: &Ops) -> Result<Schema, OpsError> {
    let failed = |error| OpsError::database("apply the migrations", error);
    migrations::migrate(&ops.pools.service).await.map_err(failed)?;
    let days = i32::try_from(ops.config.dedup_window.as_secs() / 86_400).unwrap_or(365).clamp(7, 365);
    adopt::rebuild(&ops.pools, days).await.map_err(refused)?;
    migrate(ops).await
}

fn refused(error: AdoptError) -> OpsError {
    match error {
        AdoptError::Unusable(problems) => OpsError::Unusable { problems },
        AdoptError::Database(error) => OpsError::database("change the dedup table", error),
    }
}

async fn schema(ops: &Ops) -> Result<Schema, OpsError> {
    let (lineage, applied): (Uuid, Vec<(i64, String, i64)>) = ops
        .database("tell its schema", |connection| {
            Box::pin(async move {
                let lineage = sqlx::query_scalar("SELECT id FROM idem_lineage").fetch_one(&mut *connection).await?;
                let applied = migrations::applied(connection).await?;
                Ok((lineage, applied))
            })
        })
        .await?;
    Ok(Schema {
        lineage,
        pending: migrations::missing(&applied),
        applied: applied
            .into_iter()
            .map(|(version, name, at)| Migration { version, name, applied_at: Timestamp(at.unsigned_abs()) })
            .collect(),
    })
}

async fn dedup(ops: &Ops) -> Result<Dedup, OpsError> {
    type Row = (i64, i64, Option<String>, Option<String>, i64, i64, Option<i64>);
    let row: Row = ops
        .database("describe the dedup table", |connection| {
            Box::pin(async move {
                sqlx::query_as(
                    "WITH part AS ( \
                         SELECT c.oid, c.reltuples, substring(c.relname FROM '^processed_event_([0-9]{8})$') AS day \
                           FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
                          WHERE i.inhparent = 'processed_event'::regclass \
                         UNION ALL SELECT c.oid, c.reltuples, NULL FROM pg_class c \
                          WHERE c.oid = 'processed_event'::regclass AND c.relkind = 'r') \
                     SELECT count(*), count(day), \
                            to_char(min(to_date(day, 'YYYYMMDD')), 'YYYY-MM-DD'), \
                            to_char(max(to_date(day, 'YYYYMMDD')), 'YYYY-MM-DD'), \
                            coalesce(sum(greatest(reltuples, 0)), 0)::bigint, \
                            coalesce(sum(pg_total_relation_size(oid)), 0)::bigint, \
                            (SELECT idem_millis_of(event_id) FROM processed_event \
                              WHERE event_id < 'ff000000-0000-0000-0000-000000000000' ORDER BY event_id LIMIT 1) \
                       FROM part",
                )
                .fetch_one(connection)
                .await
            })
        })
        .await?;
    let (partitions, days, first_day, last_day, estimated_rows, bytes, oldest) = row;
    let window_ms = u64::try_from(ops.config.dedup_window.as_millis()).unwrap_or(u64::MAX);
    let oldest_event = oldest.and_then(Timestamp::of_millis);
    Ok(Dedup { partitions, days, first_day, last_day, estimated_rows, bytes, window_ms, oldest_event })
}
