//! Each event's effect happens once per group, whatever is delivered again, and dedup row and effect
//! are one transaction.

use std::time::Duration;

use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{Fault, Proxy, Record, Run, TestEnv, eventually};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(60);

#[idempotent_handler(topic = "smoke.orders", group = "smoke", concurrency = 8)]
async fn smoke(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "smoke").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_published_twice_takes_effect_once() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("smoke.orders", 3).await;
    let mut ids = Vec::new();
    for number in 0..50 {
        let (id, value) = orders::order(number, &Plan::Succeed);
        for _ in 0..2 {
            env.kafka.produce(Record::to("smoke.orders").key(&number.to_string()).value(&value)).await;
        }
        ids.push(id);
    }
    let run = Run::start(&env, &["smoke"]);
    eventually(LIMIT, "the offsets to pass all", async || {
        let committed = env.kafka.committed("smoke", "smoke.orders").await;
        committed.values().map(|committed| committed.offset).sum::<i64>() == 100
    })
    .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "smoke", &ids).await;
}

#[idempotent_handler(topic = "swallow.orders", group = "swallow", retry = ["200ms"])]
async fn swallow(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "swallow").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_swallows_a_database_error_has_failed() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("swallow.orders", 1).await;
    let ids = orders::publish(&env.kafka, "swallow.orders", &[Plan::SwallowError, Plan::Succeed]).await;
    let run = Run::start(&env, &["swallow"]);
    eventually(LIMIT, "the dead letter", async || env.kafka.read_all("swallow.dlq").await.len() == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "swallow", &ids[1..]).await;
    let letter = env.kafka.read_all("swallow.dlq").await.remove(0);
    assert_eq!(letter.header("idem-reason").as_deref(), Some("exhausted"));
    assert_eq!(letter.header("idem-attempt").as_deref(), Some("2"), "once on the topic, once on the retry topic");
    assert_eq!(letter.value, Some(orders::payload(ids[0], 0, &Plan::SwallowError)));
}

macro_rules! ends_the_transaction {
    ($($name:ident: $group:literal on $topic:literal;)*) => {$(
        #[idempotent_handler(topic = $topic, group = $group)]
        async fn $name(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
            orders::handle(tx, order, &delivery, $group).await
        }
    )*};
}

ends_the_transaction! {
    commits: "commits" on "commits.orders";
    rolls_back: "rolls-back" on "rolls-back.orders";
    commits_and_fails: "commits-and-fails" on "commits-and-fails.orders";
    commits_and_panics: "commits-and-panics" on "commits-and-panics.orders";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_ends_the_transaction_stops_the_run_and_keeps_the_offset() {
    let cases = [
        ("commits", Plan::Commit),
        ("rolls-back", Plan::Rollback),
        ("commits-and-fails", Plan::CommitAndFail),
        ("commits-and-panics", Plan::CommitAndPanic),
    ];
    for (group, plan) in cases {
        let env = TestEnv::new().await;
        orders::create_tables(&env.pool).await;
        let topic = format!("{group}.orders");
        env.kafka.create_topic(&topic, 1).await;
        orders::publish(&env.kafka, &topic, &[Plan::Succeed, plan, Plan::Succeed]).await;
        let mut run = Run::start(&env, &[group]);
        let error = run.ended(LIMIT).await.expect_err("the handler ended the transaction").to_string();
        let function = group.replace('-', "_");
        assert!(error.contains(&format!("once::{function} ended the transaction itself")), "{error}");
        let committed = env.kafka.committed(group, &topic).await;
        assert_eq!(committed.get(&0).map(|committed| committed.offset), Some(1), "{committed:?}");
    }
}

#[idempotent_handler(topic = "settings.orders", group = "settings")]
async fn settings(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "settings").await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_sets_for_its_session_is_gone_at_the_next_event() {
    let env = TestEnv::new().await.with("IDEM_POOL_SIZE", "1");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("settings.orders", 1).await;
    let ids = orders::publish(&env.kafka, "settings.orders", &[Plan::SetSession, Plan::Succeed, Plan::Succeed]).await;
    let run = Run::start(&env, &["settings"]);
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "settings").await == 3).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "settings", &ids).await;
}

#[idempotent_handler(topic = "deallocated.orders", group = "deallocated", retry = [])]
async fn deallocated(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "deallocated").await
}

