//! A handler is tried at every point where its process may die, and delivered over its retries by hand.
//!
//! ```sh
//! cargo run --example testing_kit
//! cargo test -p examples --example testing_kit
//! ```

use std::time::Duration;

use examples::Error;
use idem_runtime::prelude::*;
use idem_runtime::testing::{CrashPoint, End, Harness, ProviderFault};
use serde_json::json;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
    order_id: i64,
    amount: i64,
}

#[idempotent_handler(topic = "order.confirmed", group = "billing", money = true, retry = ["1s", "10m"])]
async fn on_order_confirmed(tx: &mut Tx<'_>, order: OrderConfirmed, payments: MoneyClient) -> HandlerResult {
    payments.post("/charges").json(&json!({"order": order.order_id, "amount": order.amount})).send().await?;
    sqlx::query("UPDATE orders SET paid = paid + $2 WHERE id = $1")
        .bind(order.order_id)
        .bind(order.amount)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// What the event changes, as a test sees it.
async fn paid(db: &mut sqlx::PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT paid FROM orders WHERE id = 7").fetch_one(db).await
}

async fn bench() -> Result<Harness, Error> {
    let bench = Harness::start().await?;
    bench.execute("CREATE TABLE orders (id bigint, paid bigint); INSERT INTO orders VALUES (7, 0)").await?;
    Ok(bench)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let bench = bench().await?;
    let orders = bench.handler("on_order_confirmed");
    let event = || json!({"event_id": EventId::now(), "order_id": 7, "amount": 1_900});

    orders.assert_idempotent(&event(), paid).await;
    println!("once, twice, and after a crash at any point: one effect, one charge");

    bench.execute("UPDATE orders SET paid = 0").await?;
    let charges = bench.provider().charges().len();
    bench.provider().next(ProviderFault::Status(503));
    bench.provider().next(ProviderFault::DropAfter);
    let late = event();
    let delivered = orders.deliver(&late).await?;
    assert_eq!(
        (&delivered.end, &*delivered.waits),
        (&End::Done, &[Duration::from_secs(1), Duration::from_secs(600)][..])
    );
    assert_eq!(bench.provider().charges().len(), charges + 1);
    println!("refused once, and charged without an answer once: done after {:?}, one charge", delivered.waits);

    let crashed = event();
    orders.crash(CrashPoint::AfterMoneyCall, &crashed).await?;
    assert_eq!(paid(&mut bench.connect().await?).await?, 1_900, "only the order before");
    assert_eq!(orders.deliver(&crashed).await?.end, End::Done);
    assert_eq!(paid(&mut bench.connect().await?).await?, 3_800);
    assert_eq!(bench.provider().charges().len(), charges + 2);
    println!("killed with the charge made and nothing committed: delivered again, one effect, one charge");
    Ok(())
}

#[tokio::test]
async fn an_order_is_paid_once() -> Result<(), Error> {
    let event = json!({"event_id": EventId::now(), "order_id": 7, "amount": 1_900});
    bench().await?.handler("on_order_confirmed").assert_idempotent(&event, paid).await;
    Ok(())
}
