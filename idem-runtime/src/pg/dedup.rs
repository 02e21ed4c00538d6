//! The dedup row, and the check that it and the handler's writes are still one transaction.

use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use super::event_session::BEGIN;
use super::parked::Owner;
use crate::kafka::consumer::Partition;

/// The identity of a transaction, as the server counts them (`xid8`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TransactionId(i64);

impl TransactionId {
    pub(super) fn new(id: i64) -> Self {
        Self(id)
    }

    /// For binding to a query.
    pub(super) fn get(self) -> i64 {
        self.0
    }
}

/// A dedup row that was not there.
#[derive(Debug)]
pub(crate) struct Inserted {
    /// The transaction that holds it.
    pub transaction: TransactionId,
    /// The time below which the group may have forgotten ids of this kind, milliseconds since the Unix
    /// epoch.
    pub horizon: Option<i64>,
}

/// What a session prepares, so that the server plans it once.
pub(super) const PREPARE: &str = "PREPARE idem_dedup_insert (uuid, text) AS \
     INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, $2) \
     ON CONFLICT DO NOTHING \
     RETURNING pg_current_xact_id()::text::bigint, \
               idem_horizon(consumer_group, event_id >= 'ff000000-0000-0000-0000-000000000000')";

/// Begins the event's transaction and inserts the dedup row, in one round trip. `None`: it was there. A row that
/// is there is remembered, whatever the horizon; only where there was none, the horizon says whether there may
/// have been one.
///
/// Waits, up to `lock_timeout`, for another transaction that holds the same row uncommitted.
pub(crate) async fn begin(tx: &mut PgConnection, event_id: Uuid, group: &str) -> Result<Option<Inserted>, sqlx::Error> {
    // Names of groups are valid for Kafka, which has no quotes in them.
    let statements = format!("{BEGIN}EXECUTE idem_dedup_insert ('{event_id}', '{group}')");
    let row = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_optional(tx).await?;
    row.map(|row| Ok(Inserted { transaction: TransactionId(row.try_get(0)?), horizon: row.try_get(1)? })).transpose()
}

/// What the check before COMMIT says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Check {
    /// The dedup row and the handler's writes are one transaction.
    Whole,
    /// The handler ended the transaction.
    Ended,
    /// Another member has taken the partition over, and the order of a key is at stake.
    NotOwner,
}

/// Whether the transaction that inserted the dedup row is still the current one; and, where the
/// order of keys is kept, whether this member still owns the partition. A member that was replaced
/// does not know what its successor parked. What it commits after this was asked was begun before
/// the successor started, which waits for the dedup row.
///
/// The server answers COMMIT of an aborted transaction with ROLLBACK, which is no error, so this is
/// asked before: an aborted transaction answers with SQLSTATE 25P02, and after a COMMIT or ROLLBACK
/// of the handler's own there is no transaction id, or another one.
pub(crate) async fn check(
    tx: &mut PgConnection,
    id: TransactionId,
    owner: Option<&Owner>,
) -> Result<Check, sqlx::Error> {
    let (current, is_owner): (Option<i64>, bool) = match owner {
        None => {
            let query = sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned()::text::bigint");
            (query.fetch_one(tx).await?, true)
        }
        Some(owner) => {
            let query = sqlx::query_as(
                "SELECT pg_current_xact_id_if_assigned()::text::bigint, EXISTS ( \
                     SELECT FROM consumer_progress \
                      WHERE consumer_group = $1 AND topic = $2 AND partition = $3 AND epoch = $4)",
            );
            let Partition { topic, number } = &owner.partition;
            query.bind(&*owner.group).bind(&**topic).bind(number).bind(owner.epoch).fetch_one(tx).await?
        }
    };
    Ok(match (current == Some(id.0), is_owner) {
        (false, _) => Check::Ended,
        (true, false) => Check::NotOwner,
        (true, true) => Check::Whole,
    })
}

/// Whether this transaction has committed its dedup row, asked on another connection. A row that
/// somebody else inserted since is not its.
pub(crate) async fn was_committed(
    connection: &mut PgConnection,
    event_id: Uuid,
    group: &str,
    id: TransactionId,
) -> Result<bool, sqlx::Error> {
    // A row's xmin is the lower half of the transaction's id.
    let by_it: Option<bool> = sqlx::query_scalar(
        "SELECT xmin::text::bigint = $3 & x'ffffffff'::bigint FROM processed_event \
          WHERE event_id = $1 AND consumer_group = $2",
    )
    .bind(event_id)
    .bind(group)
    .bind(id.0)
    .fetch_optional(connection)
    .await?;
    Ok(by_it == Some(true))
}

/// Whether the row found no partition: SQLSTATE 23514 from the dedup insert, which has no check
/// constraint of its own.
pub(crate) fn is_missing_partition(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(db) if db.code().as_deref() == Some("23514"))
}
