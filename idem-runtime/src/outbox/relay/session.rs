//! The relay's session: the lock that makes it the only one, and everything it asks the database.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::config::Config;
use crate::decide::relay::{PassedOver, Seen};
use crate::pg::outbox::{self, Taken};
use crate::pg::pooler;
use crate::pg::session::{bounded, refuse_standby};

/// The number of the advisory lock: an arbitrary one, with that of the schema's own table behind it. A database has
/// one space of such numbers, and a schema for each of several services.
const LOCK: &str = "SELECT pg_try_advisory_lock((7651::bigint << 32) | 'idem_relay'::regclass::oid::bigint)";

/// With its seconds. It tells a session of its own from one behind a pooler, which was begun without it.
const LOCK_TIMEOUT: (&str, i64) = ("5s", 5);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("{0}")]
    Pooler(String),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

fn through_a_pooler(what: &str) -> OpenError {
    OpenError::Pooler(format!(
        "the outbox's relay has no database session of its own: {what}. IDEM_DATABASE_DIRECT_URL, or without it \
         IDEM_DATABASE_URL, must lead to PostgreSQL itself, not to a pooler such as PgBouncer: two relays could hold \
         the lock at once"
    ))
}

/// A session that is never shared and goes through no pooler: the lock is its own, and lost with it.
pub(super) struct Session {
    connection: PgConnection,
    /// The server's process.
    process: i32,
    id: Uuid,
    /// How long after an answer a record may be queued.
    lease: Duration,
    /// How long a successor waits.
    timeout: Duration,
    /// When the last statement was sent that was answered: the lock was held then.
    confirmed: Instant,
}

fn options(config: &Config) -> PgConnectOptions {
    config
        .database
        .clone()
        .application_name(&format!("{} relay", config.client_id))
        .options([
            ("default_transaction_isolation", "read committed"),
            ("statement_timeout", "60s"),
            ("lock_timeout", LOCK_TIMEOUT.0),
            // A session whose client vanished must not keep the lock for hours.
            ("client_connection_check_interval", "1s"),
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
            ("client_min_messages", "error"),
            // The rows stand in their order in the index; statistics of a table that is always nearly empty
            // say that reading and sorting all of it is cheaper.
            ("enable_seqscan", "off"),
            ("enable_sort", "off"),
        ])
        .disable_statement_logging()
}

/// A statement, and when it was sent, if it is answered.
async fn answered<T>(
    confirmed: &mut Instant,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let sent = Instant::now();
    let answer = bounded(statement).await?;
    *confirmed = sent;
    Ok(answer)
}

async fn connect(config: &Config) -> Result<(PgConnection, i32), OpenError> {
    let mut connection = match bounded(PgConnection::connect_with(&options(config))).await {
        Err(error) if pooler::refuses_settings(&error) => {
            return Err(through_a_pooler("what it wants of it is refused"));
        }
        connected => connected?,
    };
    bounded(refuse_standby(&mut connection)).await?;
    if bounded(pooler::lock_timeout_seconds(&mut connection)).await? != LOCK_TIMEOUT.1 {
        return Err(through_a_pooler("it is not as it was begun"));
    }
    let process = bounded(process(&mut connection)).await?;
    Ok((connection, process))
}

/// The server's process behind a session.
async fn process(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(connection).await
}

impl Session {
    pub(super) async fn open(config: &Config, lease: Duration) -> Result<Self, OpenError> {
        let (connection, process) = connect(config).await?;
        let (id, timeout) = (Uuid::now_v7(), config.relay_timeout);
        Ok(Self { connection, process, id, lease, timeout, confirmed: Instant::now() })
    }