#[idempotent_handler(topic = "deallocated.orders", group = "deallocated-shared", transaction = "shared", retry = [])]
async fn deallocated_shared(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "deallocated-shared").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_prepared_statements_a_handler_removed_is_replaced() {
    let env = TestEnv::new().await.with("IDEM_POOL_SIZE", "1");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("deallocated.orders", 1).await;
    let plans = [Plan::Succeed, Plan::Deallocate, Plan::Succeed, Plan::Deallocate, Plan::Succeed, Plan::Succeed];
    let ids = orders::publish(&env.kafka, "deallocated.orders", &plans).await;
    for group in ["deallocated", "deallocated-shared"] {
        let run = Run::start(&env, &[group]);
        eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, group).await == ids.len()).await;
        run.stop().await.unwrap();
        orders::assert_each_once(&env.pool, group, &ids).await;
        assert_eq!(env.kafka.read_all(&format!("{group}.dlq")).await, []);
    }
}

#[idempotent_handler(topic = "lost-reply.orders", group = "lost-reply")]
async fn lost_reply(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "lost-reply").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_reply_was_lost_is_recognised() {
    let database = tests::postgres::database().await;
    let proxy = Proxy::start(tests::postgres::shared().await.port()).await;
    let env = TestEnv::on(&database, tests::Kafka::shared().await).with("IDEM_DATABASE_URL", &proxy.url(&database));
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("lost-reply.orders", 1).await;
    let first = orders::publish(&env.kafka, "lost-reply.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["lost-reply"]);
    eventually(LIMIT, "the first order", async || orders::effect_count(&env.pool, "lost-reply").await == 1).await;

    proxy.arm(Fault::LoseReply, "COMMIT", 2);
    let second = orders::publish(&env.kafka, "lost-reply.orders", &[Plan::Succeed, Plan::Succeed, Plan::Succeed]).await;
    let ids = [first, second].concat();
    eventually(LIMIT, "all orders", async || orders::effect_count(&env.pool, "lost-reply").await == ids.len()).await;
    eventually(LIMIT, "two lost replies", async || proxy.count(Fault::LoseReply) == 2).await;
    eventually(LIMIT, "the offset", async || {
        env.kafka
            .committed("lost-reply", "lost-reply.orders")
            .await
            .get(&0)
            .is_some_and(|committed| committed.offset == 4)
    })
    .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "lost-reply", &ids).await;
    assert_eq!(env.kafka.read_all("lost-reply.dlq").await, []);
    assert_eq!(env.kafka.read_all("lost-reply.retry.1s").await, [], "an outage costs no attempt");
}

#[idempotent_handler(topic = "held.orders", group = "held")]
async fn held(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "held").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncommitted_row_of_another_session_is_waited_for() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("held.orders", 1).await;
    let run = Run::start(&env, &["held"]);
    let warm = orders::publish(&env.kafka, "held.orders", &[Plan::Succeed]).await;
    eventually(LIMIT, "the tables and a first order", async || orders::effect_count(&env.pool, "held").await == 1)
        .await;

    for commits in [true, false] {
        let (id, value) = orders::order(1, &Plan::Succeed);
        let mut other = env.pool.begin().await.unwrap();
        sqlx::query("INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, 'held')")
            .bind(id)
            .execute(&mut *other)
            .await
            .unwrap();
        env.kafka.produce(Record::to("held.orders").value(&value)).await;
        eventually(LIMIT, "the library's insert to wait", async || {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .fetch_one(&env.pool)
            .await
            .unwrap();
            waiting == 1
        })
        .await;
        assert!(!orders::effects(&env.pool, "held").await.contains_key(&id));
        if commits {
            other.commit().await.unwrap()
        } else {
            other.rollback().await.unwrap()
        }
        let (after, value) = orders::order(2, &Plan::Succeed);
        env.kafka.produce(Record::to("held.orders").value(&value)).await;
        eventually(LIMIT, "the order behind it", async || {
            orders::effects(&env.pool, "held").await.contains_key(&after)
        })
        .await;
        let ran = orders::effects(&env.pool, "held").await.contains_key(&id);
        assert_eq!(ran, !commits, "skipped if the other commits, run if it rolls back");
    }
    run.stop().await.unwrap();
    assert!(orders::effects(&env.pool, "held").await.values().all(|times| *times == 1));
    assert!(orders::effects(&env.pool, "held").await.contains_key(&warm[0]));
}

