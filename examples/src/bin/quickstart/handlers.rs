//! The handlers, as a user of the library writes them: the event, and what happens once for each.

use idem_runtime::prelude::*;

/// The topic of both handlers.
pub const TOPIC: &str = "order-service.order.confirmed";

/// Their groups: each sees every event.
pub const GROUPS: [&str; 2] = ["billing-order-confirmed", "shipping-order-confirmed"];

/// The tiers that their retry topics are named after.
pub const RETRIES: [&str; 3] = ["200ms", "500ms", "1s"];

/// Where effects are written. Nothing in the table keeps an effect from being written twice: that
/// is the library's work, and this is how a failure of it would show.
pub const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS quickstart_effect (
        consumer_group text NOT NULL, event_id uuid NOT NULL, order_id bigint NOT NULL, amount bigint NOT NULL
    );
    CREATE INDEX IF NOT EXISTS quickstart_effect_event_id ON quickstart_effect (event_id);
";

/// What the order service publishes.
#[derive(Debug, serde::Deserialize, serde::Serialize, Event)]
pub struct OrderConfirmed {
    pub event_id: EventId,
    pub order_id: i64,
    pub total_amount: i64,
    /// How many attempts fail before one succeeds: stands for a service that is away for a moment.
    pub failures: u32,
}

#[idempotent_handler(
    topic = "order-service.order.confirmed",
    group = "billing-order-confirmed",
    retry = ["200ms", "500ms", "1s"],
    concurrency = 4
)]
async fn charge(tx: &mut Tx<'_>, evt: OrderConfirmed, delivery: Delivery) -> HandlerResult {
    if delivery.attempt < evt.failures {
        return Err(HandlerError::transient("the ledger is closing its books"));
    }
    sqlx::query("INSERT INTO quickstart_effect VALUES ('billing-order-confirmed', $1, $2, $3)")
        .bind(evt.event_id.uuid())
        .bind(evt.order_id)
        .bind(evt.total_amount)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[idempotent_handler(
    topic = "order-service.order.confirmed",
    group = "shipping-order-confirmed",
    retry = ["200ms", "500ms", "1s"],
    concurrency = 4
)]
async fn ship(tx: &mut Tx<'_>, evt: OrderConfirmed, delivery: Delivery) -> HandlerResult {
    if delivery.attempt < evt.failures {
        return Err(HandlerError::transient("the warehouse is counting its stock"));
    }
    sqlx::query("INSERT INTO quickstart_effect VALUES ('shipping-order-confirmed', $1, $2, 0)")
        .bind(evt.event_id.uuid())
        .bind(evt.order_id)
        .execute(&mut **tx)
        .await?;
    Ok(())
}
