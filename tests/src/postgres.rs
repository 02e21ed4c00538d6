//! PostgreSQL for tests: one server per test binary, one database per test.
//!
//! A test that stops its server or swaps the data directory starts one of its own with
//! [`Postgres::start`].

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::OnceCell;

use crate::Postgres;

/// The server that the tests of this binary share.
///
/// # Panics
/// When it can't be started.
pub async fn shared() -> &'static Postgres {
    static SHARED: OnceCell<Postgres> = OnceCell::const_new();
    let start = async || Postgres::start().await.unwrap_or_else(|error| panic!("{error}"));
    SHARED.get_or_init(start).await
}

/// The URL of an empty database on the shared server, for one test.
///
/// # Panics
/// When it can't be created.
pub async fn database() -> String {
    let name = format!("test_{}", uuid::Uuid::now_v7().simple());
    shared().await.create_database(&name).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A small pool for what a test itself reads and writes.
///
/// # Panics
/// When the URL is wrong.
#[must_use]
pub fn pool(url: &str) -> PgPool {
    let pool = PgPoolOptions::new().max_connections(4).connect_lazy(url);
    pool.unwrap_or_else(|error| panic!("no database URL: {url}: {error}"))
}

/// How many sessions of the database are inside a transaction and run no statement: handlers that do
/// something else meanwhile.
///
/// # Panics
/// When the database does not answer.
pub async fn open_transactions(pool: &PgPool) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity \
                  WHERE datname = current_database() AND state = 'idle in transaction'";
    sqlx::query_scalar(count).fetch_one(pool).await.expect("the sessions of the database")
}
