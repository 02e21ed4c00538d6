//! Keeps the dedup table correct and small: days are attached ahead, and emptied when nobody needs them.
//!
//! Adding does not depend on emptying: each is a task of its own, with locks and bounds of its own.
//! One runner at a time, whichever process it is in.

mod attach;
mod empty;
mod floors;
pub(super) mod index;
mod merge;
mod prune;
mod table;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::watch;

pub(crate) use self::attach::{attach_ahead, days_ahead, keep_attached};
pub(crate) use self::empty::{Emptied, empty};
pub(crate) use self::floors::{floors, kind};
pub(crate) use self::table::{Kind, Part, Table, parts};
use super::session::{Pools, in_transaction};
use crate::config::Config;
use crate::decide::retention::{self, Rules, Verdict};
use crate::decide::sql_error;
use crate::error::Class;

/// Numbers of advisory locks, arbitrary but fixed. Adding has one of its own: it must not wait for emptying.
const ATTACH_LOCK: i64 = 0x6964_656d_0001;
const LOCK: i64 = 0x6964_656d_0002;
const INDEX_LOCK: i64 = 0x6964_656d_0003;
pub(super) const CLAIM_LOCK: i64 = 0x6964_656d_0004;
const INTERVAL: Duration = Duration::from_secs(3_600);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Then it says which groups it waits for.
const FIRST_PATIENCE: Duration = Duration::from_secs(120);
/// For one transaction of the maintenance: a day of many millions of rows is read.
const BOUND: Duration = Duration::from_secs(600);

/// Takes the one runner's place until the transaction ends. `false`: another process has it.
pub(super) async fn is_the_runner(tx: &mut PgConnection) -> Result<bool, sqlx::Error> {
    try_lock(tx, LOCK).await
}

async fn try_lock(tx: &mut PgConnection, lock: i64) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(lock).fetch_one(tx).await
}

/// Raises the horizon of groups whose rows of a range of ids go, to the end of that range. In the
/// transaction that deletes them, and before it ends.
async fn raise(tx: &mut PgConnection, groups: &[String], end_millis: i64) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO group_horizon (consumer_group, ids_before) \
         SELECT name, to_timestamp($2 / 1000.0) FROM unnest($1::text[]) AS name \
         ON CONFLICT (consumer_group) DO UPDATE \
            SET ids_before = greatest(group_horizon.ids_before, excluded.ids_before), raised_at = now()",
    )
    .bind(groups)
    .bind(end_millis)
    .execute(tx)
    .await
    .map(drop)
}

/// The rules of a configuration.
pub(crate) fn rules(config: &Config) -> Rules {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4);
    Rules {
        window: millis(config.dedup_window),
        skew: millis(config.clock_skew),
        max_hold: millis(config.max_hold.max(config.dedup_window)),
    }
}

/// The groups of a run whose first positions have been read, by this member or by others. Before that nothing
/// is emptied: an operator may have set a group back, and only the takeover records it.
#[derive(Debug, Clone)]
pub(crate) struct FirstPositions(Arc<watch::Sender<HashSet<Arc<str>>>>);

impl FirstPositions {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(HashSet::new())))
    }

    /// Notes that a group's positions were read.
    pub(crate) fn note(&self, group: &Arc<str>) {
        self.0.send_if_modified(|groups| groups.insert(Arc::clone(group)));
    }

    /// Returns when all groups have said so.
    async fn of_all(&self, groups: &[Arc<str>]) {
        let mut read = self.0.subscribe();
        let of_all = |read: &HashSet<Arc<str>>| groups.iter().all(|group| read.contains(group));
        while tokio::time::timeout(FIRST_PATIENCE, read.wait_for(of_all)).await.is_err() {
            let waits_for: Vec<&Arc<str>> = groups.iter().filter(|group| !read.borrow().contains(*group)).collect();
            tracing::info!(?waits_for, "the dedup table is looked after once the positions of these groups are known");
        }
    }
}

