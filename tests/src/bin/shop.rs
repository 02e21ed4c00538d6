//! A chain of handlers, for tests of what is told of them: spans, and the AsyncAPI document. `--asyncapi` prints that one;
//! with `--logs` the program has a subscriber of its own, else it leaves that to the run.

use idem_runtime::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing_subscriber::prelude::*;

/// An order. What is in `card` must be seen nowhere.
#[derive(Deserialize, JsonSchema, Event)]
struct OrderPlaced {
    event_id: EventId,
    /// In cents.
    amount: i64,
    card: String,
    #[serde(default)]
    plan: Plan,
    lines: Vec<Line>,
}

/// One article.
#[derive(Deserialize, JsonSchema)]
struct Line {
    #[allow(dead_code, reason = "the schema shows it")]
    article: String,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Plan {
    #[default]
    Succeed,
    FailOnce,
    Refuse,
}

#[derive(Serialize, Deserialize, JsonSchema, Event)]
struct OrderPaid {
    event_id: EventId,
    event_type: String,
    amount: i64,
}

/// Without a schema.
#[derive(Serialize, Deserialize, Event)]
struct Told {
    event_id: EventId,
}

/// A generic event.
#[derive(Deserialize, JsonSchema, Event)]
struct Envelope<T> {
    event_id: EventId,
    #[allow(dead_code, reason = "the schema shows it")]
    data: T,
}

#[idempotent_handler(topic = "shop.orders", group = "shop-checkout", money = true, retry = ["200ms"])]
async fn checkout(tx: &mut Tx<'_>, order: OrderPlaced, payments: MoneyClient, from: Delivery) -> HandlerResult {
    // As handlers do that people write: neither is to reach the collector.
    tracing::info!(card = order.card, "paying for {} lines", order.lines.len());
    match order.plan {
        Plan::FailOnce if from.attempt == 0 => return Err(HandlerError::transient(format!("no {}", order.card))),
        Plan::Refuse => return Err(HandlerError::permanent(format!("not {}", order.card))),
        Plan::Succeed | Plan::FailOnce => {}
    }
    payments.post("/charges").json(&json!({"amount": order.amount, "card": order.card})).send().await?;
    let paid = |event_id| OrderPaid { event_id, event_type: "paid".to_owned(), amount: order.amount };
    tx.publish("shop.paid", &order.card, paid).await?;
    Ok(())
}

#[idempotent_handler(topic = "shop.paid", group = "shop-shipping", event_type = "paid", summary = "ships a paid order")]
async fn ship(_tx: &mut Tx<'_>, _paid: OrderPaid) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "shop.paid", group = "shop-counts", transaction = "shared")]
async fn count(tx: &mut Tx<'_>, paid: OrderPaid) -> HandlerResult {
    tx.publish("shop.counted", paid.amount, |event_id| Told { event_id }).await?;
    Ok(())
}

#[idempotent_handler(topic = "shop.paid", group = "shop-report", batch = 10)]
async fn report(tx: &mut Tx<'_>, all: Vec<OrderPaid>) -> HandlerResult {
    for paid in &all {
        tx.publish_for(paid, "shop.reported", paid.amount, |event_id| Told { event_id }).await?;
    }
    Ok(())
}

#[idempotent_handler(topic = "shop.counted", group = "shop-told")]
async fn told(_tx: &mut Tx<'_>, _told: Told) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "shop.enveloped", group = "shop-told")]
async fn unpacked(_tx: &mut Tx<'_>, _envelope: Envelope<Line>) -> HandlerResult {
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let is_asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if is_asked("--logs") {
        let logs = tracing_subscriber::fmt::layer().with_filter(tracing_subscriber::EnvFilter::from_default_env());
        tracing_subscriber::registry().with(logs).with(idem_runtime::otlp::layer()?).init();
    }
    idem_runtime::builder().print_asyncapi(is_asked("--asyncapi")).run().await?;
    Ok(())
}
