//! What one test has for itself.

use std::collections::BTreeMap;

use sqlx::PgPool;

use crate::{Client, Kafka, postgres};

/// A database and names of one's own on shared servers, and the environment that tells a program
/// of them.
#[derive(Clone)]
pub struct TestEnv {
    /// Unique among tests: the beginning of its topics and groups.
    pub name: String,
    /// The test's own database.
    pub database_url: String,
    /// A small pool on it, for the test's own questions.
    pub pool: PgPool,
    /// The broker.
    pub kafka: Client,
    variables: BTreeMap<String, String>,
}

impl TestEnv {
    /// On the servers that the tests of this binary share.
    pub async fn new() -> Self {
        let database_url = postgres::database().await;
        Self::on(&database_url, Kafka::shared().await)
    }

    /// On servers of the test's choice: one it stops, a mock broker, a proxy.
    #[must_use]
    pub fn on(database_url: &str, kafka: &Client) -> Self {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let env = Self {
            name,
            database_url: database_url.to_owned(),
            pool: postgres::pool(database_url),
            kafka: kafka.clone(),
            variables: BTreeMap::new(),
        };
        // Tests run side by side, and there is one port by default.
        let env = env.with("IDEM_ADMIN_ADDR", "off");
        env.with("IDEM_DATABASE_URL", database_url).with("IDEM_KAFKA_BROKERS", kafka.bootstrap())
    }

    /// Sets one more variable for programs.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A topic name of this test.
    #[must_use]
    pub fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// A group name of this test.
    #[must_use]
    pub fn group(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// The variables for a program: `IDEM_DATABASE_URL`, `IDEM_KAFKA_BROKERS` and what was added.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        self.variables.clone().into_iter().collect()
    }
}
