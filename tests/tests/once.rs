//! Each event's effect happens once per group, whatever is delivered again, and dedup row and effect
//! are one transaction.

use std::time::Duration;

use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{Record, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(60);

#[idempotent_handler(topic = "smoke.orders", group = "smoke", concurrency = 8)]
async fn smoke(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "smoke").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_published_twice_takes_effect_once() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("smoke.orders", 3).await;
    let mut ids = Vec::new();
    for number in 0..50 {
        let (id, value) = orders::order(number, &Plan::Succeed);
        for _ in 0..2 {
            env.kafka.produce(Record::to("smoke.orders").key(&number.to_string()).value(&value)).await;
        }
        ids.push(id);
    }
    let run = Run::start(&env, &["smoke"]);
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "smoke").await == 50).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "smoke", &ids).await;
    let committed = env.kafka.committed("smoke", "smoke.orders").await;
    assert_eq!(committed.values().map(|committed| committed.offset).sum::<i64>(), 100, "{committed:?}");
}
