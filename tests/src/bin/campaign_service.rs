//! The service of the fault campaign, as a user of the library writes it. Configured by the environment.
//!
//! `campaign_service maintain` does what an operator may ask for while others run: it sweeps the dedup
//! table, and empties a day of the past.

use idem_runtime::ops::{Ops, Timestamp, partitions};
use idem_runtime::prelude::*;
use tests::campaign::load::{GROUPS, Plan};

#[derive(Debug, serde::Deserialize, Event)]
struct Happened {
    event_id: EventId,
    part: i32,
    plan: Plan,
}

#[idempotent_handler(topic = "campaign.clicks", group = "books", batch = 500)]
async fn clicks(tx: &mut Tx<'_>, clicks: Vec<Happened>) -> HandlerResult {
    sqlx::query(
        "INSERT INTO effect (handler, part, event_id, member) \
         SELECT 'clicks', part, id, $3 FROM unnest($1::uuid[], $2::int[]) AS click (id, part)",
    )
    .bind(clicks.iter().map(|click| click.event_id.uuid()).collect::<Vec<_>>())
    .bind(clicks.iter().map(|click| click.part).collect::<Vec<_>>())
    .bind(std::process::id().cast_signed())
    .execute(&mut **tx)
    .await?;
    if clicks.iter().any(|click| click.plan == Plan::Refuse) {
        return Err(HandlerError::permanent("as planned"));
    }
    Ok(())
}

#[idempotent_handler(topic = "campaign.views", group = "books", transaction = "shared")]
async fn views(tx: &mut Tx<'_>, view: Happened, delivery: Delivery) -> HandlerResult {
    happen(tx, "views", &view, &delivery).await
}

#[idempotent_handler(topic = "campaign.orders", group = "books", transaction = "shared")]
async fn order_books(tx: &mut Tx<'_>, order: Happened, delivery: Delivery) -> HandlerResult {
    // What goes wrong for a while goes wrong in the other group: each failure here makes the neighbours in
    // the transaction run again.
    let plan = if order.plan == Plan::Refuse { Plan::Refuse } else { Plan::Succeed };
    happen(tx, "order-books", &Happened { plan, ..order }, &delivery).await
}

#[idempotent_handler(topic = "campaign.orders", group = "billing", concurrency = 8)]
async fn orders(tx: &mut Tx<'_>, order: Happened, delivery: Delivery) -> HandlerResult {
    happen(tx, "orders", &order, &delivery).await
}

#[idempotent_handler(topic = "campaign.accounts", group = "ledger", concurrency = 8, order = "key")]
async fn accounts(tx: &mut Tx<'_>, change: Happened, delivery: Delivery) -> HandlerResult {
    happen(tx, "accounts", &change, &delivery).await
}

#[idempotent_handler(
    topic = "campaign.payments",
    group = "billing",
    concurrency = 8,
    money = true,
    operation = "charge"
)]
async fn payments(tx: &mut Tx<'_>, payment: Happened, provider: MoneyClient, delivery: Delivery) -> HandlerResult {
    provider.post("/charges").json(&serde_json::json!({"event": payment.event_id})).send().await?;
    happen(tx, "payments", &payment, &delivery).await
}

/// The effect, and what the event's plan says. Nothing in the tables keeps an effect from being written
/// twice: that is the library's work.
async fn happen(tx: &mut Tx<'_>, handler: &str, event: &Happened, delivery: &Delivery) -> HandlerResult {
    sqlx::query("INSERT INTO effect (handler, part, event_id, member) VALUES ($1, $2, $3, $4)")
        .bind(handler)
        .bind(event.part)
        .bind(event.event_id.uuid())
        .bind(std::process::id().cast_signed())
        .execute(&mut **tx)
        .await?;
    match event.plan {
        Plan::Succeed => {}
        Plan::Fail(times) if delivery.attempt < times => return Err(HandlerError::transient("as planned")),
        Plan::Panic(times) if delivery.attempt < times => panic!("as planned"),
        Plan::Swallow if delivery.attempt == 0 => {
            let violation = sqlx::query("INSERT INTO taken VALUES (1)").execute(&mut **tx).await;
            drop(violation);
        }
        Plan::Fail(_) | Plan::Panic(_) | Plan::Swallow => {}
        Plan::Slow(millis) => tokio::time::sleep(std::time::Duration::from_millis(millis)).await,
        Plan::Refuse => return Err(HandlerError::permanent("as planned")),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tests::run::show_logs();
    if std::env::args().nth(1).as_deref() == Some("maintain") {
        return maintain().await;
    }
    Ok(idem_runtime::builder().groups(GROUPS).run().await?)
}

async fn maintain() -> Result<(), Box<dyn std::error::Error>> {
    let ops = Ops::new(idem_runtime::Config::from_env()?);
    let swept = partitions::sweep(&ops).await?;
    println!("swept {} days and {} rows, {} wait", swept.emptied.len(), swept.deleted, swept.waiting);
    let days = partitions::list(&ops).await?;
    let past = |to: Option<Timestamp>| to.is_some_and(|to| to <= days.now);
    for day in days.partitions.iter().filter(|day| day.droppable_from.is_some() && past(day.to)) {
        println!("{}: {}", day.name, partitions::empty(&ops, &day.name).await?);
    }
    Ok(())
}
