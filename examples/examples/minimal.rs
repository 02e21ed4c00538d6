//! One handler, one event that is delivered three times, one effect.
//!
//! ```sh
//! cargo run --example minimal
//! ```

use examples::{Error, Playground};
use idem_runtime::prelude::*;
use serde_json::json;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
    order_id: i64,
    amount_cents: i64,
}

#[idempotent_handler(topic = "order.confirmed", group = "billing")]
async fn on_order_confirmed(tx: &mut Tx<'_>, order: OrderConfirmed) -> HandlerResult {
    sqlx::query("INSERT INTO invoice (order_id, amount_cents) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.amount_cents)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let playground = Playground::start("CREATE TABLE invoice (order_id bigint, amount_cents bigint)").await?;
    playground.topic("order.confirmed", "billing")?;
    let event = json!({"event_id": EventId::now(), "order_id": 7, "amount_cents": 4_999});
    for _ in 0..3 {
        playground.publish("order.confirmed", "7", &event).await?;
    }
    playground.run_until(idem_runtime::builder(), "SELECT count(*) FROM invoice", 1).await?;
    playground.print("SELECT format('invoice of order %s: %s cents', order_id, amount_cents) FROM invoice").await
}
