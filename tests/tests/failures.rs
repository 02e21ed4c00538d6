//! Failure has a path: outages under load, the circuit and the brake, deadlocks, starved pools.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_runtime::Config;
use idem_runtime::ops::Ops;
use idem_runtime::prelude::*;
use sqlx::PgPool;
use tests::child::workspace_program;
use tests::orders::{self, Order, Plan};
use tests::{Kafka, Postgres, Program, Record, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(120);

async fn offsets(env: &TestEnv, group: &str) -> i64 {
    let committed = env.kafka.committed(group, &format!("{group}.orders")).await;
    committed.values().map(|committed| committed.offset).sum()
}

#[idempotent_handler(topic = "load.orders", group = "load", concurrency = 8)]
async fn load(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "load").await
}

#[tokio::test(flavor = "multi_thread")]
async fn outages_under_load_lose_nothing_double_nothing_and_dead_letter_nothing() {
    const EVENTS: usize = 20_000;
    let mut postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("app").await.unwrap();
    let kafka = Kafka::start_with(&[("broker.session.timeout.ms", "3000")]).await;
    let env = TestEnv::on(&url, &kafka).with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("load.orders", 4).await;
    let ids = orders::publish(&env.kafka, "load.orders", &vec![Plan::Succeed; EVENTS]).await;
    let run = Run::start(&env, &["load"]);
    let health = run.health.clone();
    let count =
        async || -> i64 { sqlx::query_scalar("SELECT count(*) FROM effect").fetch_one(&env.pool).await.unwrap_or(0) };
    for (at, outage) in [(2_000, "fast"), (6_000, "broker"), (9_000, "immediate"), (13_000, "broker killed")] {
        eventually(LIMIT, outage, async || count().await > at).await;
        match outage {
            "fast" | "immediate" => {
                let stopped =
                    if outage == "fast" { postgres.stop_fast().await } else { postgres.stop_immediate().await };
                stopped.unwrap();
                eventually(LIMIT, "readiness to say why", async || !health.is_ready()).await;
                postgres.start_again().await.unwrap();
            }
            "broker" => kafka.stop().await,
            _ => kafka.kill().await,
        }
        if outage.starts_with("broker") {
            kafka.start_again().await;
        }
    }
    eventually(LIMIT, "all orders", async || count().await >= i64::try_from(EVENTS).unwrap()).await;
    eventually(LIMIT, "the offsets to pass all", async || offsets(&env, "load").await == 20_000).await;
    eventually(LIMIT, "readiness to return", async || health.is_ready()).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "load", &ids).await;
    for topic in ["load.dlq", "load.retry.1s", "load.retry.10s", "load.retry.1m", "load.retry.10m"] {
        assert_eq!(env.kafka.read_all(topic).await.len(), 0, "{topic}: an outage is not a failure");
    }
}

static PROVIDER_DOWN: AtomicBool = AtomicBool::new(false);

#[idempotent_handler(topic = "provider.orders", group = "provider", retry = ["100ms"], concurrency = 4)]
async fn provider(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    if PROVIDER_DOWN.load(Ordering::SeqCst) {
        return Err(HandlerError::transient("the provider is away"));
    }
    orders::handle(tx, order, &delivery, "provider").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_a_provider_opens_the_circuit_and_drains_nothing() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("provider.orders", 2).await;
    let mut ids = orders::publish(&env.kafka, "provider.orders", &vec![Plan::Succeed; 20]).await;
    let run = Run::start(&env, &["provider"]);
    eventually(LIMIT, "the first orders", async || orders::effect_count(&env.pool, "provider").await == 20).await;
    assert!(run.health.is_ready(), "{:?}", run.health);

    PROVIDER_DOWN.store(true, Ordering::SeqCst);
    ids.extend(orders::publish(&env.kafka, "provider.orders", &vec![Plan::Succeed; 300]).await);
    eventually(LIMIT, "the circuit to open", async || {
        run.health
            .reasons()
            .iter()
            .any(|reason| reason.contains("the circuit is open") && reason.contains("provider is away"))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let retried = env.kafka.read_all("provider.retry.100ms").await.len();
    assert!(retried <= 20, "{retried} of 300 events were moved before the circuit opened");
    assert_eq!(env.kafka.read_all("provider.dlq").await.len(), 0);

    PROVIDER_DOWN.store(false, Ordering::SeqCst);
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "provider").await == 320).await;
    eventually(LIMIT, "readiness", async || run.health.is_ready()).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "provider", &ids).await;
    assert_eq!(env.kafka.read_all("provider.dlq").await.len(), 0);
}

