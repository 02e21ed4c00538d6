//! A user's program for tests that kill, stop or pause it. Drives the groups given as arguments,
//! configured by the environment.

use idem_runtime::prelude::*;
use tests::orders::{self, Order};

macro_rules! handlers {
    ($($name:ident: $group:literal on $topic:literal, concurrency $concurrency:literal, $order:literal;)*) => {$(
        #[idempotent_handler(
            topic = $topic, group = $group, concurrency = $concurrency, order = $order, retry = ["300ms", "1s", "3s"]
        )]
        async fn $name(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
            orders::handle(tx, order, &delivery, $group).await
        }
    )*};
}

handlers! {
    killed: "killed" on "killed.orders", concurrency 4, "partition";
    asked: "asked" on "asked.orders", concurrency 1, "partition";
    paused: "paused" on "paused.orders", concurrency 1, "partition";
    crowd: "crowd" on "crowd.orders", concurrency 2, "partition";
    queued: "queued" on "queued.orders", concurrency 4, "key";
    hastened: "hastened" on "hastened.orders", concurrency 8, "partition";
    napped: "napped" on "napped.orders", concurrency 1, "key";
}

#[idempotent_handler(topic = "together.orders", group = "together", transaction = "shared", retry = ["300ms"])]
async fn together(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "together").await
}

#[idempotent_handler(topic = "watched.orders", group = "watched", retry = [])]
async fn watched(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "watched").await
}

#[idempotent_handler(topic = "hurried.orders", group = "hurried")]
async fn hurried(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "hurried").await
}

#[idempotent_handler(topic = "paying.orders", group = "paying", money = true, retry = [])]
async fn paying(tx: &mut Tx<'_>, order: Order, delivery: Delivery, payments: MoneyClient) -> HandlerResult {
    payments.post("/charges").json(&serde_json::json!({"event": order.event_id})).send().await?;
    orders::handle(tx, order, &delivery, "paying").await
}

#[tokio::main]
async fn main() -> Result<(), idem_runtime::RunError> {
    tests::run::show_logs();
    let groups = std::env::args().skip(1);
    idem_runtime::builder().groups(groups).run().await
}