#[idempotent_handler(topic = "repeats.orders", group = "repeats", concurrency = 4)]
async fn repeats(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "repeats").await
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_within_one_poll_and_processed_events_are_skipped_and_passed() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("repeats.orders", 1).await;
    let ids: Vec<_> = (0..3).map(|number| orders::order(number, &Plan::Succeed)).collect();
    let [(_, x), (_, y), (_, z)] = &ids[..] else { unreachable!("three") };
    env.kafka.produce(Record::to("repeats.orders").key("z").value(z)).await;
    let run = Run::start(&env, &["repeats"]);
    eventually(LIMIT, "the first order", async || orders::effect_count(&env.pool, "repeats").await == 1).await;
    // Different keys, so that lanes would run the two copies side by side.
    for (key, value) in [("a", x), ("b", x), ("c", y), ("d", z)] {
        drop(env.kafka.produce(Record::to("repeats.orders").key(key).value(value)));
    }
    eventually(LIMIT, "the offset to pass all", async || {
        env.kafka.committed("repeats", "repeats.orders").await.get(&0).is_some_and(|committed| committed.offset == 5)
    })
    .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "repeats", &ids.iter().map(|(id, _)| *id).collect::<Vec<_>>()).await;
}

#[idempotent_handler(topic = "midnight.orders", group = "midnight")]
async fn midnight(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "midnight").await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_on_both_sides_of_midnight_take_effect_once_each_in_its_own_partition() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("midnight.orders", 1).await;
    let midnight: i64 = sqlx::query_scalar("SELECT extract(epoch FROM date_trunc('day', now(), 'UTC'))::bigint * 1000")
        .fetch_one(&env.pool)
        .await
        .unwrap();
    let midnight = u128::try_from(midnight).unwrap();
    let day = 86_400_000;
    // The last millisecond of yesterday, the first of today, one far in the past, one of tomorrow.
    let times = [midnight - 1, midnight, midnight - 40 * day, midnight + day];
    let ids: Vec<Uuid> = times.iter().map(|time| Uuid::from_u128(time << 80 | 0x7000_8000_0000_0000_0001)).collect();
    for _ in 0..2 {
        for id in &ids {
            env.kafka.produce(Record::to("midnight.orders").value(&orders::payload(*id, 0, &Plan::Succeed))).await;
        }
    }
    let run = Run::start(&env, &["midnight"]);
    eventually(LIMIT, "the offset to pass all", async || {
        env.kafka.committed("midnight", "midnight.orders").await.get(&0).is_some_and(|committed| committed.offset == 8)
    })
    .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "midnight", &ids).await;
    let homes: Vec<(Uuid, String)> = sqlx::query_as("SELECT event_id, tableoid::regclass::text FROM processed_event")
        .fetch_all(&env.pool)
        .await
        .unwrap();
    let home = |id: &Uuid| homes.iter().find(|(found, _)| found == id).map(|(_, home)| home.as_str()).unwrap();
    let days: (String, String, String) = sqlx::query_as(
        "SELECT idem_partition_of(d - 1), idem_partition_of(d), idem_partition_of(d + 1) \
         FROM (SELECT (to_timestamp($1) AT TIME ZONE 'UTC')::date AS d) AS today",
    )
    .bind(f64::from(u32::try_from(midnight / 1000).unwrap()))
    .fetch_one(&env.pool)
    .await
    .unwrap();
    assert_eq!((home(&ids[0]), home(&ids[1]), home(&ids[3])), (&*days.0, &*days.1, &*days.2));
    assert_eq!(home(&ids[2]), "processed_event_late");
}