#[idempotent_handler(topic = "schema.orders", group = "schema")]
async fn schema(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "schema").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_no_handler_reads_stops_the_lane_and_the_rest_stays_in_the_topic() {
    let env = TestEnv::new().await.with("IDEM_DLQ_BRAKE", "20");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("schema.orders", 1).await;
    let first = orders::publish(&env.kafka, "schema.orders", &[Plan::Succeed]).await;
    for _ in 0..500 {
        drop(env.kafka.produce(Record::to("schema.orders").value(r#"{"v2":true}"#)));
    }
    let run = Run::start(&env, &["schema"]);
    let stopped = |run: &Run| run.health.reasons().iter().any(|reason| reason.contains("idem group resume schema"));
    eventually(LIMIT, "the brake", async || stopped(&run)).await;
    assert_eq!(env.kafka.read_all("schema.dlq").await.len(), 20);
    eventually(LIMIT, "the offset", async || offsets(&env, "schema").await == 21).await;
    run.stop().await.unwrap();

    // A restart does not release it.
    let run = Run::start(&env, &["schema"]);
    eventually(LIMIT, "the brake again", async || stopped(&run)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(env.kafka.read_all("schema.dlq").await.len(), 20);

    // A person does; the reason being the same, it stops again after as many.
    let ops = Ops::new(Config::from_vars(env.variables()).unwrap());
    let resumed = idem_runtime::ops::groups::resume(&ops, "schema").await.unwrap();
    assert_eq!(resumed.lanes.len(), 1);
    eventually(LIMIT, "the brake once more", async || {
        env.kafka.read_all("schema.dlq").await.len() == 40 && stopped(&run)
    })
    .await;
    assert_eq!(offsets(&env, "schema").await, 41);
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "schema", &first).await;
}

#[idempotent_handler(topic = "deadlock.orders", group = "deadlock", concurrency = 2)]
async fn deadlock(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    // Neighbours lock the same two rows in opposite orders.
    let (first, second) = if order.number % 2 == 0 { (0, 1) } else { (1, 0) };
    let lock = "UPDATE account SET balance = balance + 1 WHERE id = $1";
    sqlx::query(lock).bind(first).execute(&mut **tx).await?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    sqlx::query(lock).bind(second).execute(&mut **tx).await?;
    orders::handle(tx, order, &delivery, "deadlock").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_runs_the_whole_transaction_again_and_costs_no_attempt() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    sqlx::raw_sql(
        "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL); INSERT INTO account VALUES (0, 0), (1, 0)",
    )
    .execute(&env.pool)
    .await
    .unwrap();
    env.kafka.create_topic("deadlock.orders", 1).await;
    let ids = orders::publish(&env.kafka, "deadlock.orders", &vec![Plan::Succeed; 20]).await;
    let run = Run::start(&env, &["deadlock"]);
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "deadlock").await == 20).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "deadlock", &ids).await;
    let deadlocks: i64 =
        sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .fetch_one(&env.pool)
            .await
            .unwrap();
    assert!(deadlocks > 0, "the test has to produce some");
    let balances: Vec<i64> = sqlx::query_scalar("SELECT balance FROM account").fetch_all(&env.pool).await.unwrap();
    assert_eq!(balances, [20, 20]);
    assert_eq!(env.kafka.read_all("deadlock.retry.1s").await.len(), 0);
}

#[idempotent_handler(topic = "starved.orders", group = "starved", concurrency = 4, timeout = "10s")]
async fn starved(tx: &mut Tx<'_>, order: Order, own: State<PgPool>, delivery: Delivery) -> HandlerResult {
    // Holds one connection while it asks for another one.
    let mut second = own.acquire().await?;
    sqlx::query("SELECT pg_sleep(0.05)").execute(&mut *second).await?;
    orders::handle(tx, order, &delivery, "starved").await
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_ask_for_a_second_connection_starve_nobody() {
    let env = TestEnv::new().await.with("IDEM_POOL_SIZE", "4");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("starved.orders", 4).await;
    let scarce = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_millis(100))
        .connect_lazy(&env.database_url)
        .unwrap();
    let ids = orders::publish(&env.kafka, "starved.orders", &vec![Plan::Succeed; 60]).await;
    let run = Run::start_with(&env, &["starved"], |builder| builder.state(scarce));
    eventually(LIMIT, "the offsets to pass all", async || offsets(&env, "starved").await == 60).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "starved", &ids).await;
}

