//! The connections that events run on.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection, PgConnection, PgPool, Postgres};

use super::dedup;
use super::session::bounded;
use crate::handler::Tx;

/// After it a connection is replaced, as sqlx's pool would.
const LONGEST_LIFE: Duration = Duration::from_secs(1_800);
const LONGEST_IDLE: Duration = Duration::from_secs(600);

/// Connections for events. They stay here between two events: sqlx's pool would ping each that comes
/// back, and send BEGIN and COMMIT alone, which are three round trips of six.
pub(crate) struct EventSessions {
    pool: PgPool,
    idle: Mutex<Vec<Kept>>,
}

struct Kept {
    connection: PoolConnection<Postgres>,
    opened: Instant,
    used: Instant,
}

impl EventSessions {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool, idle: Mutex::default() }
    }

    /// Where they come from.
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A connection that is in no transaction.
    pub(crate) async fn acquire(&self) -> Result<EventSession<'_>, sqlx::Error> {
        // The last one that was used: those that nobody needs grow old.
        let kept = self.lock().pop();
        let kept = match kept {
            Some(kept) => kept,
            None => self.open().await?,
        };
        Ok(EventSession { kept: Some(kept), home: self })
    }

    async fn open(&self) -> Result<Kept, sqlx::Error> {
        let now = Instant::now();
        let mut kept = Kept { connection: self.pool.acquire().await?, opened: now, used: now };
        bounded(take_over_transactions(&mut kept.connection)).await?;
        bounded(dedup::prepare(&mut kept.connection)).await?;
        Ok(kept)
    }

    /// A panic inside leaves the list as it was: it changes in one step per call.
    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kept {
    /// sqlx's pool must not give it to anybody else: it believes that it is in a transaction.
    fn drop(&mut self) {
        self.connection.close_on_drop();
    }
}

/// sqlx counts transactions by the calls that begin and end them, and these of events are begun and
/// ended by statements that do more, which it can't see. It is told of one that never ends, so that
/// what a handler begins is a savepoint.
async fn take_over_transactions(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    std::mem::forget(connection.begin().await?);
    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    Ok(())
}

/// One event's connection. It is kept only after [`release`](Self::release): a future dropped in the
/// middle of a statement leaves a connection whose state nobody knows.
pub(crate) struct EventSession<'a> {
    kept: Option<Kept>,
    home: &'a EventSessions,
}

impl EventSession<'_> {
    /// What the handler gets. Nothing is begun yet.
    pub(crate) fn tx(&mut self) -> Tx<'_> {
        match &mut self.kept {
            Some(kept) => Tx { connection: &mut kept.connection },
            None => unreachable!("only `release` takes it, and ends this"),
        }
    }

    /// Keeps the connection for the next event. Its transaction must have ended.
    pub(crate) fn release(mut self) {
        let now = Instant::now();
        let Some(mut kept) = self.kept.take().filter(|kept| now - kept.opened < LONGEST_LIFE) else { return };
        kept.used = now;
        let mut idle = self.home.lock();
        idle.retain(|kept| now - kept.used < LONGEST_IDLE);
        idle.push(kept);
    }
}

/// What precedes the statements of an event: the transaction, in which nothing is left of what a former
/// event's handler SET for the session.
pub(super) const BEGIN: &str =
    "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; ";

/// Begins a transaction.
pub(crate) async fn begin(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(BEGIN).execute(tx).await?;
    Ok(())
}

/// Commits the transaction, or fails by a deferred constraint. That it was not aborted before must have
/// been checked: the server answers COMMIT with ROLLBACK then, which is no error.
pub(crate) async fn commit(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("COMMIT").execute(tx).await?;
    Ok(())
}

/// Rolls the transaction back.
pub(crate) async fn rollback(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK").execute(tx).await?;
    Ok(())
}
