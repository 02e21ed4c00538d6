//! Connections: the pools, their session settings, and a guard for one event's connection.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres, Row};

use super::event_session::EventSessions;
use crate::decide::sql_error;

/// Longest wait for a row or table lock; then the transaction is run again.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a connection; then it counts as an outage.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a statement of the library's own, which may wait for a lock. A
/// server that vanished without a word would else be waited for until the operating system gives up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Progress, maintenance and, later, the relay.
const SERVICE_CONNECTIONS: u32 = 4;
/// For intents of money calls, which nothing else may hold up.
pub(crate) const INTENT_CONNECTIONS: u32 = 2;
/// For what becomes of money calls whose event does not tell.
const MONEY_CONNECTIONS: u32 = 4;

/// Handlers use one pool; progress and maintenance a second, small one, so that handlers that hold
/// every connection can't stop the group from recording where it is. Money calls have two of their own: there may be
/// thousands a second.
#[derive(Clone)]
pub(crate) struct Pools {
    pub handlers: Arc<EventSessions>,
    pub service: PgPool,
    pub money: PgPool,
    pub intents: PgPool,
}

impl Pools {
    /// Makes the pools; connects to nothing yet. `longest_handler` is the longest timeout of a handler.
    pub(crate) fn new(database: &PgConnectOptions, client_id: &str, size: u32, longest_handler: Duration) -> Self {
        // The library's own timeout must come first: it knows whose fault it is.
        let statement = longest_handler + Duration::from_secs(5);
        let idle = longest_handler + Duration::from_secs(10);
        let millis = |duration: Duration| format!("{}ms", duration.as_millis());
        let options = database
            .clone()
            .application_name(client_id)
            .options([
                ("default_transaction_isolation", "read committed".to_owned()),
                ("synchronous_commit", "on".to_owned()),
                ("statement_timeout", millis(statement)),
                ("idle_in_transaction_session_timeout", millis(idle)),
                ("lock_timeout", millis(LOCK_TIMEOUT)),
                // Without it a query whose client is gone keeps its row locks until it ends.
                ("client_connection_check_interval", "1s".to_owned()),
                ("tcp_keepalives_idle", "10".to_owned()),
                ("tcp_keepalives_interval", "5".to_owned()),
                ("tcp_keepalives_count", "3".to_owned()),
                // sqlx logs notices, and a trigger's RAISE NOTICE may quote a row.
                ("client_min_messages", "error".to_owned()),
            ])
            // sqlx logs slow statements with their text, and a handler's may hold literals.
            .disable_statement_logging();
        let pool = |options: PgConnectOptions, connections| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                // A dead connection shows at the first statement, which is handled; a ping before
                // each event would cost a round trip.
                .test_before_acquire(false)
                .after_connect(|connection, _| Box::pin(refuse_standby(connection)))
                .connect_lazy_with(options)
        };
        // What a handler writes behind a ROLLBACK of its own would be outside of any transaction of the
        // library's, and stay. Only those say READ WRITE.
        let handlers = options.clone().options([("default_transaction_read_only", "on")]);
        let service = pool(options.clone(), SERVICE_CONNECTIONS);
        Self {
            handlers: Arc::new(EventSessions::new(pool(handlers, size), service.clone())),
            service,
            money: pool(options.clone(), MONEY_CONNECTIONS),
            intents: pool(options, INTENT_CONNECTIONS),
        }
    }
}

/// A connection that can only read is of no use: after a failover the address may still lead there.
pub(crate) async fn refuse_standby(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    // Not prepared: behind a pooler that would fail for another reason, and the pool would try again in vain.
    let row = sqlx::raw_sql("SELECT pg_is_in_recovery()").fetch_one(connection).await?;
    if row.try_get(0)? {
        return Err(sqlx::Error::Protocol("the server is in recovery and can only read".to_owned()));
    }
    Ok(())
}

/// A connection for statements of the library's own. It goes back to the pool only after [`Session::release`]: a future dropped
/// in the middle of a statement leaves a connection whose state nobody knows.
pub(crate) struct Session {
    connection: PoolConnection<Postgres>,
    clean: bool,
}

impl Session {
    /// Takes a connection of the pool.
    pub(crate) async fn acquire(pool: &PgPool) -> Result<Self, sqlx::Error> {
        Ok(Self { connection: pool.acquire().await?, clean: false })
    }

    /// Gives the connection back to the pool. One that is still inside a transaction is closed: a
    /// savepoint that the handler never ended turns COMMIT into a release of it.
    pub(crate) fn release(mut self) {
        self.clean = !self.connection.is_in_transaction();
    }

    /// The connection, for statements of the library's own.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Gives the connection back after a statement of the library's own, if it ended well.
    pub(crate) fn end<T>(self, result: &Result<T, sqlx::Error>) {
        if result.is_ok() || result.as_ref().is_err_and(sql_error::leaves_connection_usable) {
            self.release();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.clean {
            self.connection.close_on_drop();
        }
    }
}

/// Runs the library's own statements on a connection of the service pool, within a bound. The
/// connection is closed when it did not end well.
///
/// # Cancel safety
/// Dropping it closes the connection, which rolls back.
pub(crate) async fn on_service<T, W>(pools: &Pools, work: W) -> Result<T, sqlx::Error>
where
    W: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
{
    let mut session = Session::acquire(&pools.service).await?;
    let result = bounded(work(&mut session.connection)).await;
    session.end(&result);
    result
}

/// Runs a transaction of the library's own that may take as long as `bound`, on a connection of the
/// service pool. It waits for no lock longer than two seconds: an insert queues behind a request that
/// waits, so it is better to give up and come again. A second is what the server takes to cancel an
/// autovacuum that is in the way.
///
/// # Cancel safety
/// Dropping it closes the connection, which rolls back.
pub(crate) async fn in_transaction<T, W>(pools: &Pools, bound: Duration, work: W) -> Result<T, sqlx::Error>
where
    W: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
{
    let mut session = Session::acquire(&pools.service).await?;
    let limits = format!("SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '{}ms'", bound.as_millis());
    let result = tokio::time::timeout(bound, async {
        let mut tx = session.connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(limits)).execute(&mut *tx).await?;
        let value = work(&mut tx).await?;
        tx.commit().await?;
        Ok(value)
    })
    .await
    .unwrap_or_else(|_elapsed| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())));
    if result.is_ok() {
        session.release();
    }
    result
}

/// Runs statements that can't be in a transaction on a connection that is closed afterwards, with
/// whatever they set for the session. They take as long as they take.
pub(crate) async fn on_own_connection<T, W>(pools: &Pools, work: W) -> Result<T, sqlx::Error>
where
    W: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
{
    let mut session = Session::acquire(&pools.service).await?;
    work(&mut session.connection).await
}

/// Bounds the wait for the server's answer. After it, the connection must be closed.
pub(crate) async fn bounded<T>(answer: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer,
        Err(_elapsed) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}
