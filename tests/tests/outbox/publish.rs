//! What a handler publishes leaves with its commit, under an id that follows from its event's.

use std::collections::{BTreeMap, BTreeSet};

use idem_runtime::outbox::{self, PublishError, Unpublishable};
use idem_runtime::prelude::*;
use sqlx::Connection;
use tests::orders::{self, Order, Plan};
use tests::{ReadRecord, Record, Run, TestEnv, eventually};
use uuid::Uuid;

use crate::LIMIT;
use crate::desk::{Relay, Told, env, numbers, pending, records, tell};

#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
struct Paid {
    event_id: EventId,
    event_type: String,
    number: i64,
}

fn paid(number: i64) -> impl FnOnce(EventId) -> Paid + Send {
    move |event_id| Paid { event_id, event_type: "paid".to_owned(), number }
}

/// Publishes two events that differ in nothing but their ids, before it does what the order's plan says.
async fn pay(tx: &mut Tx<'_>, order: Order, delivery: &Delivery, group: &str) -> HandlerResult {
    let topic = format!("{group}.paid");
    for _ in 0..2 {
        tx.publish(&topic, order.number, paid(order.number)).await?;
    }
    orders::handle(tx, order, delivery, group).await
}

#[idempotent_handler(topic = "own-pays.orders", group = "own-pays", concurrency = 4, retry = ["200ms"])]
async fn own_pays(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    pay(tx, order, &delivery, "own-pays").await
}

#[idempotent_handler(topic = "shared-pays.orders", group = "shared-pays", transaction = "shared", retry = ["200ms"])]
async fn shared_pays(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    pay(tx, order, &delivery, "shared-pays").await
}

#[idempotent_handler(topic = "key-pays.orders", group = "key-pays", order = "key", retry = ["200ms"])]
async fn key_pays(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    pay(tx, order, &delivery, "key-pays").await
}

#[idempotent_handler(topic = "batch-pays.orders", group = "batch-pays", batch = 10, retry = ["200ms"])]
async fn batch_pays(tx: &mut Tx<'_>, batch: Vec<Order>, delivery: Delivery) -> HandlerResult {
    for order in &batch {
        for _ in 0..2 {
            tx.publish_for(order, "batch-pays.paid", order.number, paid(order.number)).await?;
        }
    }
    for (at, order) in batch.into_iter().enumerate() {
        let handled = orders::handle(tx, order, &delivery, "batch-pays").await;
        handled.map_err(|error| HandlerError::at(at, error))?;
    }
    Ok(())
}

