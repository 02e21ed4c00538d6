//! The handler, as a user of the library writes it: one charge for each event.

use idem_runtime::prelude::*;

pub const TOPIC: &str = "order-service.order.confirmed";
pub const GROUP: &str = "billing";
/// The tiers that the retry topics are named after.
pub const RETRIES: [&str; 3] = ["200ms", "500ms", "1s"];

/// Nothing in the table keeps an effect from being written twice: that is the library's work.
pub const TABLE: &str = "CREATE TABLE payment (event_id uuid NOT NULL, amount bigint NOT NULL)";

#[derive(Debug, serde::Deserialize, serde::Serialize, Event)]
pub struct OrderConfirmed {
    pub event_id: EventId,
    pub amount: i64,
}

#[idempotent_handler(
    topic = "order-service.order.confirmed",
    group = "billing",
    money = true,
    operation = "charge",
    retry = ["200ms", "500ms", "1s"],
    concurrency = 8
)]
async fn charge(tx: &mut Tx<'_>, order: OrderConfirmed, payments: MoneyClient) -> HandlerResult {
    payments.post("/charges").json(&order).send().await?;
    sqlx::query("INSERT INTO payment (event_id, amount) VALUES ($1, $2)")
        .bind(order.event_id.uuid())
        .bind(order.amount)
        .execute(&mut **tx)
        .await?;
    Ok(())
}
