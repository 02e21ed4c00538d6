//! The relay's session: the lock that makes it the only one, and everything it asks the database.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::config::Config;
use crate::decide::relay::Seen;
use crate::pg::outbox::{self, Backlog, Taken};
use crate::pg::session::{bounded, refuse_standby};

/// The number of the advisory lock, arbitrary but fixed.
const LOCK: i64 = 0x1de3_0b0c;

/// A session that is never shared and goes through no pooler: the lock is its own, and lost with it.
pub(super) struct Session {
    connection: PgConnection,
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
            ("statement_timeout", "60s"),
            ("lock_timeout", "5s"),
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

impl Session {
    pub(super) async fn open(config: &Config, lease: Duration) -> Result<Self, sqlx::Error> {
        let mut connection = bounded(PgConnection::connect_with(&options(config))).await?;
        bounded(refuse_standby(&mut connection)).await?;
        let (id, timeout) = (Uuid::now_v7(), config.relay_timeout);
        Ok(Self { connection, id, lease, timeout, confirmed: Instant::now() })
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether this session is the one.
    pub(super) async fn try_lock(&mut self) -> Result<bool, sqlx::Error> {
        let lock = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(LOCK);
        answered(&mut self.confirmed, lock.fetch_one(&mut self.connection)).await
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

    /// Makes sure that the lock is held.
    pub(super) async fn confirm(&mut self) -> Result<(), sqlx::Error> {
        answered(&mut self.confirmed, self.connection.ping()).await
    }

    /// Makes sure that a record may be queued now.
    pub(super) async fn within_lease(&mut self) -> Result<(), sqlx::Error> {
        while self.confirmed.elapsed() > self.lease {
            self.confirm().await?;
        }
        Ok(())
    }

    pub(super) async fn seen(&mut self, most: usize) -> Result<Vec<Seen>, sqlx::Error> {
        answered(&mut self.confirmed, outbox::seen(&mut self.connection, most)).await
    }

    pub(super) async fn read(&mut self, seqs: &[i64]) -> Result<Vec<Taken>, sqlx::Error> {
        answered(&mut self.confirmed, outbox::read(&mut self.connection, seqs)).await
    }

    pub(super) async fn delete(&mut self, seqs: &[i64]) -> Result<(), sqlx::Error> {
        answered(&mut self.confirmed, outbox::delete(&mut self.connection, seqs)).await
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

    pub(super) async fn backlog(&mut self) -> Result<Backlog, sqlx::Error> {
        answered(&mut self.confirmed, outbox::backlog(&mut self.connection)).await
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