/// Keeps the table small for as long as the process runs.
pub(crate) async fn keep_small(pools: Pools, rules: Rules, first: FirstPositions, groups: Vec<Arc<str>>) {
    first.of_all(&groups).await;
    loop {
        let pause = match sweep(&pools, &rules).await {
            Ok(Swept { waiting: 0, .. }) => INTERVAL,
            Ok(_) => RETRY_INTERVAL,
            Err(error) if sql_error::class(&error) == Class::Infrastructure => {
                tracing::warn!(%error, "could not look after the dedup table; trying again");
                RETRY_INTERVAL
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "the dedup table grows: run `idem migrate --grant ROLE`, for this program's database role, with the \
                     role that owns the tables"
                );
                INTERVAL
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// What a sweep did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Partitions that were emptied, by name.
    pub emptied: Vec<String>,
    /// Rows that were deleted one by one.
    pub deleted: u64,
    /// Days that were merged into `late`.
    pub merged: u64,
    /// Partitions whose lock was not to be had: worth another try soon.
    pub waiting: u64,
}

/// Empties what is due, once.
pub(crate) async fn sweep(pools: &Pools, rules: &Rules) -> Result<Swept, sqlx::Error> {
    let (table, floors) =
        in_transaction(pools, BOUND, |tx| Box::pin(async move { Ok((parts(tx).await?, floors(tx).await?)) })).await?;
    let mut swept = Swept::default();
    for part in &table.parts {
        let Kind::Day(_) = part.kind else { continue };
        let (Some(end), false) = (part.end_millis(), part.is_empty()) else { continue };
        match retention::judge(end, table.now, rules, &floors) {
            Verdict::Remembered => {}
            Verdict::Held(by) => tracing::debug!(partition = part.name, ?by, "kept: groups still have to read"),
            Verdict::Due { processed_before } => match empty(pools, part, processed_before).await {
                Ok(Emptied::Done { groups, kept }) => {
                    tracing::info!(partition = part.name, ?groups, kept, "emptied");
                    swept.emptied.push(part.name.clone());
                }
                Ok(Emptied::NothingToDo) => {}
                Ok(Emptied::AnotherRunner) => return Ok(swept),
                // Only this day waits; those who use it must not wait for it.
                Err(error)
                    if sql_error::class(&error) == Class::Infrastructure && error.as_database_error().is_some() =>
                {
                    tracing::warn!(partition = part.name, %error, "could not empty a partition; trying again");
                    swept.waiting += 1;
                }
                Err(error) => return Err(error),
            },
        }
    }
    let limits = retention::limits(rules, &floors);
    for part in table.parts.iter().filter(|part| part.goes_row_by_row()) {
        if part.kind == Kind::Flat {
            index::make_sure(pools).await?;
            warn_of_size(pools, part).await?;
        }
        swept.deleted += prune::prune(pools, part, rules, &limits).await?;
    }
    swept.merged = merge::merge(pools, &table).await?;
    tell(pools, &table).await?;
    Ok(swept)
}

/// Makes what deleting from an adopted table needs, and only its owner can make.
pub(crate) async fn prepare_adopted(pools: &Pools) -> Result<(), sqlx::Error> {
    let table = in_transaction(pools, BOUND, |tx| Box::pin(parts(tx))).await?;
    if table.parts.iter().any(|part| part.kind == Kind::Flat) {
        index::make_sure(pools).await?;
    }
    Ok(())
}

/// An adopted table is deleted from row by row, which at some point costs more than the inserts.
async fn warn_of_size(pools: &Pools, part: &Part) -> Result<(), sqlx::Error> {
    const MANY: i64 = 1_000_000;
    if part.estimated_rows <= MANY {
        return Ok(());
    }
    let days: i64 = in_transaction(pools, BOUND, |tx| {
        let days = "SELECT coalesce(extract(epoch FROM now() - min(processed_at)) / 86400, 0)::bigint + 1 FROM processed_event";
        Box::pin(sqlx::query_scalar(days).fetch_one(tx))
    })
    .await?;
    let per_day = part.estimated_rows / days.max(1);
    if per_day > MANY {
        tracing::warn!(
            rows_per_day = per_day,
            "processed_event is not partitioned and takes more than a million events a day; `idem migrate --partition` \
             makes the deletion of a day instant, while everything runs"
        );
    }
    Ok(())
}

async fn tell(pools: &Pools, table: &Table) -> Result<(), sqlx::Error> {
    metrics::gauge!("idem_dedup_partitions").set(table.parts.len() as f64);
    let horizons: Vec<(String, f64)> = in_transaction(pools, BOUND, |tx| {
        Box::pin(async move {
            sqlx::query_as(
                "SELECT consumer_group, extract(epoch FROM now() - ids_before)::float8 FROM group_horizon \
                  WHERE ids_before IS NOT NULL",
            )
            .fetch_all(tx)
            .await
        })
    })
    .await?;
    for (group, age) in horizons {
        metrics::gauge!("idem_dedup_horizon_seconds", "group" => group).set(age);
    }
    Ok(())
}
