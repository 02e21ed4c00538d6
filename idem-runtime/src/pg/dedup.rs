//! The dedup row, and the check that it and the handler's writes are still one transaction.

use futures_util::StreamExt;
use sqlx::{AssertSqlSafe, Either, PgConnection, Row};
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

/// What the dedup insert says.
#[derive(Debug)]
pub(crate) struct Inserted {
    /// The transaction that holds the new row. `None`: the row was there already.
    pub transaction: Option<TransactionId>,
    /// The time below which the group may have forgotten ids of this kind, milliseconds since the Unix
    /// epoch; told with a new row only.
    pub horizon: Option<i64>,
    /// The run of the server that says so, as in [`Server`](super::progress::Server).
    pub server: String,
}

/// What a session prepares, so that the server plans it once.
pub(crate) async fn prepare(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let insert = "PREPARE idem_dedup_insert (uuid, text) AS \
         WITH inserted AS ( \
             INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, $2) \
             ON CONFLICT DO NOTHING \
             RETURNING pg_current_xact_id()::text::bigint AS id, \
                       idem_horizon(consumer_group, event_id >= 'ff000000-0000-0000-0000-000000000000') AS horizon) \
         SELECT (SELECT id FROM inserted), (SELECT horizon FROM inserted), \
                extract(epoch FROM pg_postmaster_start_time())::text";
    sqlx::raw_sql(insert).execute(connection).await?;
    Ok(())
}

/// Begins the event's transaction and inserts the dedup row, in one round trip. A row that is there is
/// remembered, whatever the horizon; only where there was none, the horizon says whether there may have
/// been one.
///
/// Waits, up to `lock_timeout`, for another transaction that holds the same row uncommitted.
pub(crate) async fn begin(tx: &mut PgConnection, event_id: Uuid, group: &str) -> Result<Inserted, sqlx::Error> {
    // Names of groups are valid for Kafka, which has no quotes in them.
    let statements = format!("{BEGIN}EXECUTE idem_dedup_insert ('{event_id}', '{group}')");
    let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(tx).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let transaction = row.try_get::<Option<i64>, _>(0)?.map(TransactionId);
    Ok(Inserted { transaction, horizon: row.try_get(1)?, server: row.try_get(2)? })
}

/// How the end of an event's transaction was.
#[derive(Debug)]
#[must_use]
pub(crate) enum Commit {
    Done,
    /// The handler had ended the transaction.
    Ended,
    /// Another member has taken the partition over, and the order of a key is at stake.
    NotOwner,
    /// The check went well, and the server refused the COMMIT: a deferred constraint, perhaps; or nobody
    /// knows, as the connection was lost.
    Failed(sqlx::Error),
}

/// [`check`], and if it goes well `last`, statements with a semicolon each, and COMMIT; in one round trip, but
/// where the order of keys is kept.
///
/// # Errors
/// Those of the check. Nothing is committed.
pub(crate) async fn commit(
    tx: &mut PgConnection,
    id: TransactionId,
    owner: Option<&Owner>,
    last: &str,
) -> Result<Commit, sqlx::Error> {
    if owner.is_some() {
        return match check(tx, id, owner).await? {
            Check::Ended => Ok(Commit::Ended),
            Check::NotOwner => Ok(Commit::NotOwner),
            Check::Whole => {
                let ended = sqlx::raw_sql(AssertSqlSafe(format!("{last}COMMIT"))).execute(tx).await;
                Ok(ended.map_or_else(Commit::Failed, |_| Commit::Done))
            }
        };
    }
    // An error of the first statement keeps the server from the second one, so the check fails by one: a
    // setting that there is not.
    let statements = format!(
        "SELECT CASE WHEN pg_current_xact_id_if_assigned()::text::bigint = {} THEN true \
                ELSE current_setting('idem.the_handler_ended_the_transaction')::boolean END; {last}COMMIT",
        id.0
    );
    let mut answers = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_many(tx);
    let mut is_whole = false;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Either::Right(_)) => is_whole = true,
            Ok(Either::Left(_)) => {}
            Err(error) if is_whole => return Ok(Commit::Failed(error)),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(UNDEFINED_OBJECT) => {
                return Ok(Commit::Ended);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Commit::Done)
}

/// SQLSTATE of a setting that there is not.
const UNDEFINED_OBJECT: &str = "42704";

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
