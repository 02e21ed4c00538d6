//! The handlers, as a user of the library writes them: billing tells shipping by an event of its own.

use idem_runtime::prelude::*;

use crate::Error;

pub const CONFIRMED: &str = "order.confirmed";
pub const PAID: &str = "order.paid";
pub const GROUPS: [&str; 2] = ["billing", "shipping"];
/// The tiers that the retry topics are named after.
pub const RETRIES: [&str; 2] = ["200ms", "1s"];

/// Nothing in these tables keeps an effect from being written twice: that is the library's work.
pub const TABLES: &str = "CREATE TABLE orders (id bigint PRIMARY KEY, total_cents bigint NOT NULL); \
     CREATE TABLE payment (order_id bigint NOT NULL, amount_cents bigint NOT NULL); \
     CREATE TABLE shipment (order_id bigint NOT NULL)";

#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
pub struct OrderConfirmed {
    pub event_id: EventId,
    pub order_id: i64,
    pub total_cents: i64,
}

#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
pub struct OrderPaid {
    pub event_id: EventId,
    pub order_id: i64,
    pub amount_cents: i64,
}

#[idempotent_handler(topic = "order.confirmed", group = "billing", concurrency = 8, retry = ["200ms", "1s"])]
async fn bill(tx: &mut Tx<'_>, order: OrderConfirmed) -> HandlerResult {
    sqlx::query("INSERT INTO payment (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.total_cents)
        .execute(&mut **tx)
        .await?;
    tx.publish("order.paid", order.order_id, |event_id| OrderPaid {
        event_id,
        order_id: order.order_id,
        amount_cents: order.total_cents,
    })
    .event_type("order.paid")
    .await?;
    Ok(())
}

#[idempotent_handler(topic = "order.paid", group = "shipping", transaction = "shared", retry = ["200ms", "1s"])]
async fn ship(tx: &mut Tx<'_>, order: OrderPaid) -> HandlerResult {
    sqlx::query("INSERT INTO shipment (order_id) VALUES ($1)").bind(order.order_id).execute(&mut **tx).await?;
    Ok(())
}

pub async fn run() -> Result<(), Error> {
    tracing_subscriber::fmt().with_env_filter("error").with_writer(std::io::stderr).init();
    Ok(idem_runtime::run().await?)
}
