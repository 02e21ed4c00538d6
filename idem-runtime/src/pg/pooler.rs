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

use super::session::{LOCK_TIMEOUT, Pools, on_service};

const CURE: &str = "the URL must lead to PostgreSQL itself, not to a pooler such as PgBouncer: the library keeps few \
                    connections, IDEM_POOL_SIZE and some more. Set IDEM_DATABASE_DIRECT_URL to the server's own address";

/// Answers that nobody gets who has a session to himself: `unsupported startup parameter`, and that a statement was
/// prepared by somebody else, or is not there any more.
const OF_POOLERS: [&str; 3] = ["08P01", "42P05", "26000"];

/// Why connections to this address can't be used, if a pooler is in the way.
///
/// # Errors
/// When the database is away, or refuses.
pub(crate) async fn problem(pools: &Pools) -> Result<Option<String>, sqlx::Error> {
    let ask = "SELECT extract(epoch FROM current_setting('lock_timeout')::interval)::bigint";
    let told: Result<i64, _> =
        on_service(pools, |connection| Box::pin(sqlx::query_scalar(ask).fetch_one(connection))).await;
    match told {
        Ok(seconds) if u64::try_from(seconds) == Ok(LOCK_TIMEOUT.as_secs()) => Ok(None),
        Ok(_) => {
            Ok(Some(format!("IDEM_DATABASE_URL: a session does not have the settings that it was begun with: {CURE}")))
        }
        Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| OF_POOLERS.contains(&&*code)) => {
            Ok(Some(format!("IDEM_DATABASE_URL: what a session wants is refused ({}): {CURE}", error.message())))
        }
        Err(error) => Err(error),
    }
}
