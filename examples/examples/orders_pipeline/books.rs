//! What became of the orders, and what was on the wire.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use idem_runtime::prelude::*;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use serde::Serialize;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor, PgPool};

use crate::Error;
use crate::handlers::{CONFIRMED, PAID, TABLES};
use crate::servers::{PARTITIONS, Servers};

/// The result.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Orders that were confirmed.
    pub orders: u64,
    /// Orders that were shipped.
    pub effects: u64,
    /// Records beyond the first of an event, on both topics.
    pub duplicates_on_wire: u64,
    /// Orders that were not billed, or not shipped.
    pub lost: u64,
    /// Payments and shipments beyond the first of an order.
    pub double_effects: u64,
    /// Processes killed.
    pub crashes: u64,
}

pub struct Books {
    pool: PgPool,
}

impl Books {
    pub async fn open(servers: &Servers) -> Result<Self, Error> {
        // For the customers' client.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pool = PgPoolOptions::new().max_connections(2).connect(&servers.database_url).await?;
        pool.execute(TABLES).await?;
        Ok(Self { pool })
    }

    pub async fn shipped(&self) -> Result<i64, Error> {
        Ok(sqlx::query_scalar("SELECT count(DISTINCT order_id) FROM shipment").fetch_one(&self.pool).await?)
    }

    /// Whether every order was shipped, and everything that was published was sent.
    pub async fn are_settled(&self, orders: u64) -> Result<bool, Error> {
        let waits: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM idem_outbox)").fetch_one(&self.pool).await?;
        Ok(!waits && self.shipped().await? >= i64::try_from(orders)?)
    }

    async fn by_order(&self, table: &'static str) -> Result<HashMap<i64, i64>, Error> {
        let count = match table {
            "payment" => "SELECT order_id, count(*) FROM payment GROUP BY order_id",
            _ => "SELECT order_id, count(*) FROM shipment GROUP BY order_id",
        };
        let rows: Vec<(i64, i64)> = sqlx::query_as(count).fetch_all(&self.pool).await?;
        Ok(rows.into_iter().collect())
    }

    pub async fn figures(&self, servers: &Servers, orders: u64, crashes: u64) -> Result<Figures, Error> {
        let (paid, shipped) = (self.by_order("payment").await?, self.by_order("shipment").await?);
        let is_lost = |order: &i64| !paid.contains_key(order) || !shipped.contains_key(order);
        let double = paid.values().chain(shipped.values()).map(|times| times - 1).sum::<i64>();
        let brokers = servers.brokers().to_owned();
        let duplicates = tokio::task::spawn_blocking(move || duplicates_on_wire(&brokers)).await??;
        Ok(Figures {
            orders,
            effects: shipped.len() as u64,
            duplicates_on_wire: duplicates,
            lost: (1..=i64::try_from(orders)?).filter(is_lost).count() as u64,
            double_effects: double.unsigned_abs(),
            crashes,
        })
    }
}

#[derive(serde::Deserialize)]
struct Any {
    event_id: EventId,
}

/// Reads both topics from beginning to end.
fn duplicates_on_wire(brokers: &str) -> Result<u64, Error> {
    const WAIT: Duration = Duration::from_secs(10);
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        // Never joined: a name is only needed to assign partitions.
        .set("group.id", "books")
        .set("enable.auto.commit", "false")
        .create()?;
    let mut wanted = TopicPartitionList::new();
    let mut left = 0;
    for topic in [CONFIRMED, PAID] {
        for partition in 0..PARTITIONS {
            let (first, end) = consumer.fetch_watermarks(topic, partition, WAIT)?;
            left += end - first;
            wanted.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
    }
    consumer.assign(&wanted)?;
    let (mut ids, mut records) = (HashSet::new(), 0);
    while left > 0 {
        let record = consumer.poll(WAIT).ok_or("the topics end too early")??;
        let event: Any = serde_json::from_slice(record.payload().unwrap_or_default())?;
        ids.insert(event.event_id);
        records += 1;
        left -= 1;
    }
    Ok(records - ids.len() as u64)
}
