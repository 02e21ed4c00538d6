//! An outage is not a failure of the event: nothing is dead-lettered, no attempt is counted, and work
//! goes on by itself.

use std::time::{Duration, Instant};

use idem_runtime::prelude::*;
use tests::child::workspace_program;
use tests::orders::{self, Order, Plan};
use tests::{Kafka, Postgres, Program, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(90);

#[idempotent_handler(topic = "down.orders", group = "down", retry = ["100ms"])]
async fn down(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "down").await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_published_while_the_database_is_down_are_processed_when_it_is_back() {
    let mut postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("app").await.unwrap();
    let env = TestEnv::on(&url, Kafka::shared().await);
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("down.orders", 2).await;
    let mut ids = orders::publish(&env.kafka, "down.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["down"]);
    eventually(LIMIT, "the first order", async || orders::effect_count(&env.pool, "down").await == 1).await;

    // Down under a running consumer, then through a restart of it.
    postgres.stop_immediate().await.unwrap();
    ids.extend(orders::publish(&env.kafka, "down.orders", &vec![Plan::Succeed; 5]).await);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!run.is_over());
    run.stop().await.unwrap();
    let run = Run::start(&env, &["down"]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!run.is_over(), "a start without a database waits for it");
    postgres.start_again().await.unwrap();
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "down").await == 6).await;

    // Down and up under the same consumer.
    postgres.stop_fast().await.unwrap();
    ids.extend(orders::publish(&env.kafka, "down.orders", &vec![Plan::Succeed; 5]).await);
    tokio::time::sleep(Duration::from_secs(3)).await;
    postgres.start_again().await.unwrap();
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "down").await == 11).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "down", &ids).await;
    for topic in ["down.dlq", "down.retry.100ms"] {
        assert_eq!(env.kafka.read_all(topic).await, [], "{topic}");
    }
}

#[idempotent_handler(topic = "restarted.orders", group = "restarted", retry = ["100ms"])]
async fn restarted(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "restarted").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_restarts_is_read_on_and_one_that_is_gone_does_not_hold_up_the_exit() {
    let kafka = Kafka::start().await;
    let database = tests::postgres::database().await;
    let env = TestEnv::on(&database, &kafka).with("IDEM_SHUTDOWN_GRACE", "12s");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("restarted.orders", 2).await;
    let mut ids = orders::publish(&env.kafka, "restarted.orders", &vec![Plan::Succeed; 5]).await;
    let run = Run::start(&env, &["restarted"]);
    eventually(LIMIT, "the first orders", async || orders::effect_count(&env.pool, "restarted").await == 5).await;
    kafka.kill().await;
    kafka.start_again().await;
    ids.extend(orders::publish(&env.kafka, "restarted.orders", &vec![Plan::Succeed; 5]).await);
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "restarted").await == 10).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "restarted", &ids).await;

    env.kafka.create_topic("asked.orders", 1).await;
    let program = workspace_program("tests", "consumer");
    let mut child = Program::start(&program, &["asked"], &env.variables());
    orders::publish(&env.kafka, "asked.orders", &[Plan::Succeed]).await;
    eventually(LIMIT, "the order", async || orders::effect_count(&env.pool, "asked").await == 1).await;
    kafka.kill().await;
    child.terminate();
    let asked = Instant::now();
    assert!(child.wait(Duration::from_secs(30)).await.success());
    assert!(asked.elapsed() < Duration::from_secs(14), "exit took {:?}", asked.elapsed());
}

#[idempotent_handler(topic = "read-only.orders", group = "read-only", retry = ["100ms"])]
async fn read_only(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "read-only").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_only_reads_or_takes_no_connections_is_an_outage_too() {
    let admin = tests::postgres::pool(&tests::postgres::shared().await.url());
    let run_sql = async |sql: String| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&admin).await.unwrap();
    };
    // A role of its own: a superuser is never refused a connection.
    run_sql("CREATE ROLE limited LOGIN".to_owned()).await;
    let url = tests::postgres::database().await;
    let name = url.rsplit('/').next().unwrap().to_owned();
    run_sql(format!("ALTER DATABASE {name} OWNER TO limited")).await;
    let env = TestEnv::on(&url.replace("postgres@", "limited@"), Kafka::shared().await);
    orders::create_tables(&env.pool).await;
    env.pool.close().await;
    let pool = tests::postgres::pool(&url);
    env.kafka.create_topic("read-only.orders", 1).await;
    let mut ids = orders::publish(&env.kafka, "read-only.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["read-only"]);
    eventually(LIMIT, "the first order", async || orders::effect_count(&pool, "read-only").await == 1).await;

    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    let all = "true";
    // The others, that were opened before, may write.
    let of_handlers = "query LIKE '%idem_check%'";
    let outages = [
        (read_only.clone(), of_handlers, format!("ALTER DATABASE {name} RESET ALL")),
        (read_only, all, format!("ALTER DATABASE {name} RESET ALL")),
        ("ALTER ROLE limited CONNECTION LIMIT 0".to_owned(), all, "ALTER ROLE limited CONNECTION LIMIT -1".to_owned()),
    ];
    for (begin, whose, end) in outages {
        run_sql(begin).await;
        let end_sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'limited' AND ";
        run_sql(format!("{end_sessions} {whose}")).await;
        ids.extend(orders::publish(&env.kafka, "read-only.orders", &[Plan::Succeed, Plan::Succeed]).await);
        eventually(LIMIT, "readiness to say why", async || !run.health.is_ready()).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(orders::effect_count(&pool, "read-only").await, ids.len() - 2);
        run_sql(end).await;
        eventually(LIMIT, "all orders", async || orders::effect_count(&pool, "read-only").await == ids.len()).await;
        eventually(LIMIT, "readiness", async || run.health.is_ready()).await;
    }
    run.stop().await.unwrap();
    orders::assert_each_once(&pool, "read-only", &ids).await;
    for topic in ["read-only.dlq", "read-only.retry.100ms"] {
        assert_eq!(env.kafka.read_all(topic).await, [], "{topic}");
    }
}
