//! Whose fault a database error is, by SQLSTATE
//! ([PostgreSQL manual, appendix A](https://www.postgresql.org/docs/current/errcodes-appendix.html)).

use std::error::Error;

use sqlx::error::DatabaseError;

use crate::error::Class;

/// The class of a database error: the infrastructure's, or the event's for good.
///
/// Nothing is transient here: what a retry of the whole transaction cures (deadlock, serialization
/// failure, lock timeout) says nothing about the event, so no attempt is counted for it.
pub(crate) fn class(error: &sqlx::Error) -> Class {
    match error {
        sqlx::Error::Database(db) => match db.code() {
            Some(code) if is_infrastructure(&code) => Class::Infrastructure,
            _ => Class::Permanent,
        },
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Class::Infrastructure,
        _ => Class::Permanent,
    }
}

/// The class of an error of a statement of the library's own, such as the one that writes to the outbox. The
/// event's is only a value that the database can't hold; a missing table or right is nobody's but the operator's.
pub(crate) fn class_of_own(error: &sqlx::Error) -> Class {
    let is_of_the_value = matches!(error, sqlx::Error::Database(db)
        if db.code().is_some_and(|code| ["22", "54"].iter().any(|class| code.starts_with(class))));
    if is_of_the_value { Class::Permanent } else { Class::Infrastructure }
}

/// Whether the server, and not the event, is the reason.
fn is_infrastructure(sqlstate: &str) -> bool {
    matches!(
        sqlstate,
        "25006"   // read-only transaction: a standby after a failover
        | "25P03" // idle in transaction for too long: the server ended the session
        | "25P04" // transaction timeout
        | "40001" // serialization failure
        | "40P01" // deadlock
        | "55P03" // lock not available
        | "F0001" // lock file exists: the server is starting
    ) || ["08", "53", "57", "58", "XX"].iter().any(|class| sqlstate.starts_with(class))
}

/// Whether the connection itself is fine after this error, so that it may go back to the pool:
/// the server only asked for the transaction to be run again.
pub(crate) fn leaves_connection_usable(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(db) => match db.code() {
            Some(code) => matches!(&*code, "40001" | "40P01" | "55P03") || !is_infrastructure(&code),
            None => false,
        },
        _ => class(error) != Class::Infrastructure,
    }
}

/// Whether the connection itself is fine after this error of the statement that begins an event's
/// transaction, where only the server's state can be the reason. Any other may be the session's: its
/// prepared statements are gone, perhaps.
pub(crate) fn is_no_fault_of_the_session(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(db)
        if matches!(db.code().as_deref(), Some("40001" | "40P01" | "55P03")))
}

/// The database's error behind another error, which a handler may have wrapped in errors of its own.
pub(crate) fn behind<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a dyn DatabaseError> {
    let mut error = Some(error);
    while let Some(found) = error {
        if let Some(sqlx::Error::Database(db)) = found.downcast_ref() {
            return Some(&**db);
        }
        error = found.source();
    }
    None
}

/// Whether transactions waited for each other, in a circle or for too long.
pub(crate) fn is_conflict(error: &dyn DatabaseError) -> bool {
    matches!(error.code().as_deref(), Some("40P01" | "55P03"))
}

/// Whether the transaction had been aborted before, by an error that somebody swallowed.
pub(crate) fn was_aborted_before(error: &dyn DatabaseError) -> bool {
    error.code().as_deref() == Some("25P02")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_and_conflicts_are_the_infrastructures() {
        let infrastructure = [
            "08000", "08003", "08006", "25006", "25P03", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014",
            "57P01", "57P02", "57P03", "57P05", "58030", "XX000",
        ];
        for code in infrastructure {
            assert!(is_infrastructure(code), "{code}");
        }
    }

    #[test]
    fn mistakes_of_the_event_or_the_code_are_not() {
        for code in ["23505", "23503", "23514", "22P02", "22003", "42P01", "42703", "42501", "25P02", "40002", "P0001"]
        {
            assert!(!is_infrastructure(code), "{code}");
        }
    }

    #[test]
    fn client_side_errors_are_sorted_by_kind() {
        assert_eq!(class(&sqlx::Error::PoolTimedOut), Class::Infrastructure);
        assert_eq!(class(&sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())), Class::Infrastructure);
        assert_eq!(class(&sqlx::Error::RowNotFound), Class::Permanent);
        assert!(leaves_connection_usable(&sqlx::Error::RowNotFound));
        assert!(!leaves_connection_usable(&sqlx::Error::PoolClosed));
    }
}
