//! The handlers under measurement. What is not said of them is the library's default.

use std::collections::BTreeMap;

use idem_runtime::prelude::*;

/// The topic of most scenarios.
pub const ORDERS: &str = "bench.orders";
/// The topic of the scenario `latency`.
pub const LATENCY: &str = "bench.latency";
/// The topic of the scenario `memory`.
pub const MEMORY: &str = "bench.memory";

/// Accounts in the table that handlers update.
pub const ACCOUNTS: i64 = 100_000;
/// Accounts that the scenario `contended` updates.
pub const HOT_ACCOUNTS: i64 = 1_000;

/// What is on every topic, with more fields that no handler reads.
#[derive(Debug, serde::Deserialize, serde::Serialize, Event)]
pub struct Order {
    pub event_id: EventId,
    pub account_id: i64,
    pub amount: i64,
    /// When it was sent, microseconds since the Unix epoch; 0 where nobody asks.
    #[serde(default)]
    pub sent_micros: i64,
}

#[idempotent_handler(topic = "bench.orders", group = "bench-own", concurrency = 16)]
async fn own(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

#[idempotent_handler(topic = "bench.orders", group = "bench-shared", transaction = "shared")]
async fn shared(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

/// What the handlers of the scenario `outbox` publish.
#[derive(Debug, serde::Deserialize, serde::Serialize, Event)]
struct Paid {
    event_id: EventId,
    account_id: i64,
    amount: i64,
}

async fn pay_and_tell(tx: &mut Tx<'_>, Order { account_id, amount, .. }: Order) -> HandlerResult {
    pay(tx, account_id, amount).await?;
    tx.publish("bench.paid", account_id, |event_id| Paid { event_id, account_id, amount }).await?;
    Ok(())
}

#[idempotent_handler(topic = "bench.orders", group = "bench-own-publishes", concurrency = 16)]
async fn own_publishes(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay_and_tell(tx, order).await
}

#[idempotent_handler(topic = "bench.orders", group = "bench-shared-publishes", transaction = "shared")]
async fn shared_publishes(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay_and_tell(tx, order).await
}

#[idempotent_handler(topic = "bench.orders", group = "bench-batch", batch = 1000)]
async fn batch(tx: &mut Tx<'_>, orders: Vec<Order>) -> HandlerResult {
    pay_all(tx, &orders).await
}

#[idempotent_handler(topic = "bench.orders", group = "bench-own-hot")]
async fn own_hot(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id % HOT_ACCOUNTS, order.amount).await
}

#[idempotent_handler(topic = "bench.orders", group = "bench-shared-hot", transaction = "shared")]
async fn shared_hot(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id % HOT_ACCOUNTS, order.amount).await
}

#[idempotent_handler(topic = "bench.lanes-1", group = "bench-lanes-1", transaction = "shared")]
async fn lanes_1(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

#[idempotent_handler(topic = "bench.lanes-2", group = "bench-lanes-2", transaction = "shared")]
async fn lanes_2(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

#[idempotent_handler(topic = "bench.lanes-4", group = "bench-lanes-4", transaction = "shared")]
async fn lanes_4(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

#[idempotent_handler(topic = "bench.lanes-8", group = "bench-lanes-8", transaction = "shared")]
async fn lanes_8(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

#[idempotent_handler(topic = "bench.growth-empty", group = "bench-growth-empty", transaction = "shared")]
async fn growth_empty(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

#[idempotent_handler(topic = "bench.growth-full", group = "bench-growth-full", transaction = "shared")]
async fn growth_full(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

#[idempotent_handler(topic = "bench.memory", group = "bench-memory", transaction = "shared")]
async fn memory(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    pay(tx, order.account_id, order.amount).await
}

#[idempotent_handler(topic = "bench.latency", group = "bench-latency")]
async fn latency(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    sqlx::query(SEE).bind(order.sent_micros).execute(&mut **tx).await?;
    Ok(())
}

async fn pay(tx: &mut Tx<'_>, account: i64, amount: i64) -> HandlerResult {
    sqlx::query(PAY).bind(amount).bind(account).execute(&mut **tx).await?;
    Ok(())
}

async fn pay_all(tx: &mut Tx<'_>, orders: &[Order]) -> HandlerResult {
    let (accounts, amounts) = sums(orders);
    sqlx::query(PAY_ALL).bind(accounts).bind(amounts).execute(&mut **tx).await?;
    Ok(())
}

/// One payment; the peers run the same.
pub const PAY: &str = "UPDATE account SET balance = balance + $1 WHERE id = $2";
/// What the scenario `latency` writes.
pub const SEE: &str = "INSERT INTO seen (sent_micros) VALUES ($1)";
/// Many payments at once, one per account.
pub const PAY_ALL: &str = "UPDATE account SET balance = balance + paid.amount \
     FROM unnest($1::bigint[], $2::bigint[]) AS paid (id, amount) WHERE account.id = paid.id";

/// What each account gets, in the order of accounts: lanes that lock rows in one order don't deadlock.
pub fn sums(orders: &[Order]) -> (Vec<i64>, Vec<i64>) {
    let mut sums = BTreeMap::new();
    for order in orders {
        *sums.entry(order.account_id).or_insert(0) += order.amount;
    }
    sums.into_iter().unzip()
}
