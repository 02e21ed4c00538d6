//! Kafka and PostgreSQL for a measurement, and what is on them.

use std::time::Duration;

use futures_util::future::try_join_all;
use idem_runtime::prelude::EventId;
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};
use tests::{Kafka, Postgres};

use crate::Failed;
use crate::handlers::{ACCOUNTS, Order};

/// Both servers, on this machine like everything that is measured.
pub struct Servers {
    pub kafka: Kafka,
    pub postgres: Postgres,
}

/// A database for one run.
pub struct Database {
    pub url: String,
    name: String,
}

/// Records are sent in chunks of so many, to bound the memory.
const CHUNK: usize = 50_000;

impl Servers {
    pub async fn start(settings: &[(&str, &str)]) -> Result<Self, Failed> {
        let (kafka, postgres) = tokio::join!(Kafka::start(), Postgres::start_with(settings));
        let servers = Self { kafka, postgres: postgres? };
        let url = servers.postgres.create_database("template").await?;
        let mut connection = PgConnection::connect(&url).await?;
        let tables = format!(
            "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL DEFAULT 0); \
             INSERT INTO account SELECT generate_series(0, {ACCOUNTS} - 1); \
             CREATE TABLE seen (sent_micros bigint NOT NULL); \
             VACUUM ANALYZE"
        );
        for statement in tables.split(';') {
            raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await?;
        }
        connection.close().await?;
        Ok(servers)
    }

    /// A new database with the accounts. Whatever earlier runs left to write is written first.
    pub async fn database(&self) -> Result<Database, Failed> {
        let name = format!("run_{}", uuid::Uuid::now_v7().simple());
        let mut connection = PgConnection::connect(&self.postgres.url()).await?;
        let create = format!("CREATE DATABASE {name} TEMPLATE template");
        raw_sql(AssertSqlSafe(create)).execute(&mut connection).await?;
        raw_sql("CHECKPOINT").execute(&mut connection).await?;
        connection.close().await?;
        Ok(Database { url: self.postgres.url_of(&name), name })
    }

    /// Removes the database of a run that is over.
    pub async fn drop(&self, database: Database) -> Result<(), Failed> {
        let mut connection = PgConnection::connect(&self.postgres.url()).await?;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", database.name);
        raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// A topic with so many events of at least so many bytes, spread over its partitions by account.
    pub async fn topic(&self, name: &str, partitions: i32, events: usize, bytes: usize) -> Result<(), Failed> {
        eprintln!("{name}: {events} events on {partitions} partitions");
        self.kafka.create_topic(name, partitions).await;
        self.publish(name, events, bytes).await
    }

    /// Publishes so many events of at least so many bytes.
    pub async fn publish(&self, name: &str, events: usize, bytes: usize) -> Result<(), Failed> {
        let producer = self.producer()?;
        for start in (0..events).step_by(CHUNK) {
            let sent = (start..events.min(start + CHUNK)).map(|_| {
                let account_id = fastrand::i64(0..ACCOUNTS);
                let order = Order { event_id: EventId::now(), account_id, amount: 1, sent_micros: 0 };
                self.send(&producer, name, &order, bytes)
            });
            try_join_all(sent.collect::<Result<Vec<_>, _>>()?).await?;
        }
        Ok(())
    }

    pub fn producer(&self) -> Result<FutureProducer, Failed> {
        let mut config = self.kafka.config();
        config.set("queue.buffering.max.messages", (2 * CHUNK).to_string()).set("linger.ms", "5");
        Ok(config.create()?)
    }

    /// Queues one event; the future ends when the broker has it.
    pub fn send(
        &self,
        producer: &FutureProducer,
        topic: &str,
        order: &Order,
        bytes: usize,
    ) -> Result<impl Future<Output = Result<(), Failed>> + use<>, Failed> {
        let mut value = serde_json::to_value(order)?;
        let padding = bytes.saturating_sub(serde_json::to_vec(&value)?.len());
        if padding > 0 {
            value["note"] = "x".repeat(padding).into();
        }
        let (key, value) = (order.account_id.to_string(), serde_json::to_vec(&value)?);
        let queued = producer.send_result(FutureRecord::to(topic).key(&key).payload(&value));
        let queued = queued.map_err(|(error, _)| error)?;
        Ok(async move {
            match queued.await? {
                Ok(_) => Ok(()),
                Err((error, _)) => Err(error.into()),
            }
        })
    }

    /// What a program of the library's needs to know.
    pub fn variables(&self, database: &Database) -> Vec<(String, String)> {
        let (database, brokers) = (database.url.as_str(), self.kafka.bootstrap());
        [("IDEM_DATABASE_URL", database), ("IDEM_KAFKA_BROKERS", brokers), ("IDEM_ADMIN_ADDR", "off")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }
}

impl Database {
    /// Makes the dedup table that a loop by hand would have.
    pub async fn make_flat_table(&self) -> Result<(), Failed> {
        let flat = "CREATE TABLE IF NOT EXISTS processed_event (event_id uuid, consumer_group text, \
                    processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (event_id, consumer_group))";
        sqlx::raw_sql(flat).execute(&mut self.connect().await?).await?;
        Ok(())
    }

    pub async fn connect(&self) -> Result<PgConnection, Failed> {
        Ok(PgConnection::connect(&self.url).await?)
    }

    /// Insists that every event had exactly one effect: each adds 1 to a balance.
    pub async fn insist_on(&self, events: u64) -> Result<(), Failed> {
        let mut connection = self.connect().await?;
        let effects: i64 =
            sqlx::query_scalar("SELECT sum(balance)::bigint FROM account").fetch_one(&mut connection).await?;
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM processed_event").fetch_one(&mut connection).await?;
        connection.close().await?;
        match effects == rows && effects >= i64::try_from(events)? {
            true => Ok(()),
            false => Err(format!("{effects} effects and {rows} dedup rows of {events} events").into()),
        }
    }
}

/// Longest time for one run.
pub const LIMIT: Duration = Duration::from_secs(600);
