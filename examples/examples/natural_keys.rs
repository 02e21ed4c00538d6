//! Events of a producer that gives no ids: what tells them apart stands for one.
//!
//! ```sh
//! cargo run --example natural_keys
//! ```

use examples::{Error, Playground};
use idem_runtime::prelude::*;
use serde_json::json;

#[derive(serde::Deserialize, Event)]
#[event(key(order_number, event_type))]
struct OrderEvent {
    order_number: String,
    event_type: String,
}

#[idempotent_handler(topic = "legacy.orders", group = "mail")]
async fn on_order(tx: &mut Tx<'_>, order: OrderEvent) -> HandlerResult {
    sqlx::query("INSERT INTO mail (about) VALUES ($1 || ' ' || $2)")
        .bind(order.order_number)
        .bind(order.event_type)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let playground = Playground::start("CREATE TABLE mail (position bigserial, about text)").await?;
    playground.topic("legacy.orders", "mail")?;
    for (number, event_type) in [("A-1", "paid"), ("A-1", "paid"), ("A-1", "shipped"), ("A-2", "paid")] {
        let event = json!({"order_number": number, "event_type": event_type, "sent_at": "differs each time"});
        playground.publish("legacy.orders", number, &event).await?;
    }
    playground.run_until(idem_runtime::builder(), "SELECT count(*) FROM mail", 3).await?;
    playground.print("SELECT about FROM mail ORDER BY position").await
}
