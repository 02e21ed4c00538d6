//! The index that an adopted table needs for deleting by age.

use crate::pg::session::{Pools, on_own_connection};

/// Makes the index on `processed_at` of an adopted table, if it has none that is valid. Everything goes on
/// meanwhile.
pub(in crate::pg) async fn make_sure(pools: &Pools) -> Result<(), sqlx::Error> {
    on_own_connection(pools, |connection| {
        Box::pin(async move {
            let has: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a \
                     ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
                  WHERE i.indrelid = 'processed_event'::regclass AND i.indisvalid AND i.indpred IS NULL \
                    AND a.attname = 'processed_at')",
            )
            .fetch_one(&mut *connection)
            .await?;
            if has {
                return Ok(());
            }
            // For the session: no transaction can be open while it is made.
            let mine: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
                .bind(super::INDEX_LOCK)
                .fetch_one(&mut *connection)
                .await?;
            if !mine {
                return Ok(());
            }
            tracing::info!("making an index on processed_event (processed_at), for deleting by age");
            for statement in [
                "SET statement_timeout = 0",
                // It waits for every transaction that is open, and holds up nobody meanwhile; cut off, it would
                // begin anew.
                "SET lock_timeout = 0",
                // What an attempt that was cut off left behind.
                "DROP INDEX CONCURRENTLY IF EXISTS idem_processed_event_processed_at",
                "CREATE INDEX CONCURRENTLY idem_processed_event_processed_at ON processed_event (processed_at)",
            ] {
                sqlx::raw_sql(statement).execute(&mut *connection).await?;
            }
            Ok(())
        })
    })
    .await
}
