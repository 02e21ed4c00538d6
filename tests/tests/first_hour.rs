//! The README's first program, made in an empty directory as its reader makes it, on the sandbox and on real servers.

use std::time::Duration;

use idem_runtime::prelude::EventId;
use serde_json::json;
use sqlx::PgPool;
use tests::child::{first_program, workspace_example};
use tests::{Client, Program, Record, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(60);
const TOPIC: &str = "order-service.order.confirmed";

#[tokio::test(flavor = "multi_thread")]
async fn the_first_program_works_as_the_readme_says() {
    let directory = tempfile::tempdir().unwrap();
    let (program, took) = first_program(directory.path());
    println!("{took}");

    let mut sandbox = Program::start(&workspace_example("examples", "sandbox"), &[], &[]);
    sandbox.line("Ctrl-C ends it.", LIMIT).await;
    let variables = sandbox.exported();
    let of = |name: &str| &variables.iter().find(|(variable, _)| variable == name).unwrap().1;
    let pool = tests::postgres::pool(of("IDEM_DATABASE_URL"));
    an_order_becomes_due(&program, &variables, &pool, &Client::new(of("IDEM_KAFKA_BROKERS"))).await;

    let env = TestEnv::new().await;
    let table = "CREATE TABLE orders (id bigint PRIMARY KEY, payment_status text, amount bigint);
                 INSERT INTO orders VALUES (4711, 'open')";
    sqlx::raw_sql(table).execute(&env.pool).await.unwrap();
    env.kafka.create_topic(TOPIC, 3).await;
    an_order_becomes_due(&program, &env.variables(), &env.pool, &env.kafka).await;
}

async fn an_order_becomes_due(
    program: &std::path::Path,
    variables: &[(String, String)],
    pool: &PgPool,
    kafka: &Client,
) {
    let mut variables = variables.to_vec();
    variables.push(("IDEM_ADMIN_ADDR".to_owned(), "off".to_owned()));
    let mut shop = Program::start(program, &[], &variables);
    let event = json!({"event_id": EventId::now(), "order_id": 4711, "total_amount": 4_999}).to_string();
    for _ in 0..2 {
        kafka.produce(Record::to(TOPIC).key("4711").value(&event)).await;
    }
    eventually(LIMIT, "both deliveries to be done with", async || {
        kafka.committed("billing-order-confirmed", TOPIC).await.values().map(|committed| committed.offset).sum::<i64>()
            == 2
    })
    .await;
    let order: (String, i64) =
        sqlx::query_as("SELECT payment_status, amount FROM orders").fetch_one(pool).await.unwrap();
    assert_eq!(order, ("due".to_owned(), 4_999));
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM processed_event").fetch_one(pool).await.unwrap();
    assert_eq!(rows, 1);
    shop.terminate();
    assert!(shop.wait(LIMIT).await.success());
}
