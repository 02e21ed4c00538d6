//! An event that comes before its predecessor is not undone by it.

use std::collections::BTreeMap;

use idem_runtime::prelude::*;
use serde_json::json;
use tests::{Record, Run, TestEnv, eventually};

use crate::LIMIT;

#[derive(Debug, serde::Deserialize, Event)]
struct StockChanged {
    event_id: EventId,
    #[event(aggregate)]
    article: String,
    #[event(version)]
    revision: i64,
    fails: Option<u32>,
}

const TABLE: &str = "CREATE TABLE stock (consumer_group text, article text, revision bigint, calls int, \
                         PRIMARY KEY (consumer_group, article))";

async fn set(tx: &mut Tx<'_>, group: &str, event: &StockChanged) -> HandlerResult {
    sqlx::query(
        "INSERT INTO stock AS known VALUES ($1, $2, $3, 1) ON CONFLICT (consumer_group, article) \
         DO UPDATE SET revision = excluded.revision, calls = known.calls + 1",
    )
    .bind(group)
    .bind(&event.article)
    .bind(event.revision)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

fn may_fail(event: &StockChanged, delivery: &Delivery) -> HandlerResult {
    if delivery.attempt < event.fails.unwrap_or(0) { Err(HandlerError::transient("not yet")) } else { Ok(()) }
}

#[idempotent_handler(topic = "stock", group = "stock-own", stale = "skip", concurrency = 8, retry = ["300ms"])]
async fn own(tx: &mut Tx<'_>, event: StockChanged, delivery: Delivery) -> HandlerResult {
    set(tx, "stock-own", &event).await?;
    may_fail(&event, &delivery)
}

#[idempotent_handler(topic = "stock", group = "stock-shared", stale = "skip", transaction = "shared", retry = ["300ms"])]
async fn shared(tx: &mut Tx<'_>, event: StockChanged, delivery: Delivery) -> HandlerResult {
    set(tx, "stock-shared", &event).await?;
    may_fail(&event, &delivery)
}

#[idempotent_handler(topic = "stock", group = "stock-batch", stale = "skip", batch = 50, retry = ["300ms"])]
async fn batch(tx: &mut Tx<'_>, events: Vec<StockChanged>, delivery: Delivery) -> HandlerResult {
    for (at, event) in events.iter().enumerate() {
        set(tx, "stock-batch", event).await?;
        // The delivery is that of the first.
        may_fail(event, &delivery).map_err(|error| HandlerError::at(at, error))?;
    }
    Ok(())
}

fn event(article: usize, revision: i64, fails: u32) -> (String, Vec<u8>) {
    let article = format!("article-{article}");
    let event = json!({"event_id": EventId::now(), "article": article, "revision": revision, "fails": fails});
    (article, event.to_string().into_bytes())
}

/// In an order that is the same each time, and in no order.
fn shuffled<T>(mut all: Vec<T>) -> Vec<T> {
    let mut random = 4_711_u64;
    for at in (1..all.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(at, (random >> 33) as usize % (at + 1));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn in_whatever_order_versions_come_the_last_applied_is_the_highest() {
    let env = TestEnv::new().await;
    sqlx::raw_sql(TABLE).execute(&env.pool).await.unwrap();
    env.kafka.create_topic("stock", 3).await;
    // Every version in three events with ids of their own; the third of some fails once and comes later.
    let all = (0..3).flat_map(|copy| (0..10).map(move |revision| (copy, revision)));
    let all = all.flat_map(|(copy, revision)| (0..6).map(move |article| (article, revision, copy)));
    for (article, revision, copy) in shuffled(all.collect()) {
        let (key, value) = event(article, revision, u32::from(copy == 2 && revision % 4 == 0));
        env.kafka.produce(Record::to("stock").key(&key).value(&value)).await;
    }
    let groups = ["stock-own", "stock-shared", "stock-batch"];
    let run = Run::start(&env, &groups);
    for group in groups {
        eventually(LIMIT, &format!("{group} to have passed all"), async || {
            let retry = format!("{group}.retry.300ms");
            let passed = async |topic: &str| {
                let committed = env.kafka.committed(group, topic).await;
                committed.values().map(|committed| committed.offset).sum::<i64>()
            };
            passed("stock").await == 180 && passed(&retry).await == env.kafka.read_all(&retry).await.len() as i64
        })
        .await;
        let rows: Vec<(String, i64, i32)> =
            sqlx::query_as("SELECT article, revision, calls FROM stock WHERE consumer_group = $1 ORDER BY article")
                .bind(group)
                .fetch_all(&env.pool)
                .await
                .unwrap();
        assert!(rows.len() == 6 && rows.iter().all(|row| row.1 == 9 && (1..=10).contains(&row.2)), "{group}: {rows:?}");
        let known: BTreeMap<String, i64> =
            sqlx::query_as("SELECT aggregate, version FROM aggregate_version WHERE consumer_group = $1")
                .bind(group)
                .fetch_all(&env.pool)
                .await
                .unwrap()
                .into_iter()
                .collect();
        assert!(known.len() == 6 && known.values().all(|version| *version == 9), "{group}: {known:?}");
        assert_eq!(env.kafka.read_all(&format!("{group}.dlq")).await.len(), 0);
    }
    run.stop().await.unwrap();
}

#[derive(Debug, serde::Deserialize, Event)]
struct OrderChanged {
    event_id: EventId,
    #[event(aggregate)]
    order: i64,
    #[event(version)]
    version: i64,
    fails: Option<u32>,
}

async fn note(tx: &mut Tx<'_>, what: &str, event: &OrderChanged, delivery: &Delivery) -> HandlerResult {
    if delivery.attempt < event.fails.unwrap_or(0) {
        return Err(HandlerError::transient("not yet"));
    }
    let note = sqlx::query("INSERT INTO note VALUES ($1, $2, $3)").bind(what).bind(event.order).bind(event.version);
    note.execute(&mut **tx).await?;
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "desk", event_type = "created", stale = "skip", retry = ["300ms"])]
async fn created(tx: &mut Tx<'_>, event: OrderChanged, delivery: Delivery) -> HandlerResult {
    note(tx, "created", &event, &delivery).await
}

#[idempotent_handler(topic = "orders", group = "desk", event_type = "paid", stale = "skip", retry = ["300ms"])]
async fn paid(tx: &mut Tx<'_>, event: OrderChanged, delivery: Delivery) -> HandlerResult {
    note(tx, "paid", &event, &delivery).await
}

#[idempotent_handler(topic = "returns", group = "desk", stale = "skip", batch = 10, retry = ["300ms"])]
async fn returned(tx: &mut Tx<'_>, events: Vec<OrderChanged>, delivery: Delivery) -> HandlerResult {
    for event in &events {
        note(tx, "returned", event, &delivery).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_handler_has_applied_makes_no_event_of_another_one_stale() {
    let env = TestEnv::new().await;
    let table = "CREATE TABLE note (what text, order_id bigint, version bigint)";
    sqlx::raw_sql(table).execute(&env.pool).await.unwrap();
    env.kafka.create_topic("orders", 1).await;
    env.kafka.create_topic("returns", 1).await;
    let tell = async |topic: &str, what: &str, version: i64, fails: u32| {
        let event =
            json!({"event_id": EventId::now(), "event_type": what, "order": 1, "version": version, "fails": fails});
        env.kafka.produce(Record::to(topic).key("1").value(event.to_string().as_bytes())).await;
    };
    // Created waits for its retry while paid is applied, and the first return has the number of another table.
    tell("orders", "created", 1, 1).await;
    tell("orders", "paid", 2, 0).await;
    tell("orders", "paid", 1, 0).await;
    tell("returns", "returned", 1, 0).await;
    let run = Run::start(&env, &["desk"]);
    let noted = async || -> Vec<(String, i64)> {
        sqlx::query_as("SELECT what, version FROM note ORDER BY what, version").fetch_all(&env.pool).await.unwrap()
    };
    eventually(LIMIT, "three events", async || noted().await.len() == 3).await;
    eventually(LIMIT, "all to be settled", async || {
        env.kafka.committed("desk", "orders").await.values().any(|committed| committed.offset == 3)
    })
    .await;
    let of = |what: &str, version| (what.to_owned(), version);
    assert_eq!(noted().await, [of("created", 1), of("paid", 2), of("returned", 1)], "and the older one is skipped");
    run.stop().await.unwrap();
}
