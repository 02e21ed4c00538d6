//! An outbox that can't be written to is no fault of the event that publishes.

use std::time::Duration;

use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{Run, TestEnv, eventually};

use crate::LIMIT;
use crate::desk::records;

#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
struct Shipped {
    event_id: EventId,
}

async fn ship(tx: &mut Tx<'_>, order: Order, delivery: &Delivery, group: &str) -> HandlerResult {
    tx.publish(&format!("{group}.shipped"), order.number, |event_id| Shipped { event_id }).await?;
    orders::handle(tx, order, delivery, group).await
}

#[idempotent_handler(topic = "own-ships.orders", group = "own-ships", retry = [])]
async fn own_ships(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    ship(tx, order, &delivery, "own-ships").await
}

#[idempotent_handler(topic = "shared-ships.orders", group = "shared-ships", transaction = "shared", retry = [])]
async fn shared_ships(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    ship(tx, order, &delivery, "shared-ships").await
}

const GROUPS: [&str; 2] = ["own-ships", "shared-ships"];

#[tokio::test(flavor = "multi_thread")]
async fn events_wait_in_place_while_the_outbox_can_not_be_written_to() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    for group in GROUPS {
        env.kafka.create_topic(&format!("{group}.orders"), 1).await;
        env.kafka.create_topic(&format!("{group}.shipped"), 1).await;
        orders::publish(&env.kafka, &format!("{group}.orders"), &[Plan::Succeed]).await;
    }
    let run = Run::start(&env, &GROUPS);
    let done = async |group, count| orders::effect_count(&env.pool, group).await == count;
    for group in GROUPS {
        eventually(LIMIT, "the first effect", async || done(group, 1).await).await;
    }
    let rename = |from: &str, to: &str| sqlx::AssertSqlSafe(format!("ALTER TABLE {from} RENAME TO {to}"));
    sqlx::raw_sql(rename("idem_outbox", "idem_outbox_away")).execute(&env.pool).await.unwrap();
    for group in GROUPS {
        orders::publish(&env.kafka, &format!("{group}.orders"), &[Plan::Succeed, Plan::Succeed]).await;
    }
    let waiting = async || GROUPS.iter().all(|group| run.health.reasons().iter().any(|why| why.contains(group)));
    eventually(LIMIT, "both groups wait", waiting).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    sqlx::raw_sql(rename("idem_outbox_away", "idem_outbox")).execute(&env.pool).await.unwrap();
    for group in GROUPS {
        eventually(LIMIT, "all effects", async || done(group, 3).await).await;
        assert_eq!(records(&env, &format!("{group}.shipped"), 3).await.len(), 3);
        assert_eq!(env.kafka.read_all(&format!("{group}.dlq")).await.len(), 0, "nothing is wrong with the events");
    }
    run.stop().await.unwrap();
}
