//! A pooler between the program and the server, such as PgBouncer in transaction mode.
//!
//! It would give each transaction another session. The library rests on what it sets for its sessions: timeouts that
//! let a handler's end come first, and read-only as the default, so that nothing is written outside of its
//! transactions.

use super::session::{LOCK_TIMEOUT, Pools, on_service};

const CURE: &str = "the URL must lead to PostgreSQL itself, not to a pooler such as PgBouncer: the library keeps few \
                    connections, IDEM_POOL_SIZE and some more";

/// `unsupported startup parameter`: the answer of a pooler that does not pass on what a session wants.
const PROTOCOL_VIOLATION: &str = "08P01";

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
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(PROTOCOL_VIOLATION) => {
            Ok(Some(format!("IDEM_DATABASE_URL: the settings of a session are refused: {CURE}")))
        }
        Err(error) => Err(error),
    }
}
