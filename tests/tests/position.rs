//! The database decides where a group is, also when it comes back older than Kafka's offsets.

use std::path::PathBuf;
use std::time::Duration;

use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::postgres::open_transactions;
use tests::{Kafka, Postgres, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(90);

async fn committed(env: &TestEnv, group: &str) -> Option<i64> {
    env.kafka.committed(group, &format!("{group}.orders")).await.get(&0).map(|committed| committed.offset)
}

/// A database server of one's own, with a copy of its data that can come back.
struct Server {
    postgres: Postgres,
    copy: tempfile::TempDir,
}

impl Server {
    async fn start() -> (Self, TestEnv) {
        let postgres = Postgres::start().await.unwrap();
        let url = postgres.create_database("app").await.unwrap();
        let env = TestEnv::on(&url, Kafka::shared().await);
        orders::create_tables(&env.pool).await;
        (Self { postgres, copy: tempfile::tempdir().unwrap() }, env)
    }

    fn copied(&self) -> PathBuf {
        self.copy.path().join("data")
    }

    async fn back_up(&mut self) {
        self.postgres.stop_fast().await.unwrap();
        self.postgres.copy_data_dir_to(&self.copied()).await.unwrap();
        self.postgres.start_again().await.unwrap();
    }

    async fn go_back(&mut self) {
        self.postgres.stop_immediate().await.unwrap();
        self.postgres.restore_from(&self.copied()).await.unwrap();
        self.postgres.start_again().await.unwrap();
    }
}

#[idempotent_handler(topic = "restored.orders", group = "restored", concurrency = 4)]
async fn restored(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "restored").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_makes_the_group_go_back_by_itself() {
    let (mut server, env) = Server::start().await;
    env.kafka.create_topic("restored.orders", 1).await;
    let mut ids = orders::publish(&env.kafka, "restored.orders", &vec![Plan::Succeed; 20]).await;
    let run = Run::start(&env, &["restored"]);
    eventually(LIMIT, "the offset", async || committed(&env, "restored").await == Some(20)).await;
    run.stop().await.unwrap();
    server.back_up().await;

    ids.extend(orders::publish(&env.kafka, "restored.orders", &vec![Plan::Succeed; 30]).await);
    let run = Run::start(&env, &["restored"]);
    eventually(LIMIT, "the offset", async || committed(&env, "restored").await == Some(50)).await;
    run.stop().await.unwrap();

    server.go_back().await;
    assert_eq!(orders::effect_count(&env.pool, "restored").await, 20, "the restore lost what came after");
    let run = Run::start(&env, &["restored"]);
    eventually(LIMIT, "the lost effects", async || orders::effect_count(&env.pool, "restored").await == 50).await;
    eventually(LIMIT, "the offset", async || committed(&env, "restored").await == Some(50)).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "restored", &ids).await;

    // An operator's own reset is honoured, forwards too.
    orders::publish(&env.kafka, "restored.orders", &vec![Plan::Succeed; 5]).await;
    env.kafka.reset_offsets("restored", "restored.orders", &["--to-latest"]).await;
    let last = orders::publish(&env.kafka, "restored.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["restored"]);
    eventually(LIMIT, "the order after the reset", async || orders::effect_count(&env.pool, "restored").await == 51)
        .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "restored", &[ids, last].concat()).await;
}

#[idempotent_handler(topic = "failover.orders", group = "failover", concurrency = 4)]
async fn failover(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "failover").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_commits_is_noticed_by_running_consumers() {
    let (mut server, env) = Server::start().await;
    env.kafka.create_topic("failover.orders", 1).await;
    let mut ids = orders::publish(&env.kafka, "failover.orders", &vec![Plan::Succeed; 20]).await;
    let run = Run::start(&env, &["failover"]);
    eventually(LIMIT, "the offset", async || committed(&env, "failover").await == Some(20)).await;
    server.back_up().await;

    ids.extend(orders::publish(&env.kafka, "failover.orders", &vec![Plan::Succeed; 30]).await);
    eventually(LIMIT, "the offset", async || committed(&env, "failover").await == Some(50)).await;
    server.go_back().await;
    // Neither a restart nor a rebalance, nor a new event, helps it to notice.
    eventually(LIMIT, "the lost effects", async || orders::effect_count(&env.pool, "failover").await == 50).await;
    ids.extend(orders::publish(&env.kafka, "failover.orders", &vec![Plan::Succeed; 10]).await);
    eventually(LIMIT, "the new orders", async || orders::effect_count(&env.pool, "failover").await == 60).await;
    eventually(LIMIT, "the offset", async || committed(&env, "failover").await == Some(60)).await;
    assert!(!run.is_over());
    orders::assert_each_once(&env.pool, "failover", &ids).await;

    // The copy is from before the group's first record of this database's progress.
    sqlx::raw_sql("DELETE FROM consumer_progress; TRUNCATE effect, processed_event").execute(&env.pool).await.unwrap();
    eventually(LIMIT, "all effects again", async || orders::effect_count(&env.pool, "failover").await == 60).await;
    orders::assert_each_once(&env.pool, "failover", &ids).await;
    run.stop().await.unwrap();
}