    /// Replaces a connection that failed, for the last words. The lock is lost.
    pub(super) async fn reopen(&mut self, config: &Config) -> Result<(), OpenError> {
        (self.connection, self.process) = connect(config).await?;
        Ok(())
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether this session is the one.
    pub(super) async fn try_lock(&mut self) -> Result<bool, sqlx::Error> {
        answered(&mut self.confirmed, sqlx::query_scalar(LOCK).fetch_one(&mut self.connection)).await
    }

    /// Whether somebody says that he relays.
    pub(super) async fn is_relayed(&mut self) -> Result<bool, sqlx::Error> {
        let holder = sqlx::query_scalar("SELECT EXISTS (SELECT FROM idem_relay WHERE holder IS NOT NULL)");
        answered(&mut self.confirmed, holder.fetch_one(&mut self.connection)).await
    }

    /// How long a former relay may still send.
    pub(super) async fn take_over(&mut self) -> Result<Option<Duration>, sqlx::Error> {
        let former = sqlx::query_as("SELECT holder, may_send_millis FROM idem_relay");
        let (holder, millis): (Option<Uuid>, i64) =
            answered(&mut self.confirmed, former.fetch_one(&mut self.connection)).await?;
        Ok(holder.map(|_| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
    }

    /// Notes that this one sends from now on.
    pub(super) async fn announce(&mut self) -> Result<(), sqlx::Error> {
        let millis = i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX);
        let note = sqlx::query("UPDATE idem_relay SET holder = $1, may_send_millis = $2, wake_until = NULL");
        answered(&mut self.confirmed, note.bind(self.id).bind(millis).execute(&mut self.connection)).await?;
        // What is lost of the rest with a crash of the server is sent again, with the same ids.
        let fast = sqlx::raw_sql("SET synchronous_commit = off").execute(&mut self.connection);
        answered(&mut self.confirmed, fast).await?;
        Ok(())
    }

    /// Notes that nothing is sent any more.
    pub(super) async fn say_goodbye(&mut self) -> Result<(), sqlx::Error> {
        let note = sqlx::query("UPDATE idem_relay SET holder = NULL, wake_until = NULL WHERE holder = $1");
        answered(&mut self.confirmed, note.bind(self.id).execute(&mut self.connection)).await?;
        Ok(())
    }

    pub(super) async fn close(self) {
        let _ = bounded(self.connection.close()).await;
    }

    /// Makes sure that the lock is held: it is the session's.
    pub(super) async fn confirm(&mut self) -> Result<(), sqlx::Error> {
        let mut before = self.confirmed;
        let process = answered(&mut before, process(&mut self.connection)).await?;
        if process != self.process {
            return Err(sqlx::Error::Protocol(
                "the connection leads to another session: a pooler is in the way".to_owned(),
            ));
        }
        self.confirmed = before;
        Ok(())
    }

    /// Makes sure that a record may be queued now.
    pub(super) async fn within_lease(&mut self) -> Result<(), sqlx::Error> {
        while self.confirmed.elapsed() > self.lease {
            self.confirm().await?;
        }
        Ok(())
    }

    pub(super) async fn seen(&mut self, most: usize, but: &PassedOver) -> Result<Vec<Seen>, sqlx::Error> {
        answered(&mut self.confirmed, outbox::seen(&mut self.connection, most, but)).await
    }

    pub(super) async fn seen_of(&mut self, topic: &str, most: usize) -> Result<Vec<Seen>, sqlx::Error> {
        answered(&mut self.confirmed, outbox::seen_of(&mut self.connection, topic, most)).await
    }

    pub(super) async fn read(&mut self, seqs: &[i64]) -> Result<Vec<Taken>, sqlx::Error> {
        answered(&mut self.confirmed, outbox::read(&mut self.connection, seqs)).await
    }

    pub(super) async fn delete(&mut self, rows: &[(i64, Uuid)]) -> Result<(), sqlx::Error> {
        answered(&mut self.confirmed, outbox::delete(&mut self.connection, rows)).await
    }

    pub(super) async fn park(&mut self, seq: i64, reason: &str) -> Result<(), sqlx::Error> {
        answered(&mut self.confirmed, outbox::park(&mut self.connection, seq, reason)).await
    }

    pub(super) async fn set_aside(&mut self, seqs: &[i64]) -> Result<(), sqlx::Error> {
        answered(&mut self.confirmed, outbox::set_aside(&mut self.connection, seqs)).await
    }

    pub(super) async fn wanted_awake(&mut self, seconds: u32) -> Result<(), sqlx::Error> {
        answered(&mut self.confirmed, outbox::wanted_awake(&mut self.connection, seconds)).await
    }

    pub(super) async fn truncate(&mut self, slot: i64) -> Result<bool, sqlx::Error> {
        answered(&mut self.confirmed, outbox::truncate(&mut self.connection, slot)).await
    }
}

/// Wakes the relay when a publisher says so, until it is dropped. Without it the relay looks by itself.
pub(super) async fn listen(config: Arc<Config>, woken: Arc<Notify>) {
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options(&config));
    loop {
        if let Ok(mut listener) = PgListener::connect_with(&pool).await
            && listener.listen(outbox::CHANNEL).await.is_ok()
        {
            // One may have come before it listened.
            woken.notify_one();
            while listener.recv().await.is_ok() {
                woken.notify_one();
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
