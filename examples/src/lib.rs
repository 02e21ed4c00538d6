//! What the small examples share: servers that need no set-up, and a producer.

use std::time::{Duration, Instant};

use idem_runtime::testing::{MockBroker, Postgres};
use idem_runtime::{Builder, Config};
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::{AssertSqlSafe, PgPool};

/// Whatever goes wrong in an example.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The delay of the only retry tier.
const RETRY: &str = "300ms";

/// Longer than any example takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A PostgreSQL and a mock Kafka cluster, which end with it.
pub struct Playground {
    /// The database of the business.
    pub pool: PgPool,
    database_url: String,
    broker: MockBroker,
    producer: FutureProducer,
    _postgres: Postgres,
}

impl Playground {
    /// Starts the servers, with these tables.
    ///
    /// # Errors
    /// When a server does not start.
    pub async fn start(tables: &str) -> Result<Self, Error> {
        eprintln!("starting PostgreSQL (downloaded first if this machine has none)");
        let postgres = Postgres::start().await?;
        let database_url = postgres.create_database("example").await?;
        let pool = PgPool::connect(&database_url).await?;
        sqlx::raw_sql(AssertSqlSafe(tables)).execute(&pool).await?;
        let broker = MockBroker::start()?;
        let producer = ClientConfig::new().set("bootstrap.servers", broker.bootstrap_servers()).create()?;
        Ok(Self { pool, database_url, broker, producer, _postgres: postgres })
    }

    /// Makes a topic, and those of a group that reads it: the mock cluster makes none for clients, as a real one does.
    ///
    /// # Errors
    /// When the cluster refuses.
    pub fn topic(&self, topic: &str, group: &str) -> Result<(), Error> {
        self.topic_with(topic, group, &[RETRY.to_owned()])
    }

    /// The same, for a group with these delay tiers.
    ///
    /// # Errors
    /// When the cluster refuses.
    pub fn topic_with(&self, topic: &str, group: &str, tiers: &[String]) -> Result<(), Error> {
        self.broker.create_topic(topic, 1)?;
        for end in ["replay", "dlq"] {
            self.broker.create_topic(&format!("{group}.{end}"), 1)?;
        }
        for tier in tiers {
            self.broker.create_topic(&format!("{group}.retry.{tier}"), 1)?;
        }
        Ok(())
    }

    /// Publishes an event, as another service would.
    ///
    /// # Errors
    /// When it is not acknowledged.
    pub async fn publish(&self, topic: &str, key: &str, event: &serde_json::Value) -> Result<(), Error> {
        self.publish_text(topic, Some(key), &event.to_string()).await
    }

    /// The same, with any text.
    ///
    /// # Errors
    /// When it is not acknowledged.
    pub async fn publish_text(&self, topic: &str, key: Option<&str>, payload: &str) -> Result<(), Error> {
        let record = FutureRecord { key, ..FutureRecord::to(topic) }.payload(payload);
        self.producer.send(record, LIMIT).await.map_err(|(error, _)| error)?;
        Ok(())
    }

    /// What a service needs in its environment.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, &str); 2] {
        [("IDEM_DATABASE_URL", &self.database_url), ("IDEM_KAFKA_BROKERS", self.broker.bootstrap_servers())]
    }

    /// What the small examples run with.
    ///
    /// # Errors
    /// Never, with these settings.
    pub fn config(&self) -> Result<Config, Error> {
        let settings = [("IDEM_RETRY", RETRY), ("IDEM_ADMIN_ADDR", "off")];
        Ok(Config::from_vars(self.variables().into_iter().chain(settings))?)
    }

    /// Runs the handlers until a query that counts gives this number.
    ///
    /// # Errors
    /// Those of the run; and when it takes too long.
    pub async fn run_until(&self, builder: Builder, count: &'static str, wanted: i64) -> Result<(), Error> {
        let (done, is_done) = tokio::sync::oneshot::channel::<()>();
        let run = builder.config(self.config()?).shutdown_when(async { drop(is_done.await) }).run();
        let counted = async {
            let since = Instant::now();
            while sqlx::query_scalar::<_, i64>(count).fetch_one(&self.pool).await? != wanted {
                if since.elapsed() > LIMIT {
                    return Err(Error::from(format!("`{count}` did not become {wanted} within {LIMIT:?}")));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            // Longer, and something that must not happen would have happened.
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(done);
            Ok(())
        };
        let (run, counted) = tokio::join!(run, counted);
        run?;
        counted
    }

    /// Prints one column of text.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn print(&self, query: &'static str) -> Result<(), Error> {
        for row in sqlx::query_scalar::<_, String>(AssertSqlSafe(query)).fetch_all(&self.pool).await? {
            println!("{row}");
        }
        Ok(())
    }
}
