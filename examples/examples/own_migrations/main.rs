//! Migrations of the application beside those of the library: each has a table of its own for what was applied.
//!
//! ```sh
//! cargo run --example own_migrations
//! ```

use std::path::Path;

use examples::{Error, Playground};
use idem_runtime::prelude::*;
use serde_json::json;
use sqlx::migrate::Migrator;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
    order_id: i64,
}

#[idempotent_handler(topic = "order.confirmed", group = "orders")]
async fn on_confirmed(tx: &mut Tx<'_>, order: OrderConfirmed) -> HandlerResult {
    sqlx::query("UPDATE orders SET confirmed = true WHERE id = $1").bind(order.order_id).execute(&mut **tx).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let playground = Playground::start("").await?;
    playground.topic("order.confirmed", "orders")?;
    // A service would have them in its binary, with `sqlx::migrate!()`.
    let migrations = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/own_migrations/migrations"));
    Migrator::new(migrations).await?.run(&playground.pool).await?;

    let event = json!({"event_id": EventId::now(), "order_id": 7});
    playground.publish("order.confirmed", "7", &event).await?;
    // The library's own are applied here; `IDEM_MIGRATE=false` and `idem migrate` do it beforehand.
    let confirmed = "SELECT count(*) FROM orders WHERE confirmed";
    playground.run_until(idem_runtime::builder(), confirmed, 1).await?;
    let applied = "SELECT format('%s migrations of the application', (SELECT count(*) FROM _sqlx_migrations))";
    playground.print(applied).await
}
