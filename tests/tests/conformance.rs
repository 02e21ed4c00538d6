//! The same promises on every broker that the library runs on: real Kafka, and librdkafka's mock
//! cluster, which users test with.

use std::time::Duration;

use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{Client, Kafka, MockBroker, Record, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(60);

/// A broker with the topics of one handler.
async fn real(topics: &[(&str, i32)]) -> (TestEnv, Option<MockBroker>) {
    let env = TestEnv::new().await;
    for (topic, partitions) in topics {
        Kafka::shared().await.create_topic(topic, *partitions).await;
    }
    orders::create_tables(&env.pool).await;
    (env, None)
}

async fn mock(topics: &[(&str, i32)]) -> (TestEnv, Option<MockBroker>) {
    let broker = MockBroker::start().unwrap();
    for (topic, partitions) in topics {
        broker.create_topic(topic, *partitions).unwrap();
    }
    let env = TestEnv::on(&tests::postgres::database().await, &Client::new(broker.bootstrap_servers()))
        // A member that comes again waits out its former session.
        .with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000");
    orders::create_tables(&env.pool).await;
    (env, Some(broker))
}

macro_rules! on_every_broker {
    ($($scenario:ident: $topics:expr;)*) => {
        mod on_real_kafka {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                let (env, _broker) = super::real(&$topics).await;
                super::$scenario(&env).await;
            })*
        }
        mod on_the_mock_cluster {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                let (env, _broker) = super::mock(&$topics).await;
                super::$scenario(&env).await;
            })*
        }
    };
}

on_every_broker! {
    duplicates_take_effect_once: [
        ("twice.orders", 3), ("twice.retry.200ms", 3), ("twice.replay", 3), ("twice.dlq", 1),
    ];
    failures_take_their_path: [
        ("paths.orders", 2), ("paths.retry.200ms", 2), ("paths.replay", 2), ("paths.dlq", 1),
    ];
    a_restart_goes_on_where_it_was: [
        ("again.orders", 2), ("again.retry.200ms", 2), ("again.replay", 2), ("again.dlq", 1),
    ];
}

async fn offsets(env: &TestEnv, group: &str, topic: &str) -> i64 {
    env.kafka.committed(group, topic).await.values().map(|committed| committed.offset).sum()
}

#[idempotent_handler(topic = "twice.orders", group = "twice", concurrency = 4, retry = ["200ms"])]
async fn twice(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "twice").await
}

async fn duplicates_take_effect_once(env: &TestEnv) {
    let mut ids = Vec::new();
    for number in 0..40 {
        let (id, value) = orders::order(number, &Plan::Succeed);
        for key in ["a", "b"] {
            env.kafka.produce(Record::to("twice.orders").key(key).value(&value)).await;
        }
        ids.push(id);
    }
    let run = Run::start(env, &["twice"]);
    eventually(LIMIT, "the offsets to pass all", async || offsets(env, "twice", "twice.orders").await == 80).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "twice", &ids).await;
}

#[idempotent_handler(topic = "paths.orders", group = "paths", retry = ["200ms"])]
async fn paths(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "paths").await
}

async fn failures_take_their_path(env: &TestEnv) {
    let plans = [Plan::Succeed, Plan::FailTimes(1), Plan::FailTimes(2), Plan::PanicTimes(1), Plan::Refuse];
    let ids = orders::publish(&env.kafka, "paths.orders", &plans).await;
    env.kafka.produce(Record::to("paths.orders").value("{")).await;
    env.kafka.produce(Record::to("paths.orders")).await;
    let run = Run::start(env, &["paths"]);
    eventually(LIMIT, "four dead letters", async || env.kafka.read_all("paths.dlq").await.len() == 4).await;
    eventually(LIMIT, "three effects", async || orders::effect_count(&env.pool, "paths").await == 3).await;
    eventually(LIMIT, "the offsets to pass all", async || offsets(env, "paths", "paths.orders").await == 7).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "paths", &[ids[0], ids[1], ids[3]]).await;
    let letters = env.kafka.read_all("paths.dlq").await;
    let mut reasons: Vec<String> = letters.iter().map(|letter| letter.header("idem-reason").unwrap()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["exhausted", "null", "permanent", "unparsable"]);
}

#[idempotent_handler(topic = "again.orders", group = "again", retry = ["200ms"])]
async fn again(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "again").await
}

async fn a_restart_goes_on_where_it_was(env: &TestEnv) {
    let mut ids = orders::publish(&env.kafka, "again.orders", &[Plan::Succeed, Plan::Succeed, Plan::Succeed]).await;
    let run = Run::start(env, &["again"]);
    eventually(LIMIT, "the first orders", async || orders::effect_count(&env.pool, "again").await == 3).await;
    run.stop().await.unwrap();
    ids.extend(orders::publish(&env.kafka, "again.orders", &[Plan::Succeed, Plan::Succeed]).await);
    // A second effect would show if it began at the start again: the dedup rows are gone.
    sqlx::query("TRUNCATE processed_event").execute(&env.pool).await.unwrap();
    let run = Run::start(env, &["again"]);
    eventually(LIMIT, "the offsets to pass all", async || offsets(env, "again", "again.orders").await == 5).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "again", &ids).await;
}
