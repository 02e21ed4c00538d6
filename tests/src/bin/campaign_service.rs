//! The service of the fault campaign, as a user of the library writes it. Configured by the environment.
//!
//! `campaign_service maintain` does what an operator may ask for while others run: it sweeps the dedup
//! table, and empties a day of the past.

use idem_runtime::ops::{Ops, Timestamp, partitions};
use idem_runtime::prelude::*;
use sqlx::types::Uuid;
use tests::campaign::load::{GROUPS, Plan, publishes};

#[derive(Debug, serde::Deserialize, Event)]
struct Happened {
    event_id: EventId,
    key: u32,
    part: i32,
    plan: Plan,
}

#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
struct Invoice {
    event_id: EventId,
    cause: EventId,
    key: u32,
    number: i64,
    epoch: i32,
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
    write(tx, Row::of("views", &view)).await?;
    go_as_planned(tx, view.plan, &delivery).await
}

#[idempotent_handler(topic = "campaign.orders", group = "books", transaction = "shared")]
async fn order_books(tx: &mut Tx<'_>, order: Happened, delivery: Delivery) -> HandlerResult {
    // What goes wrong for a while goes wrong in the other group: each failure here makes the neighbours in
    // the transaction run again.
    let plan = if order.plan == Plan::Refuse { Plan::Refuse } else { Plan::Succeed };
    write(tx, Row::of("order-books", &order)).await?;
    go_as_planned(tx, plan, &delivery).await
}

#[idempotent_handler(topic = "campaign.orders", group = "billing", concurrency = 8)]
async fn orders(tx: &mut Tx<'_>, order: Happened, delivery: Delivery) -> HandlerResult {
    if publishes(order.key) {
        // The aggregate is locked first: so the order of what is published is that of the numbers.
        let (number, epoch) = sqlx::query_as::<_, (i64, i32)>(
            "UPDATE purchase SET invoices = invoices + 1 WHERE key = $1 RETURNING invoices, (SELECT number FROM epoch)",
        )
        .bind(order.key.cast_signed())
        .fetch_one(&mut **tx)
        .await?;
        tx.publish("campaign.invoices", order.key, |event_id| Invoice {
            event_id,
            cause: order.event_id,
            key: order.key,
            number,
            epoch,
        })
        .await?;
    }
    write(tx, Row::of("orders", &order)).await?;
    go_as_planned(tx, order.plan, &delivery).await
}

#[idempotent_handler(topic = "campaign.invoices", group = "ledger", concurrency = 8, order = "key")]
async fn invoices(tx: &mut Tx<'_>, invoice: Invoice, delivery: Delivery) -> HandlerResult {
    write(tx, Row::of_invoice("invoices", &invoice, &delivery)).await
}

#[idempotent_handler(topic = "campaign.invoices", group = "books", transaction = "shared")]
async fn invoice_books(tx: &mut Tx<'_>, invoice: Invoice, delivery: Delivery) -> HandlerResult {
    write(tx, Row::of_invoice("invoice-books", &invoice, &delivery)).await
}

#[idempotent_handler(topic = "campaign.accounts", group = "ledger", concurrency = 8, order = "key")]
async fn accounts(tx: &mut Tx<'_>, change: Happened, delivery: Delivery) -> HandlerResult {
    // What this key has seen last, which is noted with the effect.
    let before: Option<Uuid> = sqlx::query_scalar(
        "UPDATE account SET last = $2 FROM (SELECT last FROM account WHERE key = $1 FOR UPDATE) AS before \
          WHERE key = $1 RETURNING before.last",
    )
    .bind(change.key.cast_signed())
    .bind(change.event_id.uuid())
    .fetch_one(&mut **tx)
    .await?;
    write(tx, Row { before, ..Row::of("accounts", &change) }).await?;
    go_as_planned(tx, change.plan, &delivery).await
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
    write(tx, Row::of("payments", &payment)).await?;
    go_as_planned(tx, payment.plan, &delivery).await
}

/// An effect. Nothing in the tables keeps one from being written twice: that is the library's work.
struct Row {
    handler: &'static str,
    part: i32,
    event: EventId,
    /// What came before it, of the same key.
    before: Option<Uuid>,
    /// The event whose handler published this one.
    cause: Option<Uuid>,
}

impl Row {
    fn of(handler: &'static str, event: &Happened) -> Self {
        Self { handler, part: event.part, event: event.event_id, before: None, cause: None }
    }

    fn of_invoice(handler: &'static str, invoice: &Invoice, delivery: &Delivery) -> Self {
        let cause = Some(invoice.cause.uuid());
        Self { handler, part: delivery.partition, event: invoice.event_id, before: None, cause }
    }
}

async fn write(tx: &mut Tx<'_>, row: Row) -> HandlerResult {
    sqlx::query("INSERT INTO effect (handler, part, event_id, member, before, cause) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(row.handler)
        .bind(row.part)
        .bind(row.event.uuid())
        .bind(std::process::id().cast_signed())
        .bind(row.before)
        .bind(row.cause)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// What goes wrong, when the effect is written.
async fn go_as_planned(tx: &mut Tx<'_>, plan: Plan, delivery: &Delivery) -> HandlerResult {
    match plan {
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
        if partitions::empty(&ops, &day.name).await? {
            println!("emptied {}", day.name);
        }
    }
    Ok(())
}