#[idempotent_handler(topic = "lost-tail.orders", group = "lost-tail")]
async fn lost_tail(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "lost-tail").await
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_lost_after_the_last_recorded_progress_are_not_passed_over() {
    let (mut server, env) = Server::start().await;
    env.kafka.create_topic("lost-tail.orders", 1).await;
    let mut ids = orders::publish(&env.kafka, "lost-tail.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["lost-tail"]);
    eventually(LIMIT, "the offset", async || committed(&env, "lost-tail").await == Some(1)).await;
    server.back_up().await;
    // Right after a record of progress, so that the next one comes only after the server is gone:
    // the row then looks as this member left it, and only the server's new run tells.
    ids.extend(orders::publish(&env.kafka, "lost-tail.orders", &[Plan::Succeed]).await);
    eventually(LIMIT, "the offset", async || committed(&env, "lost-tail").await == Some(2)).await;
    sqlx::query("UPDATE consumer_progress SET next_offset = 1 WHERE topic = 'lost-tail.orders'")
        .execute(&env.pool)
        .await
        .unwrap();
    server.go_back().await;
    eventually(LIMIT, "the lost effect", async || orders::effect_count(&env.pool, "lost-tail").await == 2).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "lost-tail", &ids).await;
}

#[idempotent_handler(topic = "forgotten.orders", group = "forgotten")]
async fn forgotten(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "forgotten").await
}

#[tokio::test(flavor = "multi_thread")]
async fn when_kafka_has_forgotten_the_group_the_database_decides() {
    for reset in ["earliest", "latest"] {
        let env = TestEnv::new().await.with("IDEM_AUTO_OFFSET_RESET", reset);
        orders::create_tables(&env.pool).await;
        if !env.kafka.partitions("forgotten.orders").await.is_empty() {
            env.kafka.delete_group("forgotten").await;
            env.kafka.delete_topic("forgotten.orders").await;
        }
        env.kafka.create_topic("forgotten.orders", 1).await;
        if reset == "latest" {
            // What is there before the group's first start is not its own.
            orders::publish(&env.kafka, "forgotten.orders", &[Plan::Succeed]).await;
        }
        let run = Run::start(&env, &["forgotten"]);
        let start = i64::from(reset == "latest");
        eventually(LIMIT, "the start", async || committed(&env, "forgotten").await == Some(start)).await;
        let mut ids = orders::publish(&env.kafka, "forgotten.orders", &[Plan::Succeed, Plan::Succeed]).await;
        eventually(LIMIT, "the offset", async || committed(&env, "forgotten").await == Some(start + 2)).await;
        run.stop().await.unwrap();

        env.kafka.delete_group("forgotten").await;
        ids.extend(orders::publish(&env.kafka, "forgotten.orders", &[Plan::Succeed]).await);
        // A second effect would show if the group started at the beginning: the dedup rows are gone.
        sqlx::query("TRUNCATE processed_event").execute(&env.pool).await.unwrap();
        let run = Run::start(&env, &["forgotten"]);
        eventually(LIMIT, "the offset", async || committed(&env, "forgotten").await == Some(start + 3)).await;
        run.stop().await.unwrap();
        orders::assert_each_once(&env.pool, "forgotten", &ids).await;
    }
}

#[idempotent_handler(topic = "swapped.orders", group = "swapped")]
async fn swapped(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "swapped").await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_database_stops_the_run_until_it_is_accepted() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("swapped.orders", 1).await;
    orders::publish(&env.kafka, "swapped.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["swapped"]);
    eventually(LIMIT, "the offset", async || committed(&env, "swapped").await == Some(1)).await;
    run.stop().await.unwrap();

    let other = TestEnv::new().await;
    orders::create_tables(&other.pool).await;
    let ids = orders::publish(&other.kafka, "swapped.orders", &[Plan::Succeed]).await;
    let error = Run::start(&other, &["swapped"]).ended(LIMIT).await.expect_err("another database").to_string();
    assert!(error.contains("was last run on another database") && error.contains("IDEM_ACCEPT_DATABASE="), "{error}");
    assert_eq!(orders::effect_count(&other.pool, "swapped").await, 0, "nothing is processed");

    let accepted = error.rsplit_once("IDEM_ACCEPT_DATABASE=").unwrap().1.to_owned();
    let other = other.with("IDEM_ACCEPT_DATABASE", &accepted);
    let run = Run::start(&other, &["swapped"]);
    eventually(LIMIT, "the order", async || orders::effect_count(&other.pool, "swapped").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&other.pool, "swapped", &ids).await;
}

#[idempotent_handler(topic = "cut-off.orders", group = "cut-off", timeout = "5s")]
async fn cut_off(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "cut-off").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_that_left_the_log_under_a_running_member_goes_on_at_the_logs_start() {
    // Small fetches, so that the member is behind when the log is cut.
    let env = TestEnv::new()
        .await
        .with("IDEM_KAFKA_QUEUED_MIN_MESSAGES", "1")
        .with("IDEM_KAFKA_FETCH_MESSAGE_MAX_BYTES", "2000")
        .with("IDEM_KAFKA_MAX_PARTITION_FETCH_BYTES", "2000")
        .with("IDEM_KAFKA_QUEUED_MAX_MESSAGES_KBYTES", "2");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("cut-off.orders", 1).await;
    let mut plans = vec![Plan::Sleep(2_000)];
    plans.extend(vec![Plan::Succeed; 3_000]);
    let ids = orders::publish(&env.kafka, "cut-off.orders", &plans).await;
    let run = Run::start(&env, &["cut-off"]);
    eventually(LIMIT, "the slow order", async || open_transactions(&env.pool).await == 1).await;
    env.kafka.delete_records("cut-off.orders", 0, 2_990).await;
    eventually(LIMIT, "the offset to pass all", async || committed(&env, "cut-off").await == Some(3_001)).await;
    run.stop().await.unwrap();
    let effects = orders::effects(&env.pool, "cut-off").await;
    assert!(effects.values().all(|times| *times == 1));
    assert!(ids[2_990..].iter().all(|id| effects.contains_key(id)), "what is left in the log is handled");
    assert!(effects.len() < 3_001, "the log was cut before the member had read it");
}
