//! From a table whose unique key holds `processed_at` to one that deduplicates. Handlers don't start with
//! such a table; a consumer written by hand waits until the copy is made.

use sqlx::{AssertSqlSafe, PgConnection};

use super::{AdoptError, BOUND, inspect};
use crate::decide::adoption::{Form, judge};
use crate::pg::session::{Pools, in_transaction};

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rebuilt {
    pub copied: i64,
    /// Rows whose ids are no event's: left in the old table alone.
    pub left: i64,
}

/// Makes the table anew in one transaction, and copies the distinct ids over. The old one stays as
/// `processed_event_before`. The migrations must have been applied.
pub(crate) async fn rebuild(pools: &Pools, first_day_ago: i32) -> Result<Rebuilt, AdoptError> {
    let found = in_transaction(pools, BOUND, |tx| Box::pin(inspect(tx))).await?;
    let nothing = |what: &str| AdoptError::Unusable(vec![format!("nothing to rebuild: {what}")]);
    let Some(found) = found else { return Err(nothing("there is no processed_event")) };
    match judge(&found, &Default::default()) {
        Ok(Form::Partitioned) => return Err(nothing("processed_event is as it should be")),
        Ok(Form::Flat) => {
            return Err(nothing("processed_event recognises redeliveries; `idem migrate --partition` partitions it"));
        }
        Err(_) => {}
    }
    for name in ["event_id", "consumer_group", "processed_at"] {
        if found.columns.iter().all(|column| column.name != name) {
            let problem =
                format!("processed_event has no column {name}, so its rows can't be copied: rename the table");
            return Err(AdoptError::Unusable(vec![problem]));
        }
    }
    let rebuilt = in_transaction(pools, BOUND, move |tx| Box::pin(copy(tx, first_day_ago))).await?;
    tracing::info!(?rebuilt, "processed_event was made anew; the old table is processed_event_before");
    Ok(rebuilt)
}

async fn copy(tx: &mut PgConnection, first_day_ago: i32) -> Result<Rebuilt, sqlx::Error> {
    // Whoever writes waits from here on, and finds the new table.
    for statement in [
        "SET LOCAL lock_timeout = '60s'",
        "LOCK TABLE processed_event IN ACCESS EXCLUSIVE MODE",
        // Their names may be those of the new partitions.
        "DO $$ DECLARE child regclass; BEGIN \
           FOR child IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'processed_event'::regclass LOOP \
             EXECUTE format('ALTER TABLE %s RENAME TO %I', child, \
                 left((SELECT relname FROM pg_class WHERE oid = child), 56) || '_before'); \
           END LOOP; END $$",
        "ALTER TABLE processed_event RENAME TO processed_event_before",
    ] {
        sqlx::raw_sql(statement).execute(&mut *tx).await?;
    }
    sqlx::query("SELECT idem_create_dedup_table((now() AT TIME ZONE 'UTC')::date - $1)")
        .bind(first_day_ago)
        .execute(&mut *tx)
        .await?;
    let usable = "consumer_group IS NOT NULL AND (idem_kind_of(event_id) = 'natural' \
         OR idem_kind_of(event_id) = 'time' AND event_id < idem_first_id_of((now() AT TIME ZONE 'UTC')::date + 8))";
    let copied = sqlx::query(AssertSqlSafe(format!(
        "INSERT INTO processed_event (event_id, consumer_group, processed_at) \
         SELECT event_id, consumer_group, min(processed_at) FROM processed_event_before WHERE {usable} GROUP BY 1, 2"
    )))
    .execute(&mut *tx)
    .await?;
    let left = sqlx::query_scalar(AssertSqlSafe(format!(
        "SELECT count(*) FROM processed_event_before WHERE NOT coalesce({usable}, false)"
    )))
    .fetch_one(&mut *tx)
    .await?;
    // As for any table that was there before: what is older than its oldest row may have been deleted.
    sqlx::query(
        "INSERT INTO group_horizon (consumer_group, ids_before, raised_at) \
         SELECT consumer_group, min(processed_at), '-infinity' FROM processed_event GROUP BY consumer_group \
         ON CONFLICT DO NOTHING",
    )
    .execute(&mut *tx)
    .await?;
    Ok(Rebuilt { copied: copied.rows_affected().try_into().unwrap_or(i64::MAX), left })
}
