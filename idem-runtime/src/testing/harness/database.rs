//! The database of a harness, which goes back to where it was.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::testing::{Postgres, TestingError};

/// How long others are waited for that still use a database.
const OTHERS: Duration = Duration::from_secs(10);

/// The server that the tests of a process share. It ends with the process.
async fn server() -> Result<&'static Postgres, TestingError> {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    // Nobody pulls the plug of a test: a commit need not wait for the disk.
    SERVER.get_or_try_init(|| Postgres::start_with(&[("fsync", "off"), ("full_page_writes", "off")])).await
}

/// One database on the shared server.
pub(super) struct Database {
    server: &'static Postgres,
    name: String,
}

/// How a database was; its name.
pub(super) struct Saved(String);

impl Database {
    pub(super) async fn create() -> Result<Self, TestingError> {
        let server = server().await?;
        let name = format!("test_{}", Uuid::now_v7().simple());
        server.create_database(&name).await?;
        Ok(Self { server, name })
    }

    pub(super) fn url(&self) -> String {
        self.server.url_of(&self.name)
    }

    pub(super) async fn connect(&self) -> Result<PgConnection, TestingError> {
        PgConnection::connect(&self.url()).await.map_err(refused("connect to the database"))
    }

    /// Keeps how it is now. Sessions that are open on it are ended.
    pub(super) async fn save(&self) -> Result<Saved, TestingError> {
        let saved = format!("{}_{}", self.name, Uuid::now_v7().simple());
        self.copy(&self.name, &saved).await?;
        Ok(Saved(saved))
    }

    /// Goes back to what was kept. Sessions that are open on it are ended.
    pub(super) async fn restore(&self, saved: &Saved) -> Result<(), TestingError> {
        self.execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await?;
        self.copy(&saved.0, &self.name).await
    }

    /// PostgreSQL copies a database that nobody is connected to.
    async fn copy(&self, from: &str, to: &str) -> Result<(), TestingError> {
        let started = Instant::now();
        loop {
            let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{from}'");
            self.execute(&end).await?;
            match self.execute(&format!("CREATE DATABASE {to} TEMPLATE {from}")).await {
                Err(error) if is_in_use(&error) && started.elapsed() < OTHERS => {}
                done => return done,
            }
        }
    }

    async fn execute(&self, statement: &str) -> Result<(), TestingError> {
        execute(&self.server.url(), statement).await.map_err(refused("copy a database"))
    }
}

/// Runs statements on a connection of their own.
pub(super) async fn execute(url: &str, statements: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut connection).await?;
    connection.close().await
}

/// For `map_err`: the server refused to do something.
pub(super) fn refused(what: &'static str) -> impl FnOnce(sqlx::Error) -> TestingError {
    move |source| TestingError::Sql { what: what.to_owned(), source }
}

/// SQLSTATE `object_in_use`.
fn is_in_use(error: &TestingError) -> bool {
    let TestingError::Sql { source: sqlx::Error::Database(source), .. } = error else { return false };
    source.code().as_deref() == Some("55006")
}
