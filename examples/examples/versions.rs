//! `stale = "skip"`: an event that comes behind its successor does not undo it.
//!
//! ```sh
//! cargo run --example versions
//! ```

use examples::{Error, Playground};
use idem_runtime::prelude::*;
use serde_json::json;

#[derive(serde::Deserialize, Event)]
struct StockChanged {
    event_id: EventId,
    #[event(aggregate)]
    article: String,
    #[event(version)]
    revision: i64,
    on_stock: i64,
}

#[idempotent_handler(topic = "stock.changed", group = "shop", stale = "skip")]
async fn on_stock(tx: &mut Tx<'_>, stock: StockChanged) -> HandlerResult {
    sqlx::query(
        "INSERT INTO stock (article, revision, on_stock) VALUES ($1, $2, $3) ON CONFLICT (article) \
         DO UPDATE SET revision = excluded.revision, on_stock = excluded.on_stock",
    )
    .bind(stock.article)
    .bind(stock.revision)
    .bind(stock.on_stock)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let tables = "CREATE TABLE stock (article text PRIMARY KEY, revision bigint, on_stock bigint)";
    let playground = Playground::start(tables).await?;
    playground.topic("stock.changed", "shop")?;
    for (revision, on_stock) in [(1, 10), (3, 7), (2, 9), (4, 6), (3, 7)] {
        let event = json!({"event_id": EventId::now(), "article": "cup", "revision": revision, "on_stock": on_stock});
        playground.publish("stock.changed", "cup", &event).await?;
    }
    let last = "SELECT count(*) FROM stock WHERE revision = 4";
    playground.run_until(idem_runtime::builder(), last, 1).await?;
    playground.print("SELECT format('%s: %s on stock, revision %s', article, on_stock, revision) FROM stock").await
}