#[idempotent_handler(topic = "static-a.orders", group = "static-a")]
async fn static_a(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "static-a").await
}

#[idempotent_handler(topic = "static-b.orders", group = "static-b")]
async fn static_b(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "static-b").await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_groups_of_one_process_share_a_configured_instance_id() {
    let env = TestEnv::new().await.with("IDEM_KAFKA_GROUP_INSTANCE_ID", "instance-1");
    orders::create_tables(&env.pool).await;
    for group in ["static-a", "static-b"] {
        let topic = format!("{group}.orders");
        env.kafka.create_topic(&topic, 1).await;
        orders::publish(&env.kafka, &topic, &[Plan::Succeed]).await;
    }
    let run = Run::start(&env, &["static-a", "static-b"]);
    for group in ["static-a", "static-b"] {
        eventually(LIMIT, group, async || orders::effect_count(&env.pool, group).await == 1).await;
    }
    run.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_payload_is_logged_however_much_is_logged() {
    let env = TestEnv::new().await.with("RUST_LOG", "trace");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("asked.orders", 1).await;
    let card = "4111111111111111";
    let id = EventId::now();
    let values = [
        card.to_owned(),
        format!(r#"{{"event_id":"{id}","number":"{card}"}}"#),
        format!(r#"{{"event_id":"{card}","number":1}}"#),
        format!(r#"{{"event_id":"{id}","number":1,"plan":{{"{card}":1}}}}"#),
    ];
    for value in &values {
        env.kafka
            .produce(Record::to("asked.orders").key(card).header("card", Some(card.as_bytes())).value(value))
            .await;
    }
    let mut program = Program::start(&workspace_program("tests", "consumer"), &["asked"], &env.variables());
    eventually(LIMIT, "the dead letters", async || env.kafka.read_all("asked.dlq").await.len() == values.len()).await;
    program.terminate();
    assert!(program.wait(LIMIT).await.success());
    let output = program.output();
    assert!(output.iter().any(|line| line.contains("event failed")), "failures are logged");
    let told: Vec<&String> = output.iter().filter(|line| line.contains("4111")).collect();
    assert_eq!(told, [""; 0]);
    for letter in env.kafka.read_all("asked.dlq").await {
        let error = letter.header("idem-error").unwrap();
        assert!(!error.contains("4111"), "{error}");
    }
}

#[idempotent_handler(topic = "checked.orders", group = "checked", retry = ["1m"])]
async fn checked(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "checked").await
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_would_lose_events_stop_the_start() {
    let env = TestEnv::new().await;
    env.kafka.create_topic("checked.orders", 1).await;
    env.kafka.create_topic_with_config("checked.retry.1m", 1, &[("retention.ms", "60000")]).await;
    env.kafka
        .create_topic_with_config("checked.dlq", 1, &[("cleanup.policy", "compact"), ("retention.ms", "1000")])
        .await;
    let error = Run::start(&env, &["checked"]).ended(LIMIT).await.expect_err("topics are unsuitable").to_string();
    assert!(error.contains("`checked.retry.1m` keeps events for 60000 ms, not as long as they wait in it"), "{error}");
    assert!(error.contains("`checked.dlq` has cleanup.policy=compact"), "{error}");
    assert!(!error.contains("drops dead letters after"), "only a warning");
    let strict = env.with("IDEM_STRICT", "true");
    let error = Run::start(&strict, &["checked"]).ended(LIMIT).await.expect_err("strict").to_string();
    assert!(error.contains("`checked.dlq` drops dead letters after 1000 ms"), "{error}");
}

#[idempotent_handler(topic = "drained.orders", group = "drained", retry = ["200ms"])]
async fn drained(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "drained").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_that_left_the_configuration_is_still_drained() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("drained.orders", 1).await;
    env.kafka.create_topic("drained.retry.700ms", 2).await;
    let (id, value) = orders::order(0, &Plan::Succeed);
    let record = Record::to("drained.retry.700ms")
        .value(&value)
        .header("idem-attempt", Some(b"1"))
        .header("idem-origin-topic", Some(b"drained.orders"))
        .header("idem-origin-partition", Some(b"0"))
        .header("idem-origin-offset", Some(b"5"));
    env.kafka.produce(record).await;
    let run = Run::start(&env, &["drained"]);
    eventually(LIMIT, "the effect", async || orders::effect_count(&env.pool, "drained").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "drained", &[id]).await;
}
