//! The check and COMMIT of an event's transaction.

use futures_util::StreamExt;
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Either, PgConnection};

use super::dedup::{Check, TransactionId, check};
use super::parked::Owner;

/// How the end of an event's transaction was.
#[derive(Debug)]
#[must_use]
pub(crate) enum Commit {
    Done,
    /// The handler had ended the transaction.
    Ended,
    /// Another member has taken the partition over, and the order of a key is at stake.
    NotOwner,
    /// What was to be noted in it is not so any more: a money call was resolved otherwise.
    Disputed,
    /// What was published can't be written; the transaction is aborted, and still open.
    Unpublished(sqlx::Error),
    /// All went well, and the server refused the COMMIT: a deferred constraint, perhaps; or nobody knows, as
    /// the connection was lost.
    Failed(sqlx::Error),
}

macro_rules! check_of {
    ($id:literal) => {
        concat!(
            "SELECT CASE WHEN pg_current_xact_id_if_assigned()::text::bigint = ",
            $id,
            " THEN true ELSE current_setting('idem.the_handler_ended_the_transaction')::boolean END"
        )
    };
}

/// What a session prepares, so that the server plans it once. An error keeps the server from the statements
/// behind it in the same message, so the check fails by one: a setting that there is not.
pub(super) const PREPARE: &str = concat!("PREPARE idem_check (bigint) AS ", check_of!("$1"));

/// [`check`], `notes`, `published`, and COMMIT if they go well; in one round trip, but where the order of keys is kept.
///
/// `notes`: statements of the library's own, each with its semicolon, or none. One that finds something else than it
/// was to note fails by a setting that there is not. `published`: those that write to the outbox, likewise.
/// `is_prepared`: the session still has what it prepared.
///
/// # Errors
/// Those of the check, and of the notes; whatever a note's is, it is not the handler's. Nothing is committed, unless the
/// connection was lost.
pub(crate) async fn commit(
    tx: &mut PgConnection,
    id: TransactionId,
    owner: Option<&Owner>,
    notes: &str,
    published: &str,
    is_prepared: bool,
) -> Result<Commit, sqlx::Error> {
    let is_checked = owner.is_some();
    if is_checked {
        match check(tx, id, owner).await? {
            Check::Ended => return Ok(Commit::Ended),
            Check::NotOwner => return Ok(Commit::NotOwner),
            Check::Whole => {}
        }
    }
    let check = match (is_checked, is_prepared) {
        (true, _) => String::new(),
        (false, true) => format!("EXECUTE idem_check ({}); ", id.get()),
        (false, false) => format!(concat!(check_of!("{}"), "; "), id.get()),
    };
    let before_published = usize::from(!is_checked) + notes.matches("; ").count();
    let before_commit = before_published + published.matches("; ").count();
    let mut answers = sqlx::raw_sql(AssertSqlSafe(format!("{check}{notes}{published}COMMIT"))).fetch_many(tx);
    let mut completed = 0;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Either::Left(_)) => completed += 1,
            Ok(Either::Right(_)) => {}
            Err(error) if completed >= before_commit => return Ok(Commit::Failed(error)),
            Err(error) if completed >= before_published => return Ok(Commit::Unpublished(error)),
            Err(error) => {
                let of_notes = is_checked || completed > 0;
                return match error {
                    sqlx::Error::Database(error) if error.code().as_deref() == Some(UNDEFINED_OBJECT) => {
                        Ok(if of_notes { Commit::Disputed } else { Commit::Ended })
                    }
                    sqlx::Error::Database(error) if of_notes && !is_of_a_removed_statement(&*error) => Err(
                        sqlx::Error::Protocol(format!("the event's transaction can't note its money calls: {error}")),
                    ),
                    error => Err(error),
                };
            }
        }
    }
    Ok(Commit::Done)
}

/// SQLSTATE of a setting that there is not.
const UNDEFINED_OBJECT: &str = "42704";

/// Whether a statement that the session prepared is gone: SQLSTATE 26000. A handler ran DEALLOCATE ALL.
pub(crate) fn is_of_a_removed_statement(error: &dyn DatabaseError) -> bool {
    error.code().as_deref() == Some("26000")
}
