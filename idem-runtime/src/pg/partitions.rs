//! Day partitions of the dedup table, attached ahead of time.

use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Notify;

/// Days that are attached ahead: a week, to notice a failure, and more than any clock may differ.
pub(crate) fn days_ahead(clock_skew: Duration) -> i32 {
    let skew = i32::try_from(clock_skew.as_secs() / 86_400).unwrap_or(i32::MAX - 2);
    skew.saturating_add(2).clamp(7, 366)
}

/// One runner at a time, whichever process it is in. The number is arbitrary but fixed.
const MAINTENANCE_LOCK: i64 = 0x6964_656d_0001;
const INTERVAL: Duration = Duration::from_secs(3_600);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Attaches the days that are missing. `false`: another process is at it.
pub(crate) async fn attach_ahead(pool: &PgPool, days_ahead: i32) -> Result<bool, sqlx::Error> {
    let mut tx = pool.begin().await?;
    // An insert queues behind a lock request that waits: better to give up and come again.
    sqlx::query("SET LOCAL lock_timeout = '2s'").execute(&mut *tx).await?;
    let locked: bool =
        sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(MAINTENANCE_LOCK).fetch_one(&mut *tx).await?;
    if locked {
        let attached: i32 =
            sqlx::query_scalar("SELECT idem_attach_days($1)").bind(days_ahead).fetch_one(&mut *tx).await?;
        if attached > 0 {
            tracing::info!(attached, "attached day partitions to the dedup table");
        }
    }
    tx.commit().await?;
    Ok(locked)
}

/// Keeps days attached for as long as the process runs; `missing` asks for it at once.
pub(crate) async fn keep_attached(pool: PgPool, days_ahead: i32, missing: std::sync::Arc<Notify>) {
    loop {
        let pause = match attach_ahead(&pool, days_ahead).await {
            Ok(_) => INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "could not attach day partitions to the dedup table; trying again");
                RETRY_INTERVAL
            }
        };
        // A burst of events without a partition asks many times; once a second is enough.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _ = tokio::time::timeout(pause, missing.notified()).await;
    }
}
