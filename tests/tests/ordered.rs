//! `order = "key"`: later events of a key wait behind one that failed, durably, and other keys flow.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_runtime::Config;
use idem_runtime::ops::{self, Ops, dlq, replay};
use idem_runtime::prelude::*;
use tests::child::workspace_program;
use tests::orders::{self, Order, Plan};
use tests::{Kafka, Postgres, Program, Record, Run, TestEnv, eventually};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(90);

/// Publishes an order per plan with its key, numbered per key: the third one of key 7 is 7002.
async fn publish(env: &TestEnv, topic: &str, partition: i32, plans: &[(i64, Plan)]) -> Vec<Uuid> {
    let mut next: BTreeMap<i64, i64> = BTreeMap::new();
    let mut ids = Vec::new();
    for (key, plan) in plans {
        let number = next.entry(*key).or_insert(key * 1_000);
        let (id, value) = orders::order(*number, plan);
        *number += 1;
        let key = key.to_string();
        env.kafka.produce(Record::to(topic).partition(partition).key(&key).value(&value)).await;
        ids.push(id);
    }
    ids
}

/// The numbers of the effects in their order.
async fn numbers(env: &TestEnv, group: &str) -> Vec<i64> {
    sqlx::query_scalar("SELECT number FROM effect WHERE consumer_group = $1 ORDER BY seq")
        .bind(group)
        .fetch_all(&env.pool)
        .await
        .unwrap()
}

/// Panics unless exactly these took effect, each once, and those of each key in their order.
async fn assert_in_order(env: &TestEnv, group: &str, ids: &[Uuid]) {
    orders::assert_each_once(&env.pool, group, ids).await;
    let numbers = numbers(env, group).await;
    let mut by_key: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for number in &numbers {
        by_key.entry(number / 1_000).or_default().push(*number);
    }
    assert!(by_key.values().all(|of_key| of_key.is_sorted()), "{numbers:?}");
}

/// Rows that wait; none when the database is away.
async fn parked(env: &TestEnv) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM parked_event").fetch_one(&env.pool).await.unwrap_or_default()
}

async fn offsets(env: &TestEnv, group: &str) -> i64 {
    let committed = env.kafka.committed(group, &format!("{group}.orders")).await;
    committed.values().map(|committed| committed.offset).sum()
}

#[idempotent_handler(topic = "behind.orders", group = "behind", order = "key", retry = ["700ms", "1500ms"])]
async fn behind(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    assert_eq!(delivery.header("trace"), Some(&b"\xff\x00"[..]), "headers come back as they were");
    orders::handle(tx, order, &delivery, "behind").await
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_wait_behind_a_head_that_fails_and_other_keys_flow() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("behind.orders", 1).await;
    let plans = [
        (1, 1_000, Plan::FailTimes(2)),
        (2, 2_000, Plan::Succeed),
        (1, 1_001, Plan::Succeed),
        (2, 2_001, Plan::Succeed),
        (1, 1_002, Plan::FailTimes(1)),
        (1, 1_003, Plan::Succeed),
        (2, 2_002, Plan::Succeed),
    ];
    let mut ids = Vec::new();
    for (key, number, plan) in plans {
        let (id, value) = orders::order(number, &plan);
        let key = format!("{key}\0\u{fc}");
        let record = Record::to("behind.orders").key(&key).value(&value).header("trace", Some(b"\xff\x00"));
        env.kafka.produce(record).await;
        ids.push(id);
    }
    let run = Run::start(&env, &["behind"]);
    eventually(LIMIT, "the other key", async || numbers(&env, "behind").await == [2_000, 2_001, 2_002]).await;
    eventually(LIMIT, "the offset to pass the parked ones", async || offsets(&env, "behind").await == 7).await;
    assert!(run.health.is_ready(), "{:?}", run.health);
    eventually(LIMIT, "all", async || orders::effect_count(&env.pool, "behind").await == 7).await;
    eventually(LIMIT, "no row", async || parked(&env).await == 0).await;
    run.stop().await.unwrap();
    assert_in_order(&env, "behind", &ids).await;
    assert_eq!(numbers(&env, "behind").await[3..], [1_000, 1_001, 1_002, 1_003]);
    for topic in ["behind.retry.700ms", "behind.retry.1500ms", "behind.dlq"] {
        assert_eq!(env.kafka.read_all(topic).await, [], "{topic}");
    }
    let waited: f64 = sqlx::query_scalar("SELECT extract(epoch FROM max(at) - min(at))::float8 FROM effect")
        .fetch_one(&env.pool)
        .await
        .unwrap();
    assert!(waited > 2.0, "two tiers and another one, not {waited} s");
}

