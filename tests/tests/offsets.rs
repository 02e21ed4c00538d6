//! No event is lost: an offset is committed only when everything below it is done.

use std::time::Duration;

use idem_runtime::prelude::*;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tests::child::workspace_program;
use tests::orders::{self, Order, Plan};
use tests::{Client, Program, Record, Refusing, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(60);

async fn committed(env: &TestEnv, group: &str, topic: &str) -> Option<i64> {
    env.kafka.committed(group, topic).await.get(&0).map(|committed| committed.offset)
}

#[idempotent_handler(topic = "blocked.orders", group = "blocked", retry = ["100ms"], concurrency = 4)]
async fn blocked(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "blocked").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_retry_can_not_be_published_holds_the_offset_and_runs_again() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("blocked.orders", 1).await;
    let warm = orders::publish(&env.kafka, "blocked.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["blocked"]);
    eventually(LIMIT, "the first order", async || committed(&env, "blocked", "blocked.orders").await == Some(1)).await;
    env.kafka.delete_topic("blocked.retry.100ms").await;
    let rest = orders::publish(&env.kafka, "blocked.orders", &[Plan::FailTimes(1), Plan::Succeed]).await;
    eventually(LIMIT, "the order behind", async || orders::effect_count(&env.pool, "blocked").await == 2).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(committed(&env, "blocked", "blocked.orders").await, Some(1), "the failed one is neither done nor moved");
    env.kafka.create_topic("blocked.retry.100ms", 1).await;
    eventually(LIMIT, "all three", async || orders::effect_count(&env.pool, "blocked").await == 3).await;
    eventually(LIMIT, "the offset", async || committed(&env, "blocked", "blocked.orders").await == Some(3)).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "blocked", &[warm, rest].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_redelivers_the_slow_event_and_only_the_finished_prefix_is_committed() {
    let env = TestEnv::new().await.with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("killed.orders", 1).await;
    // 0 and 1 are fast, 2 is slow, 3 and 4 overtake it on lanes of their own.
    let plans = [Plan::Succeed, Plan::Succeed, Plan::Sleep(8_000), Plan::Succeed, Plan::Succeed];
    let ids = orders::publish(&env.kafka, "killed.orders", &plans).await;
    let program = workspace_program("tests", "consumer");
    let mut first = Program::start(&program, &["killed"], &env.variables());
    eventually(LIMIT, "the fast orders", async || orders::effect_count(&env.pool, "killed").await == 4).await;
    eventually(LIMIT, "the finished prefix", async || committed(&env, "killed", "killed.orders").await == Some(2))
        .await;
    first.kill().await;
    assert_eq!(committed(&env, "killed", "killed.orders").await, Some(2));

    let mut second = Program::start(&program, &["killed"], &env.variables());
    eventually(LIMIT, "the slow order", async || orders::effect_count(&env.pool, "killed").await == 5).await;
    eventually(LIMIT, "the offset to pass all", async || committed(&env, "killed", "killed.orders").await == Some(5))
        .await;
    second.terminate();
    assert!(second.wait(LIMIT).await.success());
    orders::assert_each_once(&env.pool, "killed", &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_commits_what_is_finished_and_the_rest_is_delivered_again() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("asked.orders", 1).await;
    let ids = orders::publish(&env.kafka, "asked.orders", &vec![Plan::Sleep(500); 10]).await;
    let program = workspace_program("tests", "consumer");
    let mut first = Program::start(&program, &["asked"], &env.variables());
    eventually(LIMIT, "the third order", async || orders::effect_count(&env.pool, "asked").await == 3).await;
    first.terminate();
    assert!(first.wait(Duration::from_secs(10)).await.success());
    let done = orders::effect_count(&env.pool, "asked").await;
    assert!(done < 10, "it stopped in the middle");
    assert_eq!(committed(&env, "asked", "asked.orders").await, Some(i64::try_from(done).unwrap()));

    let mut second = Program::start(&program, &["asked"], &env.variables());
    eventually(LIMIT, "the rest", async || orders::effect_count(&env.pool, "asked").await == 10).await;
    second.terminate();
    assert!(second.wait(LIMIT).await.success());
    orders::assert_each_once(&env.pool, "asked", &ids).await;
}

#[idempotent_handler(topic = "two-topics.a", group = "two-topics")]
async fn topic_a(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "two-topics").await
}

#[idempotent_handler(topic = "two-topics.b", group = "two-topics")]
async fn topic_b(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "two-topics").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_reads_all_its_topics_also_one_that_is_created_later() {
    let env = TestEnv::new().await.with("IDEM_KAFKA_TOPIC_METADATA_REFRESH_INTERVAL_MS", "1000");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("two-topics.a", 1).await;
    let a = orders::publish(&env.kafka, "two-topics.a", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["two-topics"]);
    eventually(LIMIT, "the first topic", async || orders::effect_count(&env.pool, "two-topics").await == 1).await;
    env.kafka.create_topic("two-topics.b", 2).await;
    let b = orders::publish(&env.kafka, "two-topics.b", &[Plan::Succeed, Plan::Succeed, Plan::Succeed]).await;
    eventually(LIMIT, "the second topic", async || orders::effect_count(&env.pool, "two-topics").await == 4).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "two-topics", &[a, b].concat()).await;
}

#[idempotent_handler(topic = "keyed.orders", group = "keyed", concurrency = 16)]
async fn keyed(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "keyed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_key_keep_their_order_and_others_run_beside_them() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("keyed.orders", 1).await;
    for number in 0..60_u32 {
        let plan = if number % 7 == 0 { Plan::Sleep(60) } else { Plan::Sleep(20) };
        let (_, value) = orders::order(i64::from(number), &plan);
        drop(env.kafka.produce(Record::to("keyed.orders").key(&(number % 10).to_string()).value(&value)));
    }
    let run = Run::start(&env, &["keyed"]);
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "keyed").await == 60).await;
    run.stop().await.unwrap();
    // The row is written before the handler sleeps; the transaction's end is what must be ordered.
    let overtaken: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM effect a JOIN effect b ON a.number % 10 = b.number % 10 AND a.number < b.number AND a.seq > b.seq",
    )
    .fetch_one(&env.pool)
    .await
    .unwrap();
    assert_eq!(overtaken, 0);
    let side_by_side: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM effect a JOIN effect b ON a.number > b.number AND a.at < b.at + interval '15 ms' AND a.at > b.at",
    )
    .fetch_one(&env.pool)
    .await
    .unwrap();
    assert!(side_by_side > 0, "different keys run side by side");
}

#[idempotent_handler(topic = "refused.orders", group = "refused", retry = [])]
async fn refused(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "refused").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_refused_is_repeated_though_nothing_follows() {
    let cluster = Refusing::start(&["refused.orders", "refused.replay", "refused.dlq"], Duration::ZERO);
    let env = TestEnv::on(&tests::postgres::database().await, &Client::new(cluster.bootstrap()));
    orders::create_tables(&env.pool).await;
    let first = orders::publish(&env.kafka, "refused.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["refused"]);
    eventually(LIMIT, "the first order", async || committed(&env, "refused", "refused.orders").await == Some(1)).await;
    // As a broker does in the middle of a rebalance.
    cluster.refuse(RDKafkaApiKey::OffsetCommit, RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS);
    let last = orders::publish(&env.kafka, "refused.orders", &[Plan::Succeed]).await;
    eventually(LIMIT, "the last order", async || committed(&env, "refused", "refused.orders").await == Some(2)).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "refused", &[first, last].concat()).await;
}
