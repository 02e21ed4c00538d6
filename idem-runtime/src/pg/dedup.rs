//! The dedup row, and the check that it and the handler's writes are still one transaction.

use sqlx::PgConnection;
use uuid::Uuid;

/// The identity of a transaction, as the server counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TransactionId(i64);

/// Inserts the dedup row. `None`: it was there already.
///
/// Waits, up to `lock_timeout`, for another transaction that holds the same row uncommitted.
/// Never call it inside a savepoint: rolling that back would drop the row and keep later writes.
pub(crate) async fn insert(
    tx: &mut PgConnection,
    event_id: Uuid,
    group: &str,
) -> Result<Option<TransactionId>, sqlx::Error> {
    sqlx::query_scalar(
        "INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, $2) \
         ON CONFLICT DO NOTHING RETURNING pg_current_xact_id()::text::bigint",
    )
    .bind(event_id)
    .bind(group)
    .fetch_optional(tx)
    .await
    .map(|id| id.map(TransactionId))
}

/// Whether the transaction that inserted the dedup row is still the current one.
///
/// sqlx's `commit()` returns Ok even where the server answered COMMIT with ROLLBACK, so this is
/// asked before: an aborted transaction answers with SQLSTATE 25P02, and after a COMMIT or ROLLBACK
/// of the handler's own there is no transaction id, or another one.
pub(crate) async fn is_current(tx: &mut PgConnection, id: TransactionId) -> Result<bool, sqlx::Error> {
    let current: Option<i64> =
        sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned()::text::bigint").fetch_one(tx).await?;
    Ok(current == Some(id.0))
}

/// Whether the row found no partition: SQLSTATE 23514 from the dedup insert, which has no check
/// constraint of its own.
pub(crate) fn is_missing_partition(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(db) if db.code().as_deref() == Some("23514"))
}
