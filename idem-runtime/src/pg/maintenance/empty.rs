//! Emptying a day at once, without a redelivery slipping between.
//!
//! One transaction locks the partition, looks which groups have rows there, raises exactly their
//! horizons, and truncates it. A delivery of an id of that day either was before the lock, then it is
//! waited for and its row is seen; or it waits for the lock, and reads the horizon after its insert with
//! a snapshot of its own, younger than the commit.

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::table::Part;
use super::{BOUND, is_the_runner, raise};
use crate::pg::session::{Pools, in_transaction};

/// Younger rows that are put back, at most. With more of them the day waits until they have aged: a
/// group reads that day's events now.
const MOST_KEPT: i64 = 100_000;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// The rows are gone.
    Done {
        /// The groups whose rows went.
        groups: Vec<String>,
        /// Rows that were processed too recently, and stay.
        kept: usize,
    },
    /// No row is old enough, or too many are not.
    NothingToDo,
    /// Another process is at it.
    AnotherRunner,
}

/// Removes the rows of a day that were processed before a time (milliseconds), and raises the horizons
/// of their groups to the end of the day.
///
/// # Errors
/// 55P03 when somebody uses the partition for longer than the lock timeout.
///
/// # Cancel safety
/// Dropped in the middle, nothing has happened.
pub(crate) async fn empty(pools: &Pools, part: &Part, processed_before: i64) -> Result<Emptied, sqlx::Error> {
    let Some(end) = part.end_millis() else { return Ok(Emptied::NothingToDo) };
    let name = part.sql_name.clone();
    in_transaction(pools, BOUND, move |tx| Box::pin(async move { empty_in(tx, &name, end, processed_before).await }))
        .await
}

async fn empty_in(tx: &mut PgConnection, name: &str, end: i64, processed_before: i64) -> Result<Emptied, sqlx::Error> {
    if !is_the_runner(tx).await? {
        return Ok(Emptied::AnotherRunner);
    }
    // Scans by one process: those of several would take the processors from the events.
    sqlx::query("SET LOCAL max_parallel_workers_per_gather = 0").execute(&mut *tx).await?;
    // Without the lock first: it brings the pages into memory, and there may be nothing to do.
    let mut groups: Vec<String> = sqlx::query_scalar(AssertSqlSafe(format!(
        "SELECT DISTINCT consumer_group FROM {name} WHERE processed_at < to_timestamp($1 / 1000.0)"
    )))
    .bind(processed_before)
    .fetch_all(&mut *tx)
    .await?;
    let young: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
        "SELECT count(*) FROM (SELECT FROM {name} WHERE processed_at >= to_timestamp($1 / 1000.0) LIMIT $2) AS young"
    )))
    .bind(processed_before)
    .bind(MOST_KEPT)
    .fetch_one(&mut *tx)
    .await?;
    if groups.is_empty() || young >= MOST_KEPT {
        return Ok(Emptied::NothingToDo);
    }

    // Waits only for transactions that use this partition. Nobody can add a row or look from here on.
    sqlx::query(AssertSqlSafe(format!("LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE"))).execute(&mut *tx).await?;
    // A statement of its own, so that it sees what was committed while the lock was waited for: young
    // rows, and rows of groups that came since.
    let rows: Vec<(Uuid, String, i64, bool)> = sqlx::query_as(AssertSqlSafe(format!(
        "SELECT event_id, consumer_group::text, (extract(epoch FROM processed_at) * 1000000)::bigint, \
                processed_at >= to_timestamp($1 / 1000.0) \
           FROM {name} \
          WHERE processed_at >= to_timestamp($1 / 1000.0) OR consumer_group <> ALL($2) LIMIT $3"
    )))
    .bind(processed_before)
    .bind(&groups)
    .bind(MOST_KEPT)
    .fetch_all(&mut *tx)
    .await?;
    if i64::try_from(rows.len()).is_ok_and(|found| found >= MOST_KEPT) {
        return Ok(Emptied::NothingToDo);
    }
    let (young, old): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(.., is_young)| *is_young);
    groups.extend(old.into_iter().map(|(_, group, ..)| group));
    groups.sort_unstable();
    groups.dedup();

    raise(tx, &groups, end).await?;
    sqlx::query(AssertSqlSafe(format!("TRUNCATE {name}"))).execute(&mut *tx).await?;
    put_back(tx, name, &young).await?;
    Ok(Emptied::Done { groups, kept: young.len() })
}

async fn put_back(tx: &mut PgConnection, name: &str, rows: &[(Uuid, String, i64, bool)]) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(AssertSqlSafe(format!(
        "INSERT INTO {name} (event_id, consumer_group, processed_at) \
         SELECT id, name, timestamptz 'epoch' + micros * interval '1 microsecond' \
           FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS kept(id, name, micros)"
    )))
    .bind(rows.iter().map(|(id, ..)| *id).collect::<Vec<Uuid>>())
    .bind(rows.iter().map(|(_, group, ..)| group.as_str()).collect::<Vec<&str>>())
    .bind(rows.iter().map(|(.., micros, _)| *micros).collect::<Vec<i64>>())
    .execute(tx)
    .await
    .map(drop)
}
