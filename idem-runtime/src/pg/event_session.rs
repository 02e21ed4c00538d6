//! The connections that events run on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres};

use super::money::record;
use super::progress::Server;
use super::session::{Session, bounded};
use super::{commit, dedup};
use crate::handler::Tx;
use crate::outbox::Buffer;

/// After it a connection is replaced, as sqlx's pool would.
const LONGEST_LIFE: Duration = Duration::from_secs(1_800);
const LONGEST_IDLE: Duration = Duration::from_secs(600);

/// Connections for events. They stay here between two events: sqlx's pool would ping each that comes
/// back, and send BEGIN and COMMIT alone, which are three round trips of six.
pub(crate) struct EventSessions {
    pool: PgPool,
    /// Connections without the settings of these.
    service: PgPool,
    idle: Mutex<Vec<Kept>>,
    /// A handler removes what its session prepared.
    are_statements_removed: AtomicBool,
}

struct Kept {
    connection: PoolConnection<Postgres>,
    /// The run of the server it leads to.
    server: Server,
    opened: Instant,
    used: Instant,
}

impl EventSessions {
    pub(crate) fn new(pool: PgPool, service: PgPool) -> Self {
        Self { pool, service, idle: Mutex::default(), are_statements_removed: AtomicBool::new(false) }
    }

    /// Where they come from.
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Whether a session may have lost what it prepared, so that it is of no use after the event.
    pub(crate) fn are_statements_removed(&self) -> bool {
        self.are_statements_removed.load(Ordering::Relaxed)
    }

    /// Notes that a handler ran DEALLOCATE ALL: from now on each event of the process has a connection of its own.
    pub(crate) fn note_removed_statements(&self) {
        if !self.are_statements_removed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a handler removed the prepared statements of its connection (DEALLOCATE ALL): each event takes a new \
                 connection now; leave the statements where they are"
            );
        }
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
        refuse_read_only(&self.service).await?;
        let now = Instant::now();
        let mut connection = self.pool.acquire().await?;
        // Whatever comes of it: sqlx's pool must not give it to anybody else, as it believes that it is in a
        // transaction.
        connection.close_on_drop();
        bounded(take_over_transactions(&mut connection)).await?;
        let server = bounded(prepare(&mut connection)).await?;
        Ok(Kept { connection, server, opened: now, used: now })
    }

    /// A panic inside leaves the list as it was: it changes in one step per call.
    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// These connections are read-only by default, and events say READ WRITE; so they don't notice that an operator made
/// the server, the database or the role read-only, which holds for new connections. It is asked elsewhere: a
/// connection shows what the server's configuration says now, the catalog what is set for new ones.
async fn refuse_read_only(service: &PgPool) -> Result<(), sqlx::Error> {
    let mut session = Session::acquire(service).await?;
    let asked = bounded(
        sqlx::query_scalar(
            "SELECT current_setting('default_transaction_read_only')::boolean OR coalesce(( \
                SELECT split_part(setting, '=', 2)::boolean FROM pg_db_role_setting, unnest(setconfig) AS setting \
                 WHERE setting LIKE 'default\\_transaction\\_read\\_only=%' \
                   AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())) \
                   AND setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user)) \
                 ORDER BY setrole <> 0 DESC, setdatabase <> 0 DESC LIMIT 1), false)",
        )
        .fetch_one(session.connection()),
    )
    .await;
    let result = match asked {
        Ok(false) => Ok(()),
        // What this connection says may be as old as it is: it is not asked again.
        Ok(true) => Err(sqlx::Error::Protocol("the database is set to read-only transactions".to_owned())),
        Err(error) => Err(error),
    };
    session.end(&result);
    result
}

/// sqlx counts transactions by the calls that begin and end them, and these of events are begun and
/// ended by statements that do more, which it can't see. It is told of one that never ends, so that
/// what a handler begins is a savepoint.
async fn take_over_transactions(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    std::mem::forget(connection.begin().await?);
    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    Ok(())
}

/// Prepares what each event needs, and tells which run of the server it is.
async fn prepare(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    let statements = [dedup::PREPARE, commit::PREPARE, record::PREPARE].join("; ");
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *connection).await?;
    super::progress::server(connection).await
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
            Some(kept) => Tx { connection: &mut kept.connection, outbox: Buffer::default() },
            None => unreachable!("only `release` takes it, and ends this"),
        }
    }

    /// The run of the server that the connection leads to. It is the same for as long as it lives.
    pub(crate) fn server(&self) -> &str {
        self.kept.as_ref().map_or("", |kept| &kept.server)
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

/// Undoes what a handler set that hides the library's tables: a role, or another `search_path`.
pub(super) const UNDO_NAMES: &str = "RESET ROLE; RESET search_path; ";

/// [`UNDO_NAMES`].
pub(super) async fn undo_names(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(UNDO_NAMES).execute(tx).await?;
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
