//! A user's program for tests that kill, stop or pause it. Drives the groups given as arguments,
//! configured by the environment.

use idem_runtime::prelude::*;
use tests::orders::{self, Order};

macro_rules! handlers {
    ($($name:ident: $group:literal on $topic:literal, concurrency $concurrency:literal;)*) => {$(
        #[idempotent_handler(topic = $topic, group = $group, concurrency = $concurrency, retry = ["300ms"])]
        async fn $name(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
            orders::handle(tx, order, &delivery, $group).await
        }
    )*};
}

handlers! {
    killed: "killed" on "killed.orders", concurrency 4;
    asked: "asked" on "asked.orders", concurrency 1;
    paused: "paused" on "paused.orders", concurrency 1;
    crowd: "crowd" on "crowd.orders", concurrency 2;
}

#[tokio::main]
async fn main() -> Result<(), idem_runtime::RunError> {
    tests::run::show_logs();
    let groups = std::env::args().skip(1);
    idem_runtime::builder().groups(groups).run().await
}
