//! Days that have long been empty, merged into `late`.
//!
//! Hundreds of partitions cost an insert nothing, but they grow for ever. The parent is locked for the
//! moment that it takes, in which every insert waits: only when nobody holds it up, and seldom.

use sqlx::{AssertSqlSafe, PgConnection};

use super::table::{Kind, Part, Table};
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
    let (Some(late), 1..) = (late.filter(|late| late.heap_bytes <= LARGEST_LATE), many) else { return Ok(0) };
    let going: Vec<Part> =
        table.parts.iter().filter(|part| matches!(part.kind, Kind::Day(_))).take(many).cloned().collect();
    let late = late.sql_name.clone();
    let merged =
        in_transaction(pools, BOUND, move |tx| Box::pin(async move { merge_in(tx, &late, &going).await })).await;
    match merged {
        Err(error) if sql_error::class(&error) == Class::Infrastructure && error.as_database_error().is_some() => {
            tracing::debug!(%error, "no quiet moment to merge empty days of the dedup table");
            Ok(0)
        }
        merged => merged,
    }
}

async fn merge_in(tx: &mut PgConnection, late: &str, going: &[Part]) -> Result<u64, sqlx::Error> {
    let Some(Kind::Day(last)) = going.last().map(|part| part.kind) else { return Ok(0) };
    if !is_the_runner(tx).await? {
        return Ok(0);
    }
    sqlx::query("SET LOCAL lock_timeout = '300ms'").execute(&mut *tx).await?;
    sqlx::query("LOCK TABLE processed_event IN ACCESS EXCLUSIVE MODE").execute(&mut *tx).await?;
    for part in going {
        let is_used = format!("SELECT EXISTS (SELECT FROM {})", part.sql_name);
        if sqlx::query_scalar(AssertSqlSafe(is_used)).fetch_one(&mut *tx).await? {
            return Ok(0);
        }
    }
    for part in going {
        sqlx::query(AssertSqlSafe(format!("DROP TABLE {}", part.sql_name))).execute(&mut *tx).await?;
    }
    let bound: String = sqlx::query_scalar("SELECT idem_first_id_of(DATE '1970-01-01' + $1::integer)::text")
        .bind(i32::try_from(last + 1).unwrap_or(i32::MAX))
        .fetch_one(&mut *tx)
        .await?;
    sqlx::raw_sql(AssertSqlSafe(format!(
        "ALTER TABLE processed_event DETACH PARTITION {late}; \
         ALTER TABLE processed_event ATTACH PARTITION {late} FOR VALUES FROM (MINVALUE) TO ('{bound}')"
    )))
    .execute(&mut *tx)
    .await?;
    tracing::info!(days = going.len(), "merged long-empty days of the dedup table");
    Ok(going.len() as u64)
}
