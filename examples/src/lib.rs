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
    pub async fn start(tables: &'static str) -> Result<Self, Error> {
        eprintln!("starting PostgreSQL (downloaded first if this machine has none)");
        let postgres = Postgres::start().await?;
        let database_url = postgres.create_database("example").await?;
        let pool = PgPool::connect(&database_url).await?;
        sqlx::raw_sql(tables).execute(&pool).await?;
        let broker = MockBroker::start()?;
        let producer = ClientConfig::new().set("bootstrap.servers", broker.bootstrap_servers()).create()?;
        Ok(Self { pool, database_url, broker, producer, _postgres: postgres })
    }

    /// Makes a topic, and those of a group that reads it: the mock cluster makes none for clients, as a real one does.
    ///
    /// # Errors
    /// When the cluster refuses.
    pub fn topic(&self, topic: &str, group: &str) -> Result<(), Error> {
        let of_group = [&format!("retry.{RETRY}"), "replay", "dlq"].map(|end| format!("{group}.{end}"));
        for name in of_group.iter().map(String::as_str).chain([topic]) {
            self.broker.create_topic(name, 1)?;
        }
        Ok(())
    }

    /// Publishes an event, as another service would.
    ///
    /// # Errors
    /// When it is not acknowledged.
    pub async fn publish(&self, topic: &str, key: &str, event: &serde_json::Value) -> Result<(), Error> {
        let payload = event.to_string();
        let record = FutureRecord::to(topic).key(key).payload(&payload);
        self.producer.send(record, LIMIT).await.map_err(|(error, _)| error)?;
        Ok(())
    }

    /// What a service has in its environment.
    ///
    /// # Errors
    /// Never, with these settings.
    pub fn config(&self) -> Result<Config, Error> {
        Ok(Config::from_vars([
            ("IDEM_DATABASE_URL", self.database_url.as_str()),
            ("IDEM_KAFKA_BROKERS", self.broker.bootstrap_servers()),
            ("IDEM_RETRY", RETRY),
            ("IDEM_ADMIN_ADDR", "off"),
        ])?)
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
