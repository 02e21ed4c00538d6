//! Connections: the two pools, their session settings, and a guard for one event's connection.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection, PgPool, Postgres};

use crate::handler::Tx;

/// Longest wait for a row or table lock; then the transaction is run again.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a connection; then it counts as an outage.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Progress, maintenance and, later, money intents and the relay.
const SERVICE_CONNECTIONS: u32 = 4;

/// Handlers use one pool; progress and maintenance a second, small one, so that handlers that hold
/// every connection can't stop the group from recording where it is.
#[derive(Clone)]
pub(crate) struct Pools {
    pub handlers: PgPool,
    pub service: PgPool,
}

impl Pools {
    /// Makes both pools; connects to nothing yet. `longest_handler` is the longest timeout of a handler.
    pub(crate) fn new(database: &PgConnectOptions, client_id: &str, size: u32, longest_handler: Duration) -> Self {
        // The library's own timeout must come first: it knows whose fault it is.
        let statement = longest_handler + Duration::from_secs(5);
        let idle = longest_handler + Duration::from_secs(10);
        let options = database.clone().application_name(client_id).options([
            ("default_transaction_isolation", "read committed".to_owned()),
            ("synchronous_commit", "on".to_owned()),
            ("statement_timeout", format!("{}ms", statement.as_millis())),
            ("idle_in_transaction_session_timeout", format!("{}ms", idle.as_millis())),
            ("lock_timeout", format!("{}ms", LOCK_TIMEOUT.as_millis())),
            ("tcp_keepalives_idle", "10".to_owned()),
            ("tcp_keepalives_interval", "5".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
        ]);
        let pool = |connections| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                // A dead connection shows at the first statement, which is handled; a ping before
                // each event would cost a round trip.
                .test_before_acquire(false)
                .after_connect(|connection, _| Box::pin(prepare(connection)))
                .connect_lazy_with(options.clone())
        };
        Self { handlers: pool(size), service: pool(SERVICE_CONNECTIONS) }
    }
}

/// Checks and prepares a fresh connection.
async fn prepare(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let in_recovery: bool = sqlx::query_scalar("SELECT pg_is_in_recovery()").fetch_one(&mut *connection).await?;
    if in_recovery {
        return Err(sqlx::Error::Protocol("the server is in recovery and can only read".to_owned()));
    }
    // Without it a query whose client is gone keeps its row locks until it ends. A server that can't
    // watch its clients (before 14, or on some platforms) refuses the setting, and works without.
    let watch = "DO $$ BEGIN PERFORM set_config('client_connection_check_interval', '1s', false); \
                 EXCEPTION WHEN OTHERS THEN NULL; END $$";
    connection.execute(watch).await?;
    Ok(())
}

/// One event's connection. It goes back to the pool only after [`Session::release`]: a future dropped
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

    /// Begins the event's transaction.
    pub(crate) async fn begin(&mut self) -> Result<Tx<'_>, sqlx::Error> {
        Ok(Tx { inner: self.connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await? })
    }

    /// Gives the connection back to the pool.
    pub(crate) fn release(mut self) {
        self.clean = true;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.clean {
            self.connection.close_on_drop();
        }
    }
}
