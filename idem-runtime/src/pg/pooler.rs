//! A pooler between the program and the server, such as PgBouncer in transaction mode.
//!
//! It would give each transaction another session, and what the library promises rests on sessions of its own:
//! - Writes behind a handler's own ROLLBACK are refused because its session is read-only by default. That is set when
//!   the session begins; set for each transaction instead, it would end with the very ROLLBACK that it is for.
//! - The timeouts that let a handler's end come before the server's would have to be set for each transaction, which
//!   costs a round trip; and what a handler sets for its session would be left to strangers.
//! - A connection is asked once which run of the server it leads to. Behind a pooler every transaction would have to
//!   ask, and what was asked on another session would prove nothing.
//! - The dedup insert and the check are prepared in SQL (`PREPARE`), of which no pooler keeps track.
//!
//! So a pooler is refused, and `IDEM_DATABASE_DIRECT_URL` leads past it.

use sqlx::{PgConnection, Row};

use super::session::{LOCK_TIMEOUT, Pools, on_service};

const CURE: &str = "the URL must lead to PostgreSQL itself, not to a pooler such as PgBouncer: the library keeps few \
                    connections, IDEM_POOL_SIZE and some more. Set IDEM_DATABASE_DIRECT_URL to the server's own address";

/// `unsupported startup parameter`: the answer of a pooler that does not pass on what a session wants.
const PROTOCOL_VIOLATION: &str = "08P01";

/// Whether a session is refused for the settings that it was to begin with.
pub(crate) fn refuses_settings(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.code().as_deref() == Some(PROTOCOL_VIOLATION))
}

/// The `lock_timeout` of a session, in seconds. If it is not the one that the session was begun with, this is another
/// session.
pub(crate) async fn lock_timeout_seconds(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    // Not prepared: a statement of that name may be there, of somebody else's.
    let ask = "SELECT extract(epoch FROM current_setting('lock_timeout')::interval)::bigint";
    sqlx::raw_sql(ask).fetch_one(connection).await?.try_get(0)
}

/// Why connections to this address can't be used, if a pooler is in the way.
///
/// # Errors
/// When the database is away, or refuses.
pub(crate) async fn problem(pools: &Pools) -> Result<Option<String>, sqlx::Error> {
    match on_service(pools, |connection| Box::pin(lock_timeout_seconds(connection))).await {
        Ok(seconds) if u64::try_from(seconds) == Ok(LOCK_TIMEOUT.as_secs()) => Ok(None),
        Ok(_) => {
            Ok(Some(format!("IDEM_DATABASE_URL: a session does not have the settings that it was begun with: {CURE}")))
        }
        Err(error) if refuses_settings(&error) => {
            Ok(Some(format!("IDEM_DATABASE_URL: the settings of a session are refused: {CURE}")))
        }
        Err(error) => Err(error),
    }
}
