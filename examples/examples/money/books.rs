//! What was published, what the provider charged, and what the database knows of it.

use std::collections::HashMap;

use idem_runtime::prelude::EventId;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde::Serialize;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor, PgPool};
use uuid::Uuid;

use crate::Error;
use crate::handlers::{OrderConfirmed, TABLE, TOPIC};
use crate::servers::Servers;

/// The result.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Events published.
    pub events: u64,
    /// Charges in the provider's books.
    pub charges: u64,
    /// Charges beyond the first of an event.
    pub double_charges: u64,
    /// Events without a charge, or without exactly one payment in the database.
    pub missed: u64,
    /// Calls of which the database does not know what became.
    pub unknown: u64,
    /// Processes killed.
    pub crashes: u64,
    /// Answers that the provider lost after charging.
    pub lost_answers: u64,
}

pub struct Books {
    pool: PgPool,
    producer: FutureProducer,
    events: Vec<Uuid>,
}

impl Books {
    pub async fn open(servers: &Servers) -> Result<Self, Error> {
        let pool = PgPoolOptions::new().max_connections(2).connect(&servers.database_url).await?;
        pool.execute(TABLE).await?;
        let producer = ClientConfig::new()
            .set("bootstrap.servers", servers.brokers())
            .set("enable.idempotence", "true")
            .create()?;
        Ok(Self { pool, producer, events: Vec::new() })
    }

    /// Publishes one more event.
    pub async fn publish(&mut self) -> Result<(), Error> {
        let order = OrderConfirmed { event_id: EventId::now(), amount: fastrand::i64(100..100_000) };
        let (key, value) = (order.event_id.to_string(), serde_json::to_vec(&order)?);
        let record = FutureRecord::to(TOPIC).key(&key).payload(&value);
        self.producer.send_result(record).map_err(|(error, _)| error)?.await?.map_err(|(error, _)| error)?;
        self.events.push(order.event_id.uuid());
        Ok(())
    }

    /// Whether every event has its payment, and no call is open.
    pub async fn are_settled(&self, servers: &Servers) -> Result<bool, Error> {
        let figures = self.figures(servers, 0).await?;
        Ok(figures.missed == 0 && figures.unknown == 0)
    }

    pub async fn figures(&self, servers: &Servers, crashes: u64) -> Result<Figures, Error> {
        let mut charged: HashMap<Uuid, u64> = HashMap::new();
        let charges = servers.provider.charges();
        for charge in &charges {
            let order: OrderConfirmed = serde_json::from_slice(&charge.body)?;
            *charged.entry(order.event_id.uuid()).or_default() += 1;
        }
        let paid: Vec<(Uuid, i64)> =
            sqlx::query_as("SELECT event_id, count(*) FROM payment GROUP BY event_id").fetch_all(&self.pool).await?;
        let paid: HashMap<Uuid, i64> = paid.into_iter().collect();
        let is_missed = |id: &&Uuid| !charged.contains_key(*id) || paid.get(*id) != Some(&1);
        // The consumers make the library's tables; before that nothing is known.
        let unknown = "SELECT count(*) FROM money_call WHERE state = 'unknown'";
        let unknown: i64 = sqlx::query_scalar(unknown).fetch_one(&self.pool).await.unwrap_or(0);
        Ok(Figures {
            events: self.events.len() as u64,
            charges: charges.len() as u64,
            double_charges: charged.values().map(|times| times - 1).sum(),
            missed: self.events.iter().filter(is_missed).count() as u64,
            unknown: unknown.unsigned_abs(),
            crashes,
            lost_answers: servers.provider.lost_answers(),
        })
    }
}