#[idempotent_handler(topic = "spent.orders", group = "spent", order = "key", retry = ["200ms", "400ms"])]
async fn spent(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "spent").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_exhausts_its_tiers_is_dead_lettered_and_its_followers_run() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("spent.orders", 1).await;
    let plans = [
        (1, Plan::FailTimes(9)),
        (1, Plan::Succeed),
        (1, Plan::Refuse),
        (1, Plan::PanicTimes(9)),
        (1, Plan::Succeed),
        (2, Plan::Refuse),
        (2, Plan::Succeed),
    ];
    let mut ids = publish(&env, "spent.orders", 0, &plans).await;
    let bad = Record::to("spent.orders").key("1").value("{").header("trace", Some(b"x"));
    env.kafka.produce(bad).await;
    // Without a key there is no order to keep.
    let (id, value) = orders::order(9_000, &Plan::FailTimes(1));
    env.kafka.produce(Record::to("spent.orders").value(&value)).await;
    ids.push(id);
    let run = Run::start(&env, &["spent"]);
    eventually(LIMIT, "the letters", async || env.kafka.read_all("spent.dlq").await.len() == 5).await;
    eventually(LIMIT, "the others", async || orders::effect_count(&env.pool, "spent").await == 4).await;
    eventually(LIMIT, "no row", async || parked(&env).await == 0).await;
    assert_in_order(&env, "spent", &[ids[1], ids[4], ids[6], ids[7]]).await;
    let letters = env.kafka.read_all("spent.dlq").await;
    let header = |name: &str| -> Vec<String> { letters.iter().map(|letter| letter.header(name).unwrap()).collect() };
    assert_eq!(header("idem-reason"), ["permanent", "exhausted", "permanent", "panic", "unparsable"]);
    assert_eq!(header("idem-origin-offset"), ["5", "0", "2", "3", "7"]);
    assert_eq!(header("idem-attempt"), ["1", "3", "1", "3", "1"]);
    assert_eq!(letters[4].header("trace").as_deref(), Some("x"));
    assert_eq!(letters[1].key.as_deref(), Some(&b"1"[..]));
    assert_eq!(env.kafka.read_all("spent.retry.200ms").await.len(), 1, "the one without a key");

    // A replayed letter has no place in the order of its key any more: it fails through retry topics.
    let ops = Ops::new(Config::from_vars(env.variables()).unwrap());
    let exhausted = replay::Options { filter: dlq::Filter::reason("exhausted"), ..Default::default() };
    assert_eq!(replay::replay(&ops, "spent", &exhausted, &mut ops::silent).await.unwrap().replayed, 1);
    eventually(LIMIT, "its second letter", async || env.kafka.read_all("spent.dlq").await.len() == 6).await;
    assert_eq!(env.kafka.read_all("spent.retry.200ms").await.len(), 2);
    assert_eq!(parked(&env).await, 0);
    run.stop().await.unwrap();
}

