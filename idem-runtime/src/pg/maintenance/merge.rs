//! Days that have long been empty, merged into `late`.
//!
//! Hundreds of partitions cost an insert nothing, but they grow for ever. The parent is locked for the
//! moment that it takes, in which every insert waits: only when nobody holds it up, and seldom.

use sqlx::PgConnection;

use super::table::{Kind, Table};
use super::{BOUND, is_the_runner};
use crate::decide::retention;
use crate::decide::sql_error;
use crate::error::Class;
use crate::pg::session::{Pools, in_transaction};

/// Attaching `late` anew reads it whole.
const LARGEST_LATE: i64 = 64 << 20;

/// Merges the oldest empty days, if there are too many. Returns how many; none if somebody is using the
/// table for long, or another process is at it.
pub(crate) async fn merge(pools: &Pools, table: &Table) -> Result<u64, sqlx::Error> {
    let days: Vec<(i64, bool)> = table
        .parts
        .iter()
        .filter_map(|part| match part.kind {
            Kind::Day(day) => Some((day, part.is_empty())),
            Kind::Late | Kind::Natural | Kind::Flat => None,
        })
        .collect();
    let many = retention::days_to_merge(&days);
    let late = table.parts.iter().find(|part| part.kind == Kind::Late);
    if many == 0 || late.is_none_or(|late| late.heap_bytes > LARGEST_LATE) {
        return Ok(0);
    }
    let most = i32::try_from(many).unwrap_or(i32::MAX);
    let merged = in_transaction(pools, BOUND, move |tx| Box::pin(async move { merge_in(tx, most).await })).await;
    match merged {
        Err(error) if sql_error::class(&error) == Class::Infrastructure && error.as_database_error().is_some() => {
            tracing::debug!(%error, "no quiet moment to merge empty days of the dedup table");
            Ok(0)
        }
        merged => merged,
    }
}

async fn merge_in(tx: &mut PgConnection, most: i32) -> Result<u64, sqlx::Error> {
    if !is_the_runner(tx).await? {
        return Ok(0);
    }
    sqlx::query("SET LOCAL lock_timeout = '300ms'").execute(&mut *tx).await?;
    let merged: i32 = sqlx::query_scalar("SELECT idem_merge_days($1)").bind(most).fetch_one(tx).await?;
    if merged > 0 {
        tracing::info!(days = merged, "merged long-empty days of the dedup table");
    }
    Ok(u64::from(merged.unsigned_abs()))
}
