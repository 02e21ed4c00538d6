//! Several kinds of events on one topic, each with a handler of its own.
//!
//! ```sh
//! cargo run --example event_types
//! ```

use examples::{Error, Playground};
use idem_runtime::prelude::*;
use serde_json::json;

#[derive(serde::Deserialize, Event)]
struct Opened {
    event_id: EventId,
    account: i64,
}

#[derive(serde::Deserialize, Event)]
struct Deposited {
    event_id: EventId,
    account: i64,
    cents: i64,
}

#[idempotent_handler(topic = "accounts", group = "ledger", event_type = "account.opened")]
async fn on_opened(tx: &mut Tx<'_>, event: Opened) -> HandlerResult {
    sqlx::query("INSERT INTO account (id, cents) VALUES ($1, 0)").bind(event.account).execute(&mut **tx).await?;
    Ok(())
}

#[idempotent_handler(topic = "accounts", group = "ledger", event_type = "account.deposited")]
async fn on_deposited(tx: &mut Tx<'_>, event: Deposited) -> HandlerResult {
    sqlx::query("UPDATE account SET cents = cents + $2 WHERE id = $1")
        .bind(event.account)
        .bind(event.cents)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let playground = Playground::start("CREATE TABLE account (id bigint PRIMARY KEY, cents bigint)").await?;
    playground.topic("accounts", "ledger")?;
    let id = || EventId::now();
    for event in [
        json!({"event_type": "account.opened", "event_id": id(), "account": 1}),
        json!({"event_type": "account.deposited", "event_id": id(), "account": 1, "cents": 250}),
        // Nobody's: skipped, or with `IDEM_UNMATCHED=dlq` dead-lettered.
        json!({"event_type": "account.renamed", "event_id": id(), "account": 1}),
        json!({"event_type": "account.deposited", "event_id": id(), "account": 1, "cents": 50}),
    ] {
        playground.publish("accounts", "1", &event).await?;
    }
    let paid = "SELECT count(*) FROM account WHERE cents = 300";
    playground.run_until(idem_runtime::builder(), paid, 1).await?;
    playground.print("SELECT format('account %s: %s cents', id, cents) FROM account").await
}
