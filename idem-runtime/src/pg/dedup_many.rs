//! The dedup rows of events that share a transaction, the guard that lets nobody else commit it, and
//! the check that lifts the guard.

use sqlx::PgConnection;
use sqlx::error::DatabaseError;
use uuid::Uuid;

use super::dedup::{self, Check, TransactionId};
use super::event_session;

/// What the dedup insert of many says.
#[derive(Debug)]
pub(crate) struct InsertedMany {
    /// The ids that are new.
    pub fresh: Vec<Uuid>,
    /// The transaction that holds their rows, and the guard. `None`: no id is new, no row was written.
    pub transaction: Option<TransactionId>,
    /// The time below which the group may have forgotten ids of this kind, milliseconds since the Unix
    /// epoch; told with a new row only.
    pub horizon: Option<i64>,
}

/// Inserts the dedup rows of these ids, all of one kind, and the guard. `ids` are sorted, so that two members that insert
/// the same ones wait for each other in one direction, and distinct.
///
/// The horizon is read once, by a function that depends on what was inserted, so after all of it: see
/// [`dedup::begin`].
///
/// Waits, up to `lock_timeout`, for another transaction that holds one of the rows uncommitted.
/// Never call it inside a savepoint: rolling that back would drop the rows and keep later writes.
pub(crate) async fn insert(tx: &mut PgConnection, ids: &[Uuid], group: &str) -> Result<InsertedMany, sqlx::Error> {
    debug_assert!(ids.is_sorted_by(|one, next| one < next));
    let (fresh, horizon, transaction): (Option<Vec<Uuid>>, Option<i64>, Option<i64>) = sqlx::query_as(
        "WITH inserted AS ( \
             INSERT INTO processed_event (event_id, consumer_group) SELECT id, $2 FROM unnest($1::uuid[]) AS id \
             ON CONFLICT DO NOTHING RETURNING event_id), \
         guard AS ( \
             INSERT INTO transaction_guard (transaction_id) \
             SELECT pg_current_xact_id()::text::bigint WHERE EXISTS (SELECT FROM inserted) RETURNING transaction_id) \
         SELECT fresh, CASE WHEN fresh IS NOT NULL \
                            THEN idem_horizon($2, fresh[1] >= 'ff000000-0000-0000-0000-000000000000') END, \
                (SELECT transaction_id FROM guard) \
           FROM (SELECT array_agg(event_id) AS fresh FROM inserted) AS together",
    )
    .bind(ids)
    .bind(group)
    .fetch_one(tx)
    .await?;
    let transaction = transaction.map(TransactionId::new);
    Ok(InsertedMany { fresh: fresh.unwrap_or_default(), transaction, horizon })
}

/// [`dedup::check`], and lifts the guard.
///
/// What a handler set for its neighbours, such as another `search_path`, is undone first: the guard has
/// to be found.
pub(crate) async fn check(tx: &mut PgConnection, id: TransactionId) -> Result<Check, sqlx::Error> {
    if dedup::check(tx, id, None).await? == Check::Ended {
        return Ok(Check::Ended);
    }
    event_session::undo_names(tx).await?;
    let lifted =
        sqlx::query("DELETE FROM transaction_guard WHERE transaction_id = $1").bind(id.get()).execute(tx).await?;
    Ok(if lifted.rows_affected() == 1 { Check::Whole } else { Check::Ended })
}

/// Whether the server refused a COMMIT because of the guard.
pub(crate) fn is_refused_commit(error: &dyn DatabaseError) -> bool {
    error.constraint() == Some("idem_handler_must_not_commit")
}