fn id_of(record: &ReadRecord) -> Uuid {
    let paid: Paid = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    assert_eq!(record.header("idem-event-id"), Some(paid.event_id.to_string()));
    assert_eq!(record.header("idem-event-type").as_deref(), Some("paid"));
    paid.event_id.uuid()
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Orders of which some fail: what they published is not sent. Returns the ids by the order's number.
async fn published_by(group: &str, env: &TestEnv) -> BTreeMap<i64, BTreeSet<Uuid>> {
    let (topic, out) = (format!("{group}.orders"), format!("{group}.paid"));
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic(&topic, 1).await;
    env.kafka.create_topic(&out, 2).await;
    let plans = [Plan::Succeed, Plan::FailTimes(1), Plan::Refuse, Plan::Succeed, Plan::SwallowError];
    let mut parents = BTreeMap::new();
    for (number, plan) in (0..).zip(&plans) {
        let (id, value) = orders::order(number, plan);
        let key = number.to_string();
        let record = Record::to(&topic).key(&key).value(&value).header("traceparent", Some(TRACE.as_bytes()));
        env.kafka.produce(record).await;
        parents.insert(number, id);
    }
    let run = Run::start(env, &[group]);
    eventually(LIMIT, "two dead letters", async || env.kafka.read_all(&format!("{group}.dlq")).await.len() == 2).await;
    eventually(LIMIT, "the effects", async || orders::effect_count(&env.pool, group).await == 3).await;
    let sent = records(env, &out, 6).await;
    eventually(LIMIT, "an empty outbox", async || pending(env).await == 0).await;
    run.stop().await.unwrap();
    assert_eq!(sent.len(), 6, "nothing of those that failed");
    let mut ids: BTreeMap<i64, BTreeSet<Uuid>> = BTreeMap::new();
    for record in &sent {
        assert_eq!(record.header("traceparent").as_deref(), Some(TRACE));
        let number = String::from_utf8(record.key.clone().unwrap()).unwrap().parse().unwrap();
        let (id, parent) = (id_of(record), parents[&number]);
        assert_eq!(id.as_u128() >> 80, parent.as_u128() >> 80, "the time of its event");
        ids.entry(number).or_default().insert(id);
    }
    assert!(ids.values().all(|ids| ids.len() == 2) && ids.keys().copied().eq([0, 1, 3]), "{ids:?}");
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn events_leave_with_the_commit_of_a_transaction_of_ones_own() {
    published_by("own-pays", &TestEnv::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_leave_with_the_commit_of_a_shared_transaction() {
    published_by("shared-pays", &TestEnv::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_leave_with_the_commit_of_a_batch() {
    published_by("batch-pays", &TestEnv::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_leave_with_the_commit_where_keys_keep_their_order() {
    published_by("key-pays", &TestEnv::new().await).await;
}

#[idempotent_handler(topic = "mistaken.orders", group = "mistaken", retry = [])]
async fn mistaken(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    sqlx::query("INSERT INTO effect VALUES ($1, 'mistaken', 0)").bind(order.event_id.uuid()).execute(&mut **tx).await?;
    tx.publish("mistaken.paid", 1, |_| Paid { event_id: order.event_id, event_type: String::new(), number: 4711 })
        .await?;
    Ok(())
}

#[idempotent_handler(topic = "anonymous.orders", group = "anonymous", batch = 5, retry = [])]
async fn anonymous(tx: &mut Tx<'_>, _batch: Vec<Order>) -> HandlerResult {
    tx.publish("anonymous.paid", 1, paid(1)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_no_consumer_would_take_is_an_error_before_the_commit() {
    let cases = [("mistaken", "put that into its id field"), ("anonymous", "tx.publish_for(&event, ..)")];
    for (group, says) in cases {
        let env = TestEnv::new().await;
        orders::create_tables(&env.pool).await;
        env.kafka.create_topic(&format!("{group}.orders"), 1).await;
        orders::publish(&env.kafka, &format!("{group}.orders"), &[Plan::Succeed]).await;
        let run = Run::start(&env, &[group]);
        let dlq = format!("{group}.dlq");
        eventually(LIMIT, "the dead letter", async || env.kafka.read_all(&dlq).await.len() == 1).await;
        run.stop().await.unwrap();
        let error = env.kafka.read_all(&dlq).await[0].header("idem-error").unwrap();
        assert!(error.contains(says) && !error.contains("4711"), "{error}");
        assert_eq!((orders::effect_count(&env.pool, group).await, pending(&env).await), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_code_publishes_in_its_own_transaction() {
    let env = env().await;
    let topic = env.topic("desk");
    env.kafka.create_topic(&topic, 1).await;
    let relay = Relay::start(&env);
    let mut connection = env.pool.acquire().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    tell(&mut tx, &topic, "rolled back", 1).await;
    tx.rollback().await.unwrap();

    let (given, mut tx) = (EventId::now(), connection.begin().await.unwrap());
    let told = |event_id| Told { event_id, number: 7, text: "größer ' \\ than".to_owned() };
    let id = outbox::publish(&mut tx, &topic, "kept", told)
        .event_id(given)
        .event_type("told")
        .occurred_at_millis(1_700_000_000_000)
        .header("tenant", "größe '")
        .header("tenant", "two")
        .await
        .unwrap();
    assert_eq!(id, given);
    let made = [tell(&mut tx, &topic, "made", 8).await, tell(&mut tx, &topic, "made", 9).await];
    assert!(made.is_sorted() && made[0] > given);
    for (topic, says) in [("no topic", Unpublishable::Topic), (".", Unpublishable::Topic)] {
        let refused = outbox::publish(&mut tx, topic, 1, told).await.unwrap_err();
        assert!(matches!(&refused, PublishError::Unpublishable { problem, .. } if *problem == says), "{refused}");
    }
    tx.commit().await.unwrap();
    let sent = records(&env, &topic, 3).await;
    assert_eq!(serde_json::json!(numbers(&sent)), serde_json::json!({"kept": [7], "made": [8, 9]}));
    let kept = &sent[0];
    assert_eq!((kept.timestamp, kept.header("idem-event-type").as_deref()), (Some(1_700_000_000_000), Some("told")));
    let tenants: Vec<&[u8]> =
        kept.headers.iter().filter(|(name, _)| name == b"tenant").filter_map(|(_, value)| value.as_deref()).collect();
    assert_eq!(tenants, ["größe '".as_bytes(), b"two"]);
    assert!(String::from_utf8(kept.value.clone().unwrap()).unwrap().contains("größer ' \\\\ than"));
    eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
    relay.stop().await;
}

#[idempotent_handler(topic = "hidden.orders", group = "hidden", retry = [])]
async fn hidden(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    sqlx::raw_sql("SET search_path = nowhere; SET standard_conforming_strings = off").execute(&mut **tx).await?;
    tx.publish("hidden.paid", "it's", paid(order.number)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_sets_for_its_session_does_not_hide_the_outbox() {
    let env = TestEnv::new().await;
    env.kafka.create_topic("hidden.orders", 1).await;
    env.kafka.create_topic("hidden.paid", 1).await;
    orders::publish(&env.kafka, "hidden.orders", &[Plan::Succeed, Plan::Succeed]).await;
    let run = Run::start(&env, &["hidden"]);
    assert_eq!(records(&env, "hidden.paid", 2).await[0].key.as_deref(), Some(&b"it's"[..]));
    run.stop().await.unwrap();
}