#[idempotent_handler(topic = "identifiers.orders", group = "identifiers")]
async fn identifiers(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "identifiers").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identifier_has_one_canonical_form_or_a_named_rejection() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("identifiers.orders", 1).await;
    let (id, _) = orders::order(0, &Plan::Succeed);
    let lower = id.hyphenated().to_string();
    let far = Uuid::from_u128(4_102_444_800_000 << 80 | 0x7000_8000_0000_0000_0001); // 2100-01-01
    let accepted = [lower.clone(), lower.to_uppercase()];
    let rejected = [
        (far.to_string(), "future"),
        (Uuid::nil().to_string(), "bad-id"),
        (Uuid::max().to_string(), "bad-id"),
        ("6f1d2c6e-3c0a-4b43-9e5d-0f6f6a1b2c3d".to_owned(), "bad-id"),
        ("2c1d4f7e-7d0f-11ee-b962-0242ac120002".to_owned(), "bad-id"),
        (format!("{{{lower}}}"), "bad-id"),
        (format!("urn:uuid:{lower}"), "bad-id"),
        (id.simple().to_string(), "bad-id"),
    ];
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('processed_event')";
    for text in accepted.iter().chain(rejected.iter().map(|(text, _)| text)) {
        let value = format!(r#"{{"event_id":"{text}","number":1}}"#);
        env.kafka.produce(Record::to("identifiers.orders").value(&value)).await;
    }
    let run = Run::start(&env, &["identifiers"]);
    eventually(LIMIT, "all dead letters", async || env.kafka.read_all("identifiers.dlq").await.len() == rejected.len())
        .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "identifiers", &[id]).await;
    let mut reasons: Vec<(i64, String)> = env
        .kafka
        .read_all("identifiers.dlq")
        .await
        .iter()
        .map(|letter| {
            (letter.header("idem-origin-offset").unwrap().parse().unwrap(), letter.header("idem-reason").unwrap())
        })
        .collect();
    reasons.sort_unstable();
    let wanted: Vec<(i64, String)> = (2..).zip(rejected.iter().map(|(_, reason)| (*reason).to_owned())).collect();
    assert_eq!(reasons, wanted);
    let count: i64 = sqlx::query_scalar(partitions).fetch_one(&env.pool).await.unwrap();
    assert_eq!(count, 17, "late, natural, 8 days until today, 7 ahead: no identifier made one");
}

#[idempotent_handler(topic = "panics.orders", group = "panics", retry = ["200ms"])]
async fn panics(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "panics").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_rolls_back_and_the_consumer_lives() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("panics.orders", 1).await;
    let plans = [Plan::PanicTimes(1), Plan::Succeed, Plan::PanicTimes(9), Plan::Succeed];
    let ids = orders::publish(&env.kafka, "panics.orders", &plans).await;
    let run = Run::start(&env, &["panics"]);
    eventually(LIMIT, "the dead letter", async || env.kafka.read_all("panics.dlq").await.len() == 1).await;
    eventually(LIMIT, "the others", async || orders::effect_count(&env.pool, "panics").await == 3).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "panics", &[ids[0], ids[1], ids[3]]).await;
    let letter = env.kafka.read_all("panics.dlq").await.remove(0);
    assert_eq!(letter.header("idem-reason").as_deref(), Some("panic"));
    assert!(!letter.header("idem-error").unwrap().contains("as planned"), "a panic's text may quote a payload");
}

#[idempotent_handler(topic = "slow.orders", group = "slow", retry = [], timeout = "500ms")]
async fn slow(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    let sleeps = order.plan == Plan::Sleep(0);
    orders::handle(tx, order, &delivery, "slow").await?;
    if sleeps {
        sqlx::query("SELECT pg_sleep(30)").execute(&mut **tx).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_past_its_timeout_fails_and_its_connection_is_not_reused() {
    let env = TestEnv::new().await.with("IDEM_POOL_SIZE", "1");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("slow.orders", 1).await;
    let ids = orders::publish(&env.kafka, "slow.orders", &[Plan::Sleep(0), Plan::Succeed]).await;
    let run = Run::start(&env, &["slow"]);
    eventually(Duration::from_secs(20), "the order behind it", async || {
        orders::effect_count(&env.pool, "slow").await == 1
    })
    .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "slow", &ids[1..]).await;
    let letter = env.kafka.read_all("slow.dlq").await.remove(0);
    assert_eq!(letter.header("idem-reason").as_deref(), Some("exhausted"));
    eventually(LIMIT, "the server to end the abandoned query", async || {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")
            .fetch_one(&env.pool)
            .await
            .unwrap();
        left == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_of_another_crate_is_driven_too() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("elsewhere.orders", 1).await;
    let ids = orders::publish(&env.kafka, "elsewhere.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["elsewhere"]);
    eventually(LIMIT, "the order", async || orders::effect_count(&env.pool, "elsewhere").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "elsewhere", &ids).await;
}
