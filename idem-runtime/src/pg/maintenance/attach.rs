//! Day partitions, attached ahead of time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::{ATTACH_LOCK, INTERVAL, RETRY_INTERVAL, try_lock};
use crate::pg::session::{Pools, in_transaction};

/// Longest time for what takes milliseconds.
const BOUND: Duration = Duration::from_secs(30);

/// Days that are attached ahead: a week, to notice a failure, and more than any clock may differ.
pub(crate) fn days_ahead(clock_skew: Duration) -> i32 {
    let skew = i32::try_from(clock_skew.as_secs() / 86_400).unwrap_or(i32::MAX - 2);
    skew.saturating_add(2).clamp(7, 366)
}

/// Attaches the days that are missing. `false`: another process is at it.
pub(crate) async fn attach_ahead(pools: &Pools, days_ahead: i32) -> Result<bool, sqlx::Error> {
    in_transaction(pools, BOUND, move |tx| {
        Box::pin(async move {
            if !try_lock(tx, ATTACH_LOCK).await? {
                return Ok(false);
            }
            let attach = sqlx::query_scalar("SELECT idem_attach_days($1)").bind(days_ahead);
            let attached: i32 = attach.fetch_one(&mut *tx).await?;
            // Also those that somebody else attached.
            sqlx::query("SELECT idem_share_rights()").execute(tx).await?;
            if attached > 0 {
                tracing::info!(attached, "attached day partitions to the dedup table");
            }
            Ok(true)
        })
    })
    .await
}

/// Keeps days attached for as long as the process runs; `missing` asks for it at once.
pub(crate) async fn keep_attached(pools: Pools, days_ahead: i32, missing: Arc<Notify>) {
    loop {
        let pause = match attach_ahead(&pools, days_ahead).await {
            Ok(true) => INTERVAL,
            // The other one may fail.
            Ok(false) => RETRY_INTERVAL,
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