/// Four keys on one partition, two of them with a head that fails three times. More heads than these
/// in a row would be the circuit's.
fn heads_and_followers() -> Vec<(i64, Plan)> {
    let plan = |key, at| match (key, at) {
        (1 | 2, 0) => Plan::FailTimes(3),
        (1, 3) => Plan::FailTimes(1),
        _ => Plan::Sleep(5),
    };
    (0..6).flat_map(|at| (1..=4).map(move |key| (key, plan(key, at)))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_killed_while_events_are_parked_keeps_their_order() {
    let env = TestEnv::new().await.with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("queued.orders", 2).await;
    let program = workspace_program("tests", "consumer");
    let start = || Program::start(&program, &["queued"], &env.variables());
    let mut consumer = start();
    let mut ids = publish(&env, "queued.orders", 0, &heads_and_followers()).await;
    for wanted in [24, 12] {
        eventually(LIMIT, "parked events", async || (1..=wanted).contains(&parked(&env).await)).await;
        consumer.kill().await;
        consumer = start();
    }
    ids.extend(publish(&env, "queued.orders", 1, &[(9, Plan::FailTimes(2)), (9, Plan::Succeed)]).await);
    eventually(LIMIT, "all", async || orders::effect_count(&env.pool, "queued").await == ids.len()).await;
    eventually(LIMIT, "no row", async || parked(&env).await == 0).await;
    eventually(LIMIT, "the offsets", async || offsets(&env, "queued").await == 26).await;
    consumer.terminate();
    assert!(consumer.wait(LIMIT).await.success());
    assert_in_order(&env, "queued", &ids).await;
    assert_eq!(env.kafka.read_all("queued.dlq").await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_slept_through_a_rebalance_disturbs_no_order() {
    let env = TestEnv::new().await.with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("napped.orders", 1).await;
    let program = workspace_program("tests", "consumer");
    let mut stale = Program::start(&program, &["napped"], &env.variables());
    let mut ids = publish(&env, "napped.orders", 0, &heads_and_followers()).await;
    eventually(LIMIT, "parked events", async || parked(&env).await > 4).await;
    stale.pause();
    let mut fresh = Program::start(&program, &["napped"], &env.variables());
    let epoch = async || -> i64 {
        sqlx::query_scalar("SELECT epoch FROM consumer_progress WHERE topic = 'napped.orders'")
            .fetch_one(&env.pool)
            .await
            .unwrap()
    };
    eventually(LIMIT, "the fresh member to own the partition", async || epoch().await == 2).await;
    ids.extend(publish(&env, "napped.orders", 0, &[(9, Plan::FailTimes(2)), (9, Plan::Succeed)]).await);
    stale.resume();
    eventually(LIMIT, "all", async || orders::effect_count(&env.pool, "napped").await == ids.len()).await;
    eventually(LIMIT, "no row", async || parked(&env).await == 0).await;
    eventually(LIMIT, "the offset", async || offsets(&env, "napped").await == 26).await;
    for member in [&mut stale, &mut fresh] {
        member.terminate();
        assert!(member.wait(LIMIT).await.success());
    }
    assert_in_order(&env, "napped", &ids).await;
}

#[idempotent_handler(
    topic = "moved.orders", group = "moved", order = "key", concurrency = 4, retry = ["1s", "2s", "4s"]
)]
async fn moved(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "moved").await
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_events_move_to_another_member_with_their_partition() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("moved.orders", 4).await;
    let mut ids = Vec::new();
    for partition in 0..4 {
        let plans = heads_and_followers().into_iter().map(|(key, plan)| (key + i64::from(partition) * 10, plan));
        ids.extend(publish(&env, "moved.orders", partition, &plans.collect::<Vec<_>>()).await);
    }
    let first = Run::start(&env, &["moved"]);
    eventually(LIMIT, "parked events", async || parked(&env).await > 30).await;
    let second = Run::start(&env, &["moved"]);
    let owners = async || -> Vec<i64> {
        sqlx::query_scalar("SELECT epoch FROM consumer_progress WHERE topic = 'moved.orders'")
            .fetch_all(&env.pool)
            .await
            .unwrap()
    };
    eventually(LIMIT, "a partition to move", async || owners().await.contains(&2)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.stop().await.unwrap();
    eventually(LIMIT, "all", async || orders::effect_count(&env.pool, "moved").await == ids.len()).await;
    eventually(LIMIT, "no row", async || parked(&env).await == 0).await;
    second.stop().await.unwrap();
    assert_in_order(&env, "moved", &ids).await;
    assert_eq!(env.kafka.read_all("moved.dlq").await, []);
}

#[idempotent_handler(topic = "reread.orders", group = "reread", order = "key", retry = ["4s"])]
async fn reread(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "reread").await
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_events_that_are_delivered_again_are_recognised() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("reread.orders", 1).await;
    let plans = [Plan::Succeed, Plan::FailTimes(1), Plan::Succeed, Plan::Succeed].map(|plan| (1, plan));
    let ids = publish(&env, "reread.orders", 0, &plans).await;
    let run = Run::start(&env, &["reread"]);
    eventually(LIMIT, "the offset", async || offsets(&env, "reread").await == 4).await;
    run.stop().await.unwrap();
    assert_eq!(parked(&env).await, 3);
    // As after a crash between parking and the commit, and once more when all is done.
    for wanted in [1, 4] {
        assert_eq!(orders::effect_count(&env.pool, "reread").await, wanted);
        env.kafka.reset_offsets("reread", "reread.orders", &["--to-earliest"]).await;
        let run = Run::start(&env, &["reread"]);
        eventually(LIMIT, "all", async || orders::effect_count(&env.pool, "reread").await == 4).await;
        eventually(LIMIT, "no row", async || parked(&env).await == 0).await;
        eventually(LIMIT, "the offset", async || offsets(&env, "reread").await == 4).await;
        run.stop().await.unwrap();
        assert_in_order(&env, "reread", &ids).await;
        assert_eq!(parked(&env).await, 0);
    }
    assert_eq!(env.kafka.read_all("reread.dlq").await, []);
}

#[idempotent_handler(topic = "rebooted.orders", group = "rebooted", order = "key", retry = ["500ms", "1s", "2s"])]
async fn rebooted(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "rebooted").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_restarts_meanwhile_changes_nothing() {
    let mut postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("app").await.unwrap();
    let env = TestEnv::on(&url, Kafka::shared().await);
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("rebooted.orders", 1).await;
    let mut ids = publish(&env, "rebooted.orders", 0, &heads_and_followers()).await;
    let run = Run::start(&env, &["rebooted"]);
    eventually(LIMIT, "parked events", async || parked(&env).await > 4).await;
    postgres.stop_immediate().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    postgres.start_again().await.unwrap();
    ids.extend(publish(&env, "rebooted.orders", 0, &[(9, Plan::FailTimes(1)), (9, Plan::Succeed)]).await);
    let count =
        async || -> i64 { sqlx::query_scalar("SELECT count(*) FROM effect").fetch_one(&env.pool).await.unwrap_or(0) };
    eventually(LIMIT, "all", async || count().await == 26).await;
    eventually(LIMIT, "no row", async || parked(&env).await == 0).await;
    eventually(LIMIT, "readiness", async || run.health.is_ready()).await;
    run.stop().await.unwrap();
    assert_in_order(&env, "rebooted", &ids).await;
    assert_eq!(env.kafka.read_all("rebooted.dlq").await, []);
}

#[idempotent_handler(topic = "former.orders", group = "former", retry = ["300ms"])]
async fn former(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "former").await
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_left_when_a_group_gives_the_order_up_are_still_driven() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("former.orders", 1).await;
    let mut ids = publish(&env, "former.orders", 0, &[(1, Plan::Succeed)]).await;
    let run = Run::start(&env, &["former"]);
    eventually(LIMIT, "the first", async || offsets(&env, "former").await == 1).await;
    run.stop().await.unwrap();
    for (offset, plan) in [(-2, Plan::FailTimes(1)), (-1, Plan::Succeed)] {
        let (id, value) = orders::order(2_000 + offset, &plan);
        sqlx::query(
            "INSERT INTO parked_event (consumer_group, topic, partition, record_offset, key, value, header_names, \
                    header_values, attempt, due_at) \
             VALUES ('former', 'former.orders', 0, $1, 'k', $2, '{}', '{}', 0, now() + interval '1 year')",
        )
        .bind(offset)
        .bind(value)
        .execute(&env.pool)
        .await
        .unwrap();
        ids.push(id);
    }
    // Due in a year by a clock that was ahead: no longer than the longest tier.
    let run = Run::start(&env, &["former"]);
    eventually(LIMIT, "the others", async || orders::effect_count(&env.pool, "former").await == 3).await;
    eventually(LIMIT, "no row", async || parked(&env).await == 0).await;
    run.stop().await.unwrap();
    assert_in_order(&env, "former", &ids).await;
    assert_eq!(env.kafka.read_all("former.retry.300ms").await, []);
}
