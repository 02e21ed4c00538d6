//! Tables that were there before.

use std::time::Duration;

use idem_runtime::ops::partitions;
use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{Record, Run, cli, eventually};
use uuid::Uuid;

use crate::{Invoice, LIMIT, has_read_all, id_at, narrow, now, offset_is, ops, produce, reasons};

#[idempotent_handler(topic = "adopted.orders", group = "adopted", concurrency = 8, retry = [])]
async fn adopted(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "adopted").await
}

#[idempotent_handler(topic = "adopted.invoices", group = "adopted", concurrency = 8, retry = [])]
async fn adopted_invoices(tx: &mut Tx<'_>, event: Invoice) -> HandlerResult {
    sqlx::query("INSERT INTO effect (event_id, consumer_group, number) VALUES (gen_random_uuid(), 'invoices', $1)")
        .bind(event.invoice)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_the_common_guides_is_used_as_it_is_and_partitioned_while_everything_runs() {
    let env = narrow().await;
    for topic in ["adopted.orders", "adopted.invoices"] {
        env.kafka.create_topic(topic, 2).await;
    }
    let now = now(&env.pool).await;
    sqlx::raw_sql(
        "CREATE TABLE processed_event (event_id uuid PRIMARY KEY, consumer_group varchar(80) NOT NULL, note text, \
             processed_at timestamptz NOT NULL DEFAULT now())",
    )
    .execute(&env.pool)
    .await
    .unwrap();
    let (kept, old) = (id_at(now, 1, 1), id_at(now, 9, 2));
    let row = "INSERT INTO processed_event (event_id, consumer_group, processed_at) \
               VALUES ($1, 'adopted', now() - $2 * interval '1 day')";
    for (id, age) in [(kept, 1), (old, 8)] {
        sqlx::query(row).bind(id).bind(age).execute(&env.pool).await.unwrap();
    }
    let mut ids: Vec<Uuid> = (10..110).map(|number| id_at(now, 1, number)).collect();
    let unknown = id_at(now, 20, 3);
    produce(&env, "adopted.orders", &[kept, old, unknown]).await;
    produce(&env, "adopted.orders", &ids).await;
    let run = Run::start(&env, &["adopted"]);
    offset_is(&env, "adopted", "adopted.orders", 103).await;
    orders::assert_each_once(&env.pool, "adopted", &ids).await;
    assert_eq!(reasons(&env, "adopted.dlq").await, ["expired"], "older than the oldest row: it may have been deleted");
    has_read_all(&env, "adopted").await;
    assert_eq!(partitions::sweep(&ops(&env)).await.unwrap().deleted, 1);
    let forgotten = env.kafka.produce(Record::to("adopted.orders").value(&orders::payload(old, 0, &Plan::Succeed)));
    forgotten.await;
    eventually(LIMIT, "the letter", async || reasons(&env, "adopted.dlq").await.len() == 2).await;

    // Load over both kinds of ids, each event twice, while the table changes.
    let load = async {
        for number in 1_000..1_060_u64 {
            let id = id_at(now, i64::try_from(number % 2).unwrap(), number);
            ids.push(id);
            produce(&env, "adopted.orders", &[id, id]).await;
            let value = format!(r#"{{"invoice":{number}}}"#);
            for _ in 0..2 {
                env.kafka.produce(Record::to("adopted.invoices").key(&value).value(&value)).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let change = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let said = cli::idem(env.variables(), &["migrate", "--partition", "--json"]).await;
        assert_eq!(said.status, Some(0), "{}", said.stderr);
    };
    tokio::join!(load, change);
    offset_is(&env, "adopted", "adopted.orders", 104 + 120).await;
    offset_is(&env, "adopted", "adopted.invoices", 120).await;
    produce(&env, "adopted.orders", &ids).await;
    offset_is(&env, "adopted", "adopted.orders", 104 + 120 + i64::try_from(ids.len()).unwrap()).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "adopted", &ids).await;
    let invoices: (i64, i64) =
        sqlx::query_as("SELECT count(*), count(DISTINCT number) FROM effect WHERE consumer_group = 'invoices'")
            .fetch_one(&env.pool)
            .await
            .unwrap();
    assert_eq!(invoices, (60, 60));
    assert_eq!(reasons(&env, "adopted.dlq").await.len(), 2);
    let listed = partitions::list(&ops(&env)).await.unwrap().partitions;
    let rows = |name: &str| listed.iter().find(|part| part.name == name).unwrap().rows;
    assert_eq!((rows("processed_event_late"), rows("processed_event_natural")), (1 + 100 + 60, 60));
    assert!(listed.len() > 8, "{listed:#?}");
    // A second time there is nothing to do, and other groups can use it now.
    let again = cli::idem(env.variables(), &["migrate", "--partition", "--json"]).await;
    assert_eq!(again.status, Some(0), "{}", again.stderr);
    let both = "INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, 'another')";
    sqlx::query(both).bind(kept).execute(&env.pool).await.unwrap();
}

#[idempotent_handler(topic = "claimed.orders", group = "first-come", retry = [])]
async fn first_come(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "first-come").await
}

#[idempotent_handler(topic = "claimed.orders", group = "second-come", retry = [])]
async fn second_come(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "second-come").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_table_whose_key_is_the_id_alone_belongs_to_the_first_group_that_runs() {
    let env = narrow().await;
    env.kafka.create_topic("claimed.orders", 1).await;
    sqlx::raw_sql(
        "CREATE TABLE processed_event (event_id uuid PRIMARY KEY, consumer_group text NOT NULL, \
             processed_at timestamptz NOT NULL DEFAULT now())",
    )
    .execute(&env.pool)
    .await
    .unwrap();
    let noted = "SELECT EXISTS (SELECT FROM group_horizon WHERE consumer_group = 'first-come')";
    let run = Run::start(&env, &["first-come"]);
    eventually(LIMIT, "the group to be noted", async || {
        sqlx::query_scalar::<_, bool>(noted).fetch_one(&env.pool).await.unwrap_or(false)
    })
    .await;
    let error = Run::start(&env, &["second-come"]).ended(LIMIT).await.expect_err("events would be lost").to_string();
    assert!(error.contains("these use it: first-come, second-come"), "{error}");
    run.stop().await.unwrap();
    // The one that was refused left nothing behind.
    let ids = orders::publish(&env.kafka, "claimed.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["first-come"]);
    eventually(LIMIT, "the order", async || orders::effect_count(&env.pool, "first-come").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "first-come", &ids).await;
}

#[idempotent_handler(topic = "rebuilt.orders", group = "rebuilt", retry = [])]
async fn rebuilt(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "rebuilt").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_whose_key_holds_the_time_is_refused_and_can_be_made_anew() {
    let env = narrow().await;
    env.kafka.create_topic("rebuilt.orders", 2).await;
    sqlx::raw_sql(
        "CREATE TABLE processed_event (event_id uuid NOT NULL, consumer_group text NOT NULL, \
             processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (event_id, consumer_group, processed_at)) \
         PARTITION BY RANGE (processed_at); \
         CREATE TABLE processed_event_late PARTITION OF processed_event DEFAULT",
    )
    .execute(&env.pool)
    .await
    .unwrap();
    let now = now(&env.pool).await;
    let ids: Vec<Uuid> = (0..50).map(|number| id_at(now, i64::try_from(number % 3).unwrap(), number)).collect();
    for hours in [50, 1] {
        let twice =
            "INSERT INTO processed_event SELECT id, 'rebuilt', now() - $2 * interval '1 hour' FROM unnest($1) AS id";
        sqlx::query(twice).bind(&ids).bind(hours).execute(&env.pool).await.unwrap();
    }
    let foreign = "INSERT INTO processed_event VALUES ('6f1d2c6e-3c0a-4b43-9e5d-0f6f6a1b2c3d', 'rebuilt')";
    sqlx::raw_sql(foreign).execute(&env.pool).await.unwrap();
    let error = Run::start(&env, &["rebuilt"]).ended(LIMIT).await.expect_err("it does not deduplicate").to_string();
    assert!(error.contains("(event_id, consumer_group, processed_at)"), "{error}");
    assert!(error.contains("idem migrate --rebuild"), "{error}");

    let rebuilt = cli::idem(env.variables(), &["migrate", "--rebuild", "--json"]).await;
    assert_eq!(rebuilt.status, Some(0), "{}", rebuilt.stderr);
    let counts = "SELECT (SELECT count(*) FROM processed_event), (SELECT count(*) FROM processed_event_before)";
    let counts: (i64, i64) = sqlx::query_as(counts).fetch_one(&env.pool).await.unwrap();
    assert_eq!(counts, (50, 101));
    produce(&env, "rebuilt.orders", &ids).await;
    let fresh = id_at(now, 0, 77);
    produce(&env, "rebuilt.orders", &[fresh]).await;
    let run = Run::start(&env, &["rebuilt"]);
    offset_is(&env, "rebuilt", "rebuilt.orders", 51).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "rebuilt", &[fresh]).await;
    let again = cli::idem(env.variables(), &["migrate", "--rebuild"]).await;
    assert!(again.stderr.contains("nothing to rebuild"), "{}", again.stderr);
}
