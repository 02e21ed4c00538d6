//! The partitions of the dedup table: what is in them, when they are emptied, and who keeps them.

use serde::Serialize;
use sqlx::AssertSqlSafe;

use super::{Ops, OpsError, Timestamp};
use crate::decide::retention::{self, Verdict};
use crate::pg::maintenance::{self, Emptied, Kind, Part, floors, parts};

/// The dedup table, partition by partition, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Partitions {
    /// The database's clock.
    pub now: Timestamp,
    /// How long a row is kept after its event was processed, in milliseconds.
    pub window_ms: u64,
    /// Each of them. A table that was there before the library is one.
    pub partitions: Vec<Partition>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// The table's name.
    pub name: String,
    /// The first time of its ids, in UTC. None: without a bound.
    pub from: Option<Timestamp>,
    /// The time that its ids end before. None: without a bound.
    pub to: Option<Timestamp>,
    /// Its rows.
    pub rows: i64,
    /// Whether they were counted; otherwise they are what the server's statistics estimate.
    pub rows_are_exact: bool,
    /// With indexes.
    pub bytes: i64,
    /// When it is emptied at the earliest. None: it is empty, or its rows are deleted by their age.
    pub droppable_from: Option<Timestamp>,
    /// The groups that may still have to read events of its time, and keep it though it is due.
    pub held_by: Vec<String>,
}

/// Larger tables are not counted.
const COUNTED_BYTES: i64 = 16 << 20;

/// The partitions.
///
/// # Errors
/// When the database is away, or has no tables.
pub async fn list(ops: &Ops) -> Result<Partitions, OpsError> {
    let rules = maintenance::rules(&ops.config);
    let (table, floors, counts) = ops
        .database("list the partitions of the dedup table", |connection| {
            Box::pin(async move {
                let table = parts(connection).await?;
                let floors = floors(connection).await?;
                let mut counts = Vec::with_capacity(table.parts.len());
                for part in &table.parts {
                    counts.push(match part.heap_bytes {
                        0 => Some(0),
                        1..COUNTED_BYTES => {
                            let count = format!("SELECT count(*) FROM {}", part.sql_name);
                            Some(sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut *connection).await?)
                        }
                        _ => None,
                    });
                }
                Ok((table, floors, counts))
            })
        })
        .await?;
    let first_day = table.parts.iter().find_map(Part::start_millis);
    let partitions = table.parts.iter().zip(counts).map(|(part, count): (&Part, Option<i64>)| {
        let end = part.end_millis().filter(|_| count != Some(0));
        let held_by = match end.map(|end| retention::judge(end, table.now, &rules, &floors)) {
            Some(Verdict::Held(by)) => by,
            _ => Vec::new(),
        };
        let to = part.end_millis().or(first_day.filter(|_| part.kind == Kind::Late));
        Partition {
            name: part.name.clone(),
            from: part.start_millis().and_then(Timestamp::of_millis),
            to: to.and_then(Timestamp::of_millis),
            rows: count.unwrap_or(part.estimated_rows),
            rows_are_exact: count.is_some(),
            bytes: part.bytes,
            droppable_from: end.map(|end| retention::droppable_from(end, &rules)).and_then(Timestamp::of_millis),
            held_by,
        }
    });
    Ok(Partitions {
        now: Timestamp(table.now.unsigned_abs()),
        window_ms: rules.window.unsigned_abs(),
        partitions: partitions.collect(),
    })
}

/// What [`sweep`] did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Days that were emptied, by the names of their tables.
    pub emptied: Vec<String>,
    /// Rows that were deleted one by one.
    pub deleted: u64,
    /// Long-empty days that were merged into `late`.
    pub merged: u64,
    /// Days that were in use and are to be tried again.
    pub waiting: u64,
}

/// Does now what every running program does once an hour: removes what is older than the window and has
/// been read by everybody. Safe beside running programs.
///
/// # Errors
/// When the database is away, or has no tables.
pub async fn sweep(ops: &Ops) -> Result<Swept, OpsError> {
    let swept = maintenance::sweep(&ops.pools, &maintenance::rules(&ops.config)).await;
    let maintenance::Swept { emptied, deleted, merged, waiting } =
        swept.map_err(|error| OpsError::database("empty partitions of the dedup table", error))?;
    Ok(Swept { emptied, deleted, merged, waiting })
}

/// Empties one day whatever its age, as [`sweep`] would: the groups that have rows there may have
/// forgotten events up to its end from then on, and a redelivery is `expired`. For tests and
/// measurements.
///
/// Returns whether there was something to empty.
///
/// # Errors
/// When the database is away, there is no such day, or it is in use for longer than two seconds.
pub async fn empty(ops: &Ops, name: &str) -> Result<bool, OpsError> {
    let table = ops.database("list the partitions", |connection| Box::pin(parts(connection))).await?;
    let Some(part) = table.parts.iter().find(|part| part.name == name && matches!(part.kind, Kind::Day(_))) else {
        return Err(OpsError::NoPartition { name: name.to_owned() });
    };
    let emptied = maintenance::empty(&ops.pools, part, i64::from(u32::MAX) * 1_000).await;
    let emptied = emptied.map_err(|error| OpsError::database("empty a partition of the dedup table", error))?;
    Ok(matches!(emptied, Emptied::Done { .. }))
}
