//! Members come and go while handlers run: nobody is evicted, nothing happens twice or is lost.

use std::time::Duration;

use idem_runtime::prelude::*;
use tests::child::workspace_program;
use tests::orders::{self, Order, Plan};
use tests::postgres::open_transactions;
use tests::{Program, Record, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(90);

async fn sum_committed(env: &TestEnv, group: &str, topic: &str) -> i64 {
    env.kafka.committed(group, topic).await.values().map(|committed| committed.offset).sum()
}

#[idempotent_handler(topic = "joined.orders", group = "joined")]
async fn joined(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "joined").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_joins_while_a_slow_handler_runs_disturbs_nothing() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("joined.orders", 2).await;
    let mut ids = Vec::new();
    for partition in 0..2 {
        for plan in [Plan::Sleep(10_000), Plan::Succeed, Plan::Succeed] {
            let (id, value) = orders::order(0, &plan);
            env.kafka.produce(Record::to("joined.orders").partition(partition).value(&value)).await;
            ids.push(id);
        }
    }
    let first = Run::start(&env, &["joined"]);
    tests::eventually(LIMIT, "both slow handlers", async || open_transactions(&env.pool).await == 2).await;
    let second = Run::start(&env, &["joined"]);
    eventually(LIMIT, "the offsets to pass all", async || sum_committed(&env, "joined", "joined.orders").await == 6)
        .await;
    assert!(!first.is_over() && !second.is_over());
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "joined", &ids).await;
}

#[idempotent_handler(topic = "patient.orders", group = "patient")]
async fn patient(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "patient").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_slower_than_the_poll_interval_does_not_evict_its_member() {
    for protocol in ["classic", "consumer"] {
        let env = TestEnv::new().await.with("IDEM_KAFKA_MAX_POLL_INTERVAL_MS", "6000");
        let env = match protocol {
            "classic" => env.with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000"),
            _ => env.with("IDEM_KAFKA_GROUP_PROTOCOL", "consumer"),
        };
        orders::create_tables(&env.pool).await;
        if !env.kafka.partitions("patient.orders").await.is_empty() {
            env.kafka.delete_group("patient").await;
            env.kafka.delete_topic("patient.orders").await;
        }
        env.kafka.create_topic("patient.orders", 1).await;
        let ids = orders::publish(&env.kafka, "patient.orders", &[Plan::Sleep(10_000), Plan::Succeed]).await;
        let run = Run::start(&env, &["patient"]);
        eventually(LIMIT, "the offset", async || sum_committed(&env, "patient", "patient.orders").await == 2).await;
        run.stop().await.unwrap();
        orders::assert_each_once(&env.pool, "patient", &ids).await;
        let epoch: i64 = sqlx::query_scalar("SELECT epoch FROM consumer_progress WHERE topic = 'patient.orders'")
            .fetch_one(&env.pool)
            .await
            .unwrap();
        assert_eq!(epoch, 1, "assigned once, never evicted ({protocol})");
    }
}

