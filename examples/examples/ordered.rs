//! `order = "key"`: an event that failed is not overtaken by the next one of its key.
//!
//! ```sh
//! cargo run --example ordered
//! ```

use std::sync::atomic::{AtomicBool, Ordering};

use examples::{Error, Playground};
use idem_runtime::prelude::*;
use serde_json::json;

#[derive(serde::Deserialize, Event)]
struct OrderChanged {
    event_id: EventId,
    order_id: i64,
    state: String,
}

#[idempotent_handler(topic = "order.changed", group = "shipping", order = "key")]
async fn on_changed(tx: &mut Tx<'_>, order: OrderChanged) -> HandlerResult {
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);
    if order.order_id == 7 && order.state == "created" && !HAS_FAILED.swap(true, Ordering::SeqCst) {
        return Err(HandlerError::transient("the warehouse does not answer"));
    }
    sqlx::query("INSERT INTO step (order_id, state) VALUES ($1, $2)")
        .bind(order.order_id)
        .bind(order.state)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let tables = "CREATE TABLE step (position bigserial, order_id bigint, state text)";
    let playground = Playground::start(tables).await?;
    playground.topic("order.changed", "shipping")?;
    for (order_id, state) in [(7, "created"), (7, "cancelled"), (8, "created"), (8, "shipped")] {
        let event = json!({"event_id": EventId::now(), "order_id": order_id, "state": state});
        playground.publish("order.changed", &order_id.to_string(), &event).await?;
    }
    playground.run_until(idem_runtime::builder(), "SELECT count(*) FROM step", 4).await?;
    // Order 8 did not wait; order 7 was created before it was cancelled.
    playground.print("SELECT format('order %s: %s', order_id, state) FROM step ORDER BY position").await
}
