//! A bench for handlers; its page is `testing.md`.

mod database;
mod handler;
mod idempotent;
mod process;
mod topics;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sqlx::PgConnection;
use uuid::Uuid;

pub use self::handler::{Delivered, End, HandlerTest};
pub use self::idempotent::Idempotence;

use self::database::Database;
use self::topics::Topics;
use super::{Provider, TestingError};
use crate::clock;
use crate::handler::RawHeader;
use crate::kafka::headers;
use crate::kafka::record::Record;

/// A database, a broker and a payment provider for one test of a handler.
///
/// The PostgreSQL server is shared by the tests of a process and started by the first; the database is this
/// harness's own. Handlers are those that the test links, driven by the pipeline that `run()` drives them
/// by. [`testing`](crate::testing) has a whole test.
///
/// ```no_run
/// use idem_runtime::testing::Harness;
/// use serde_json::json;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let bench = Harness::start().await?;
/// bench.execute("CREATE TABLE invoice (order_id bigint)").await?;
/// let event = json!({"event_id": idem_runtime::EventId::now(), "order_id": 7});
/// bench
///     .handler("on_order_confirmed")
///     .assert_idempotent(&event, async |db| sqlx::query_scalar::<_, i64>("SELECT order_id FROM invoice").fetch_all(db).await)
///     .await;
/// # Ok(())
/// # }
/// ```
pub struct Harness {
    database: Database,
    topics: Topics,
    provider: Provider,
    /// The records of the test with their times. One of the same content is the same record, delivered again.
    log: Mutex<Vec<(Published, u64)>>,
    /// The groups that the database is ready for, and its lineage.
    ready: Mutex<BTreeMap<&'static str, Uuid>>,
    /// How far the clock is ahead, milliseconds.
    ahead: AtomicU64,
}

/// A record as the test's producer wrote it.
#[derive(Clone, PartialEq)]
struct Published {
    topic: &'static str,
    key: Option<Vec<u8>>,
    payload: Vec<u8>,
    headers: Vec<RawHeader>,
}

impl Harness {
    /// Starts it. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// When there is no PostgreSQL to be had, or no port is free.
    pub async fn start() -> Result<Self, TestingError> {
        Ok(Self {
            database: Database::create().await?,
            topics: Topics::start()?,
            provider: Provider::start().await?,
            log: Mutex::default(),
            ready: Mutex::default(),
            ahead: AtomicU64::default(),
        })
    }

    /// The URL of the database, for a pool that a handler gets as a `State`. The pool survives that the
    /// database goes back to an earlier state, which ends its connections.
    #[must_use]
    pub fn database_url(&self) -> String {
        self.database.url()
    }

    /// Runs statements in the database, such as those that make the tables.
    ///
    /// # Errors
    /// When the server refuses one.
    pub async fn execute(&self, statements: &str) -> Result<(), TestingError> {
        let done = database::execute(&self.database_url(), statements).await;
        done.map_err(database::refused("run the statements of the test"))
    }

    /// A connection to the database. Close it before [`HandlerTest::assert_idempotent`], which ends it.
    ///
    /// # Errors
    /// When the server is away.
    pub async fn connect(&self) -> Result<PgConnection, TestingError> {
        self.database.connect().await
    }

    /// The payment provider that money calls go to: `IDEM_MONEY_BASE_URL`.
    #[must_use]
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// The handler with this name: that of its function, with as much of its module's path as is needed
    /// to tell it from others.
    #[must_use]
    pub fn handler(&self, name: &str) -> HandlerTest<'_> {
        HandlerTest::new(self, name)
    }

    /// The record of this content; the same one whenever it is asked for.
    fn record(&self, published: Published) -> Record {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let found = log.iter().position(|(known, _)| *known == published);
        let offset = found.unwrap_or_else(|| {
            log.push((published, clock::unix_millis().saturating_add(self.ahead_millis())));
            log.len() - 1
        });
        let (Published { topic, key, payload, headers }, at_millis) = log[offset].clone();
        Record {
            topic: topic.into(),
            partition: 0,
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            timestamp_millis: i64::try_from(at_millis).ok(),
            key,
            payload: Some(payload),
            headers: (!headers.is_empty()).then(|| headers::from_raw(&headers)),
        }
    }

    fn ready(&self) -> MutexGuard<'_, BTreeMap<&'static str, Uuid>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ahead_millis(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("database_url", &self.database_url()).finish_non_exhaustive()
    }
}