#[idempotent_handler(topic = "waiting.orders", group = "waiting", retry = ["8s"])]
async fn waiting(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "waiting").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_waits_survives_a_rebalance_and_runs_when_due() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("waiting.orders", 1).await;
    let ids = orders::publish(&env.kafka, "waiting.orders", &[Plan::FailTimes(1)]).await;
    let first = Run::start(&env, &["waiting"]);
    eventually(LIMIT, "the retry", async || env.kafka.read_all("waiting.retry.8s").await.len() == 1).await;
    let failed = std::time::Instant::now();
    let second = Run::start(&env, &["waiting"]);
    tokio::time::sleep(Duration::from_secs(4)).await;
    first.stop().await.unwrap();
    eventually(LIMIT, "the effect", async || orders::effect_count(&env.pool, "waiting").await == 1).await;
    let waited = failed.elapsed();
    assert!((6..15).contains(&waited.as_secs()), "due after 8 s, ran after {waited:?}");
    second.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "waiting", &ids).await;
    assert_eq!(env.kafka.read_all("waiting.retry.8s").await.len(), 1, "no attempt was counted twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_settle_when_one_is_killed() {
    let env = TestEnv::new().await.with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("crowd.orders", 6).await;
    let program = workspace_program("tests", "consumer");
    let mut members: Vec<Program> = (0..3).map(|_| Program::start(&program, &["crowd"], &env.variables())).collect();
    let mut ids = orders::publish(&env.kafka, "crowd.orders", &vec![Plan::Sleep(50); 100]).await;
    eventually(LIMIT, "half of the orders", async || orders::effect_count(&env.pool, "crowd").await > 50).await;
    members.remove(0).kill().await;
    ids.extend(orders::publish(&env.kafka, "crowd.orders", &vec![Plan::Sleep(20); 100]).await);
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "crowd").await == 200).await;
    eventually(LIMIT, "the offsets to pass all", async || sum_committed(&env, "crowd", "crowd.orders").await == 200)
        .await;
    for member in &mut members {
        member.terminate();
        assert!(member.wait(LIMIT).await.success());
    }
    orders::assert_each_once(&env.pool, "crowd", &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_slept_through_a_rebalance_moves_nothing() {
    let env = TestEnv::new().await.with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("paused.orders", 1).await;
    let program = workspace_program("tests", "consumer");
    let mut stale = Program::start(&program, &["paused"], &env.variables());
    let mut ids = orders::publish(&env.kafka, "paused.orders", &[Plan::Succeed]).await;
    eventually(LIMIT, "the first order", async || sum_committed(&env, "paused", "paused.orders").await == 1).await;
    // It sleeps in the middle of an event.
    ids.extend(orders::publish(&env.kafka, "paused.orders", &[Plan::Sleep(1_500), Plan::Succeed]).await);
    eventually(LIMIT, "an open transaction", async || open_transactions(&env.pool).await == 1).await;
    stale.pause();
    let mut fresh = Program::start(&program, &["paused"], &env.variables());
    ids.extend(orders::publish(&env.kafka, "paused.orders", &vec![Plan::Succeed; 20]).await);
    let progress = async || -> (i64, i64) {
        sqlx::query_as("SELECT epoch, next_offset FROM consumer_progress WHERE topic = 'paused.orders'")
            .fetch_one(&env.pool)
            .await
            .unwrap()
    };
    eventually(LIMIT, "the fresh member to own the partition", async || progress().await.0 == 2).await;
    stale.resume();
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "paused").await == ids.len()).await;
    eventually(LIMIT, "the fresh member's progress", async || progress().await.1 == 23).await;
    eventually(LIMIT, "the offset", async || sum_committed(&env, "paused", "paused.orders").await == 23).await;
    for member in [&mut stale, &mut fresh] {
        member.terminate();
        assert!(member.wait(LIMIT).await.success());
    }
    orders::assert_each_once(&env.pool, "paused", &ids).await;
    assert_eq!(progress().await.1, 23);
}

#[idempotent_handler(topic = "backlog.orders", group = "backlog")]
async fn backlog(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "backlog").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_was_revoked_while_it_was_full_is_read_on_when_it_comes_back() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("backlog.orders", 2).await;
    // More than a lane's queue holds, so that the partition is paused.
    let ids = orders::publish(&env.kafka, "backlog.orders", &vec![Plan::Sleep(4); 3_000]).await;
    let first = Run::start(&env, &["backlog"]);
    eventually(LIMIT, "some orders", async || orders::effect_count(&env.pool, "backlog").await > 100).await;
    let second = Run::start(&env, &["backlog"]);
    let owners = async || -> Vec<i64> {
        sqlx::query_scalar("SELECT epoch FROM consumer_progress WHERE topic = 'backlog.orders' ORDER BY epoch")
            .fetch_all(&env.pool)
            .await
            .unwrap()
    };
    // The group balances all its topics together: one partition of this one moves, or both.
    eventually(LIMIT, "a partition to move", async || owners().await.contains(&2)).await;
    assert!(orders::effect_count(&env.pool, "backlog").await < 2_500, "there is a backlog");
    second.stop().await.unwrap();
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "backlog").await == 3_000).await;
    first.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "backlog", &ids).await;
}
