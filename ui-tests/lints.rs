//! Generated code is clean under the strictest lints of a user: `cargo clippy --all-targets` reads
//! this file as it reads a user's.
#![forbid(unsafe_code)]
#![deny(
    warnings,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_imports,
    clippy::std_instead_of_core
)]

use idem_runtime::prelude::{Delivery, Event, EventId, HandlerResult, MoneyClient, State, Tx, idempotent_handler};

/// An event with an id.
#[derive(serde::Deserialize, Event)]
pub struct Paid {
    event_id: EventId,
    #[event(aggregate)]
    order: i64,
    #[event(version)]
    revision: i64,
}

/// An event with a natural key, of any payload.
#[derive(serde::Deserialize, Event)]
#[event(key(order, kind))]
pub struct Envelope<T: Clone> {
    order: i64,
    kind: String,
    data: T,
}

/// The smallest handler.
///
/// # Errors
/// When the database fails.
#[idempotent_handler(topic = "paid", group = "smallest")]
async fn smallest(tx: &mut Tx<'_>, event: Paid) -> HandlerResult {
    sqlx::query("SELECT $1").bind(event.event_id.uuid()).execute(&mut **tx).await?;
    Ok(())
}

/// Every key that goes with money.
///
/// # Errors
/// When the database fails.
#[idempotent_handler(
    topic = "paid",
    group = "charges",
    event_type = "paid",
    money = true,
    operation = "charge",
    conflict = "processed",
    order = "key",
    retry = ["1s", "1m"],
    timeout = "5s",
    concurrency = 8,
    expired = "skip",
    stale = "skip",
    summary = "charges an order"
)]
async fn charge(
    tx: &mut Tx<'_>,
    Paid { order, revision, .. }: Paid,
    payments: MoneyClient,
    rates: State<i64>,
    from: Delivery,
) -> HandlerResult {
    let sum = order + revision + *rates + from.offset;
    sqlx::query("SELECT $1").bind(sum).execute(&mut **tx).await?;
    println!("{payments:?}");
    Ok(())
}

/// A batch.
///
/// # Errors
/// When the database fails.
#[idempotent_handler(topic = "orders", group = "reports", batch = 500)]
async fn report(tx: &mut Tx<'_>, events: Vec<Envelope<i64>>) -> HandlerResult {
    let orders: Vec<i64> = events.iter().map(|event| event.order + event.data).collect();
    let kinds: Vec<String> = events.into_iter().map(|event| event.kind).collect();
    sqlx::query("SELECT $1, $2").bind(orders).bind(kinds).execute(&mut **tx).await?;
    Ok(())
}

#[test]
fn they_are_registered() {
    assert_eq!(idem_runtime::__private::registered().len(), 3);
}
