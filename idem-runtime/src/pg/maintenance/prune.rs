//! Deleting rows one by one, in chunks: `late`, `natural`, and an adopted table.
//!
//! A chunk is one statement: what goes, and the horizons of their groups. A redelivery of an id that is
//! being deleted waits for that transaction, since its insert conflicts with the row; then it inserts,
//! and reads the horizon with a snapshot of its own.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::table::Part;
use super::{BOUND, is_the_runner};
use crate::decide::retention::{Limit, Rules};
use crate::pg::session::{Pools, in_transaction};

/// Rows of a chunk: some 20 ms of work.
const CHUNK: i64 = 5_000;
/// Of a group that has nothing to read: the window alone.
const NO_LIMIT: i64 = i64::MAX;
/// Between chunks, so that others and autovacuum keep up.
const PAUSE: Duration = Duration::from_millis(50);

/// Deletes what is older than the window and has been read by its group. Returns how many rows went.
///
/// # Cancel safety
/// Dropped in the middle, the chunks so far are gone, with their horizons.
pub(crate) async fn prune(pools: &Pools, part: &Part, rules: &Rules, limits: &[Limit]) -> Result<u64, sqlx::Error> {
    if part.is_empty() {
        return Ok(0);
    }
    let mut total = 0;
    loop {
        let deleted = chunk(pools, part, rules, limits).await?;
        total += deleted.unsigned_abs();
        if deleted < CHUNK {
            return Ok(total);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The table is named twice: it may have become a partitioned one meanwhile, and a place in it means
/// another row in each partition.
///
/// Only ids that the library could take raise a horizon: a v7, or a natural key. Anything else is refused before it
/// is looked up. A v7 whose time has not come is refused now and not later, so its row stays until then.
async fn chunk(pools: &Pools, part: &Part, rules: &Rules, limits: &[Limit]) -> Result<i64, sqlx::Error> {
    let name = &part.sql_name;
    let regclass = format!("'{}'::regclass", name.replace('\'', "''"));
    let statement = format!(
        "WITH limits AS (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS l(of_group, ids, naturals)), \
              going AS ( \
                 SELECT row.ctid AS at FROM {name} AS row \
                  WHERE row.tableoid = {regclass} AND row.processed_at < now() - $4 * interval '1 millisecond' \
                    AND NOT (idem_kind_of(row.event_id) = 'time' \
                             AND idem_millis_of(row.event_id) > extract(epoch FROM now()) * 1000) \
                    AND (row.processed_at < now() - $5 * interval '1 millisecond' \
                         OR CASE idem_kind_of(row.event_id) \
                            WHEN 'time' THEN idem_millis_of(row.event_id) \
                                 < coalesce((SELECT ids FROM limits WHERE of_group = row.consumer_group), {NO_LIMIT}) \
                            WHEN 'natural' THEN extract(epoch FROM row.processed_at) * 1000 \
                                 < coalesce((SELECT naturals FROM limits WHERE of_group = row.consumer_group), {NO_LIMIT}) \
                            ELSE true END) \
                  ORDER BY row.processed_at LIMIT $6 FOR UPDATE OF row SKIP LOCKED), \
              gone AS (DELETE FROM {name} AS row WHERE row.ctid = ANY (ARRAY(SELECT at FROM going)) AND row.tableoid = {regclass} \
                       RETURNING row.event_id, row.consumer_group, row.processed_at), \
              raised AS ( \
                 INSERT INTO group_horizon (consumer_group, ids_before, natural_before) \
                 SELECT consumer_group, \
                        to_timestamp((max(idem_millis_of(event_id)) FILTER (WHERE idem_kind_of(event_id) = 'time') + 1) / 1000.0), \
                        max(processed_at) FILTER (WHERE idem_kind_of(event_id) = 'natural') + $7 * interval '1 millisecond' \
                   FROM gone GROUP BY consumer_group \
                 ON CONFLICT (consumer_group) DO UPDATE \
                    SET ids_before = greatest(group_horizon.ids_before, excluded.ids_before), \
                        natural_before = greatest(group_horizon.natural_before, excluded.natural_before), \
                        raised_at = now()) \
         SELECT count(*) FROM gone"
    );
    let groups: Vec<String> = limits.iter().map(|limit| limit.group.clone()).collect();
    let ids: Vec<i64> = limits.iter().map(|limit| limit.ids_before).collect();
    let naturals: Vec<i64> = limits.iter().map(|limit| limit.natural_before).collect();
    let (window, max_hold, skew) = (rules.window, rules.max_hold, rules.skew);
    in_transaction(pools, BOUND, move |tx| {
        Box::pin(async move {
            if !is_the_runner(tx).await? {
                return Ok(0);
            }
            sqlx::query_scalar(AssertSqlSafe(statement))
                .bind(groups)
                .bind(ids)
                .bind(naturals)
                .bind(window)
                .bind(max_hold)
                .bind(CHUNK)
                .bind(skew)
                .fetch_one(tx)
                .await
        })
    })
    .await
}
