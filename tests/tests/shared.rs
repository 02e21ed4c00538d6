//! Events that share a transaction: what happens to one of them never depends on its neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use idem_runtime::RunError;
use idem_runtime::prelude::*;
use sqlx::PgPool;
use tests::child::workspace_program;
use tests::orders::{self, Order, Plan};
use tests::{Postgres, Program, Proxy, Record, Run, TestEnv, eventually};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(60);

async fn passed(env: &TestEnv, group: &str) -> i64 {
    let committed = env.kafka.committed(group, &format!("{group}.orders")).await;
    committed.values().map(|committed| committed.offset).sum()
}

async fn env(group: &str, partitions: i32) -> TestEnv {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic(&format!("{group}.orders"), partitions).await;
    env
}

async fn reasons(env: &TestEnv, group: &str) -> Vec<String> {
    let letters = env.kafka.read_all(&format!("{group}.dlq")).await;
    letters.iter().map(|letter| letter.header("idem-reason").expect("a reason")).collect()
}

async fn guards(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM transaction_guard").fetch_one(pool).await.expect("the guards")
}

#[idempotent_handler(topic = "copies.orders", group = "copies", transaction = "shared")]
async fn copies(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "copies").await
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_within_one_transaction_and_processed_events_are_skipped_and_passed() {
    let env = env("copies", 1).await;
    let ids: Vec<_> = (0..3).map(|number| orders::order(number, &Plan::Succeed)).collect();
    let [(_, x), (_, y), (_, z)] = &ids[..] else { unreachable!("three") };
    env.kafka.produce(Record::to("copies.orders").value(z)).await;
    let run = Run::start(&env, &["copies"]);
    eventually(LIMIT, "the first order", async || orders::effect_count(&env.pool, "copies").await == 1).await;
    run.stop().await.unwrap();
    for value in [x, x, y, z, x, z] {
        drop(env.kafka.produce(Record::to("copies.orders").value(value)));
    }
    let run = Run::start(&env, &["copies"]);
    eventually(LIMIT, "the offset to pass all", async || passed(&env, "copies").await == 7).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "copies", &ids.iter().map(|(id, _)| *id).collect::<Vec<_>>()).await;
    assert_eq!(guards(&env.pool).await, 0);
}

static TRIED: Mutex<Vec<(i64, i64)>> = Mutex::new(Vec::new());

#[idempotent_handler(topic = "poisoned.orders", group = "poisoned", transaction = "shared")]
async fn poisoned(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    let id: i64 = sqlx::query_scalar("SELECT pg_current_xact_id()::text::bigint").fetch_one(&mut **tx).await?;
    TRIED.lock().unwrap().push((id, order.number));
    orders::handle(tx, order, &delivery, "poisoned").await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_that_fails_for_good_is_dead_lettered_alone_and_the_others_commit_together() {
    const EVENTS: i64 = 500;
    const POISON: i64 = 250;
    let env = env("poisoned", 1).await;
    let plans: Vec<Plan> =
        (0..EVENTS).map(|number| if number == POISON { Plan::Refuse } else { Plan::Succeed }).collect();
    let mut ids = orders::publish(&env.kafka, "poisoned.orders", &plans).await;
    let run = Run::start(&env, &["poisoned"]);
    eventually(LIMIT, "the offset to pass all", async || passed(&env, "poisoned").await == EVENTS).await;
    run.stop().await.unwrap();
    ids.remove(usize::try_from(POISON).unwrap());
    orders::assert_each_once(&env.pool, "poisoned", &ids).await;
    assert_eq!(reasons(&env, "poisoned").await, ["permanent"]);
    assert_eq!(guards(&env.pool).await, 0);

    let tried = TRIED.lock().unwrap().clone();
    let alone = |id: i64| tried.iter().filter(|(other, _)| *other == id).count() == 1;
    let of_poison: Vec<i64> = tried.iter().filter(|(_, number)| *number == POISON).map(|(id, _)| *id).collect();
    let [first, last] = of_poison[..] else { panic!("once with the others, once alone: {of_poison:?}") };
    assert!(alone(last));
    let neighbours: Vec<i64> = tried.iter().filter(|(id, _)| *id == first).map(|(_, number)| *number).collect();
    let committed = orders::transactions(&env.pool, "poisoned").await;
    let together: BTreeSet<i64> =
        neighbours.iter().filter(|number| **number != POISON).map(|number| committed[number]).collect();
    assert!(together.len() <= 1, "those that ran before it are committed by one transaction: {together:?}");
    let transactions: BTreeSet<i64> = committed.values().copied().collect();
    assert!(transactions.len() < 60, "{} transactions for {EVENTS} events", transactions.len());
    for (before, after) in committed.values().zip(committed.values().skip(1)) {
        assert!(before <= after, "in the order of the partition");
    }
}

#[idempotent_handler(topic = "aged.orders", group = "aged", transaction = "shared")]
async fn aged(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "aged").await
}

#[idempotent_handler(topic = "aged-batch.orders", group = "aged-batch", batch = 50)]
async fn aged_batch(tx: &mut Tx<'_>, batch: Vec<Order>) -> HandlerResult {
    write(tx, &batch, "aged-batch").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_may_have_been_forgotten_are_dead_lettered_and_their_neighbours_commit_together() {
    for group in ["aged", "aged-batch"] {
        let (env, topic) = (env(group, 1).await, format!("{group}.orders"));
        let mut ids = orders::publish(&env.kafka, &topic, &[Plan::Succeed]).await;
        let run = Run::start(&env, &[group]);
        eventually(LIMIT, "the first order", async || orders::effect_count(&env.pool, group).await == 1).await;
        run.stop().await.unwrap();
        let horizon = "INSERT INTO group_horizon (consumer_group, ids_before) VALUES ($1, now() - interval '1 hour') \
                       RETURNING (extract(epoch FROM ids_before) * 1000)::bigint";
        let horizon: i64 = sqlx::query_scalar(horizon).bind(group).fetch_one(&env.pool).await.unwrap();
        let before = u128::try_from(horizon - 1_000).unwrap() << 80;
        for number in 1..=40_u32 {
            let (id, value) = if number % 10 == 5 {
                let id = Uuid::from_u128(before | 0x7000_8000_0000_0000_0000 | u128::from(number));
                (None, orders::payload(id, i64::from(number), &Plan::Succeed))
            } else {
                let (id, value) = orders::order(i64::from(number), &Plan::Succeed);
                (Some(id), value)
            };
            ids.extend(id);
            env.kafka.produce(Record::to(&topic).value(&value)).await;
        }
        let run = Run::start(&env, &[group]);
        eventually(LIMIT, "the offset to pass all", async || passed(&env, group).await == 41).await;
        run.stop().await.unwrap();
        orders::assert_each_once(&env.pool, group, &ids).await;
        assert_eq!(reasons(&env, group).await, ["expired"; 4]);
        let transactions: BTreeSet<i64> = orders::transactions(&env.pool, group).await.into_values().collect();
        assert!(transactions.len() < 20, "{} transactions for {} events", transactions.len(), ids.len());
        assert_eq!(guards(&env.pool).await, 0);
    }
}

#[idempotent_handler(topic = "strays.orders", group = "strays", transaction = "shared", retry = ["200ms"])]
async fn strays(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "strays").await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failure_takes_its_own_path_and_its_neighbours_are_not_touched() {
    let env = env("strays", 1).await;
    let mut good = Vec::new();
    let mut send = async |plan: &Plan, lives: bool| {
        let (id, value) = orders::order(0, plan);
        env.kafka.produce(Record::to("strays.orders").value(&value)).await;
        if lives {
            good.push(id);
        }
    };
    let far = Uuid::from_u128(4_102_444_800_000 << 80 | 0x7000_8000_0000_0000_0001); // 2100-01-01
    send(&Plan::Succeed, true).await;
    // Returns Ok in an aborted transaction: those behind it can't be told from those that failed.
    send(&Plan::SwallowError, false).await;
    send(&Plan::Succeed, true).await;
    drop(env.kafka.produce(Record::to("strays.orders").key("a tombstone")));
    send(&Plan::FailTimes(1), true).await;
    drop(env.kafka.produce(Record::to("strays.orders").value("no json")));
    send(&Plan::PanicTimes(1), true).await;
    drop(env.kafka.produce(Record::to("strays.orders").value(&orders::payload(far, 0, &Plan::Succeed))));
    send(&Plan::PanicTimes(9), false).await;
    drop(env.kafka.produce(Record::to("strays.orders").value(r#"{"event_id":"1","number":1}"#)));
    send(&Plan::Refuse, false).await;
    send(&Plan::SetSession, true).await;
    send(&Plan::Succeed, true).await;
    let run = Run::start(&env, &["strays"]);
    eventually(LIMIT, "the dead letters", async || reasons(&env, "strays").await.len() == 7).await;
    eventually(LIMIT, "the offset to pass all", async || passed(&env, "strays").await == 13).await;
    eventually(LIMIT, "the retried ones", async || orders::effect_count(&env.pool, "strays").await == good.len()).await;
    assert!(run.health.is_ready(), "{:?}", run.health);
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "strays", &good).await;
    let mut reasons = reasons(&env, "strays").await;
    reasons.sort_unstable();
    assert_eq!(reasons, ["bad-id", "exhausted", "future", "null", "panic", "permanent", "unparsable"]);
    let retried = env.kafka.read_all("strays.retry.200ms").await;
    assert!(retried.iter().all(|record| record.header("idem-attempt").as_deref() == Some("1")));
    assert_eq!(retried.len(), 4, "one failure, two panics, and the swallowed error");
}

macro_rules! ends_it {
    ($($name:ident: $group:literal on $topic:literal;)*) => {$(
        #[idempotent_handler(topic = $topic, group = $group, transaction = "shared")]
        async fn $name(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
            if order.number == 99 {
                // Whatever it does with the server's refusal.
                let _ = sqlx::raw_sql("COMMIT").execute(&mut **tx).await;
                return Ok(());
            }
            orders::handle(tx, order, &delivery, $group).await
        }
    )*};
}

ends_it! {
    commits: "commits" on "commits.orders";
    commits_and_fails: "commits-and-fails" on "commits-and-fails.orders";
    rolls_back: "rolls-back" on "rolls-back.orders";
    swallows: "swallows" on "swallows.orders";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_ends_a_shared_transaction_is_refused_and_named_and_nothing_is_kept() {
    let cases = [
        ("commits", Plan::Commit, 0, "shared::commits ended"),
        ("commits-and-fails", Plan::CommitAndFail, 0, "shared::commits_and_fails ended"),
        ("rolls-back", Plan::Rollback, 0, "shared::rolls_back ended"),
        ("swallows", Plan::Succeed, 99, "shared::swallows ended"),
    ];
    for (group, plan, number, named) in cases {
        let env = env(group, 1).await;
        let topic = format!("{group}.orders");
        // It is not alone: the first transaction takes what has come, one event at the least.
        let plans = [(Plan::Sleep(50), 0), (Plan::Succeed, 1), (plan, number), (Plan::Succeed, 2)];
        for (plan, number) in &plans {
            drop(env.kafka.produce(Record::to(&topic).value(&orders::order(*number, plan).1)));
        }
        eventually(LIMIT, "the records", async || env.kafka.read_all(&topic).await.len() == 4).await;
        let error = Run::start(&env, &[group]).ended(LIMIT).await.expect_err("the program is wrong");
        assert!(matches!(error, RunError::TransactionEnded { .. }), "{error}");
        assert!(error.to_string().contains(named), "{error}");
        let kept: Vec<(Uuid,)> =
            sqlx::query_as("SELECT event_id FROM processed_event").fetch_all(&env.pool).await.unwrap();
        let effects = orders::effects(&env.pool, group).await;
        assert_eq!(kept.len(), effects.len(), "no dedup row without its effect, and the other way round");
        assert!(effects.values().all(|times| *times == 1));
        assert_eq!(reasons(&env, group).await, [""; 0]);
    }
}

#[idempotent_handler(topic = "crossed.orders", group = "crossed", transaction = "shared")]
async fn crossed(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "crossed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_that_insert_the_same_ids_in_other_orders_wait_for_each_other_in_one_direction() {
    let env = env("crossed", 4).await;
    let orders: Vec<(Uuid, Vec<u8>)> = (0..200).map(|number| orders::order(number, &Plan::Succeed)).collect();
    for partition in 0..4 {
        let mut copies: Vec<&Vec<u8>> = orders.iter().map(|(_, value)| value).collect();
        if partition % 2 == 1 {
            copies.reverse();
        }
        for value in copies {
            drop(env.kafka.produce(Record::to("crossed.orders").partition(partition).value(value)));
        }
    }
    let run = Run::start(&env, &["crossed"]);
    eventually(LIMIT, "the offsets to pass all", async || passed(&env, "crossed").await == 800).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "crossed", &orders.iter().map(|(id, _)| *id).collect::<Vec<_>>()).await;
    // Rows of one batch are sorted; those of batches that overlap may still cross, and are run again.
    assert!(deadlocks(&env.pool).await <= 4);
    assert_eq!(reasons(&env, "crossed").await, [""; 0]);
}

async fn deadlocks(pool: &PgPool) -> i64 {
    let count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    sqlx::query_scalar(count).fetch_one(pool).await.expect("the statistics")
}

#[idempotent_handler(topic = "contended.orders", group = "contended", transaction = "shared")]
async fn contended(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    let account = order.number.wrapping_mul(2_654_435_761).rem_euclid(1_000);
    let update = "UPDATE account SET balance = balance + 1 WHERE id = $1";
    sqlx::query(update).bind(account).execute(&mut **tx).await?;
    orders::handle(tx, order, &delivery, "contended").await
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_that_update_the_same_rows_take_turns_after_a_deadlock() {
    const EVENTS: usize = 8_000;
    let env = env("contended", 4).await;
    let accounts = "CREATE TABLE account AS SELECT id::bigint, 0::bigint AS balance FROM generate_series(0, 999) AS id; \
                    ALTER TABLE account ADD PRIMARY KEY (id)";
    sqlx::raw_sql(accounts).execute(&env.pool).await.unwrap();
    let ids = orders::publish(&env.kafka, "contended.orders", &vec![Plan::Succeed; EVENTS]).await;
    let run = Run::start(&env, &["contended"]);
    let all = i64::try_from(EVENTS).unwrap();
    eventually(LIMIT, "the offsets to pass all", async || passed(&env, "contended").await == all).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "contended", &ids).await;
    let balance: i64 =
        sqlx::query_scalar("SELECT sum(balance)::bigint FROM account").fetch_one(&env.pool).await.unwrap();
    assert_eq!(balance, all);
    let deadlocks = deadlocks(&env.pool).await;
    assert!(deadlocks <= 6, "{deadlocks} deadlocks");
    for topic in ["contended.dlq", "contended.retry.1s"] {
        assert_eq!(env.kafka.read_all(topic).await.len(), 0, "{topic}");
    }
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Writes the effects of a batch with one statement.
async fn write(tx: &mut Tx<'_>, batch: &[Order], group: &str) -> Result<(), sqlx::Error> {
    let ids: Vec<Uuid> = batch.iter().map(|order| order.event_id.uuid()).collect();
    let numbers: Vec<i64> = batch.iter().map(|order| order.number).collect();
    sqlx::query(
        "INSERT INTO effect (event_id, consumer_group, number) SELECT id, $3, n FROM unnest($1, $2) AS e (id, n)",
    )
    .bind(ids)
    .bind(numbers)
    .bind(group)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

#[idempotent_handler(topic = "far.orders", group = "far", batch = 500)]
async fn far(tx: &mut Tx<'_>, batch: Vec<Order>) -> HandlerResult {
    Ok(write(tx, &batch, "far").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_answers_slowly_does_not_make_transactions_small() {
    let env = env("far", 1).await;
    let plans = vec![Plan::Succeed; 1_000];
    let ids = orders::publish(&env.kafka, "far.orders", &plans).await;
    let proxy = Proxy::start(tests::postgres::shared().await.port()).await;
    // Begin, check and COMMIT together take longer than a transaction should; the handler does not.
    proxy.delay(Duration::from_millis(12));
    let slow = env.clone().with("IDEM_DATABASE_URL", &proxy.url(&env.database_url));
    let run = Run::start(&slow, &["far"]);
    eventually(LIMIT, "the offset to pass all", async || passed(&env, "far").await == 1_000).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "far", &ids).await;
    let transactions: BTreeSet<i64> = orders::transactions(&env.pool, "far").await.into_values().collect();
    assert!(transactions.len() < 20, "{} transactions for 1,000 events", transactions.len());
}

#[idempotent_handler(topic = "placed.orders", group = "placed", batch = 100, retry = ["200ms"])]
async fn placed(tx: &mut Tx<'_>, batch: Vec<Order>, first: Delivery) -> HandlerResult {
    CALLS.fetch_add(1, Ordering::SeqCst);
    assert!(batch.len() <= 100);
    write(tx, &batch, "placed").await?;
    for (at, order) in batch.iter().enumerate() {
        match order.plan {
            Plan::Refuse => return Err(HandlerError::at(at, HandlerError::permanent("never"))),
            Plan::FailTimes(times) if first.attempt < times => {
                return Err(HandlerError::at(at, HandlerError::transient("not yet")));
            }
            _ => {}
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_failure_has_a_place_runs_again_without_that_event() {
    let env = env("placed", 1).await;
    let mut plans = vec![Plan::Succeed; 300];
    plans[150] = Plan::Refuse;
    plans[200] = Plan::FailTimes(1);
    let mut ids = orders::publish(&env.kafka, "placed.orders", &plans).await;
    let run = Run::start(&env, &["placed"]);
    eventually(LIMIT, "the offset to pass all", async || passed(&env, "placed").await == 300).await;
    eventually(LIMIT, "the retried one", async || orders::effect_count(&env.pool, "placed").await == 299).await;
    run.stop().await.unwrap();
    ids.remove(150);
    orders::assert_each_once(&env.pool, "placed", &ids).await;
    assert_eq!(reasons(&env, "placed").await, ["permanent"]);
    assert_eq!(env.kafka.read_all("placed.retry.200ms").await.len(), 1);
    assert!(CALLS.load(Ordering::SeqCst) < 100, "not one by one");
}

#[idempotent_handler(topic = "unplaced.orders", group = "unplaced", batch = 20, retry = [])]
async fn unplaced(tx: &mut Tx<'_>, batch: Vec<Order>) -> HandlerResult {
    write(tx, &batch, "unplaced").await?;
    if batch.iter().any(|order| order.plan == Plan::Refuse) {
        return Err(HandlerError::permanent("one of them"));
    }
    // A place that is not there is none.
    if batch.iter().any(|order| order.plan == Plan::FailTimes(9)) {
        return Err(HandlerError::at(batch.len(), HandlerError::transient("one of them")));
    }
    assert!(!batch.iter().any(|order| order.plan == Plan::PanicTimes(9)), "as planned");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_failure_has_no_place_is_searched_one_by_one() {
    let env = env("unplaced", 1).await;
    let mut plans = vec![Plan::Succeed; 60];
    plans[10] = Plan::Refuse;
    plans[30] = Plan::PanicTimes(9);
    plans[50] = Plan::FailTimes(9);
    let ids = orders::publish(&env.kafka, "unplaced.orders", &plans).await;
    let run = Run::start(&env, &["unplaced"]);
    eventually(LIMIT, "the offset to pass all", async || passed(&env, "unplaced").await == 60).await;
    run.stop().await.unwrap();
    let good: Vec<Uuid> =
        ids.iter().zip(&plans).filter(|(_, plan)| **plan == Plan::Succeed).map(|(id, _)| *id).collect();
    orders::assert_each_once(&env.pool, "unplaced", &good).await;
    let mut reasons = reasons(&env, "unplaced").await;
    reasons.sort_unstable();
    assert_eq!(reasons, ["exhausted", "panic", "permanent"]);
}

#[derive(serde::Deserialize, Event)]
struct Created {
    event_id: EventId,
    number: i64,
}

#[derive(serde::Deserialize, Event)]
struct Cancelled {
    event_id: EventId,
    number: i64,
}

async fn step(tx: &mut Tx<'_>, id: EventId, number: i64) -> HandlerResult {
    sqlx::query("INSERT INTO effect (event_id, consumer_group, number) VALUES ($1, 'mixed', $2)")
        .bind(id.uuid())
        .bind(number)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[idempotent_handler(topic = "mixed.orders", group = "mixed", event_type = "created", transaction = "shared")]
async fn created(tx: &mut Tx<'_>, event: Created) -> HandlerResult {
    step(tx, event.event_id, event.number).await
}

#[idempotent_handler(topic = "mixed.orders", group = "mixed", event_type = "cancelled", batch = 50)]
async fn cancelled(tx: &mut Tx<'_>, batch: Vec<Cancelled>) -> HandlerResult {
    for event in batch {
        step(tx, event.event_id, event.number).await?;
    }
    Ok(())
}

#[idempotent_handler(topic = "mixed.orders", group = "mixed", event_type = "audited")]
async fn audited(tx: &mut Tx<'_>, event: Created) -> HandlerResult {
    step(tx, event.event_id, event.number).await
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_of_one_topic_keep_its_order_whatever_they_share() {
    let env = env("mixed", 1).await;
    let mut ids = Vec::new();
    for number in 0..400_i64 {
        let id = EventId::now();
        // Runs of several lengths; "unknown" is nobody's and is skipped.
        let event_type = ["created", "created", "unknown", "created", "cancelled", "cancelled", "audited"]
            [usize::try_from(number / (1 + number / 100)).unwrap() % 7];
        let value = format!(r#"{{"event_id":"{id}","event_type":"{event_type}","number":{number}}}"#);
        drop(env.kafka.produce(Record::to("mixed.orders").value(&value)));
        if event_type != "unknown" {
            ids.push(id.uuid());
        }
    }
    let run = Run::start(&env, &["mixed"]);
    eventually(LIMIT, "the offset to pass all", async || passed(&env, "mixed").await == 400).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "mixed", &ids).await;
    let numbers: Vec<i64> =
        sqlx::query_scalar("SELECT number FROM effect ORDER BY seq").fetch_all(&env.pool).await.unwrap();
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert_eq!(reasons(&env, "mixed").await, [""; 0]);
}

#[idempotent_handler(topic = "later.orders", group = "later", batch = 50, retry = ["2s"])]
async fn later(tx: &mut Tx<'_>, batch: Vec<Order>, first: Delivery) -> HandlerResult {
    if first.attempt == 0 {
        return Err(HandlerError::at(0, HandlerError::transient("not yet")));
    }
    assert_eq!(&*first.topic, "later.orders", "the origin, on the retry topic too");
    write(tx, &batch, "later").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_retry_topic_share_transactions_when_they_are_due() {
    let env = env("later", 1).await;
    // Fewer than open the circuit.
    let ids = orders::publish(&env.kafka, "later.orders", &vec![Plan::Succeed; 9]).await;
    let run = Run::start(&env, &["later"]);
    eventually(LIMIT, "the retries", async || env.kafka.read_all("later.retry.2s").await.len() == 9).await;
    run.stop().await.unwrap();
    // They fail one after the other, and a lane that is there at each of their times need not wait for the next. So it
    // comes when all of them are due.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let run = Run::start(&env, &["later"]);
    eventually(LIMIT, "all of them", async || orders::effect_count(&env.pool, "later").await == 9).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "later", &ids).await;
    let transactions: BTreeSet<i64> = orders::transactions(&env.pool, "later").await.into_values().collect();
    assert!(transactions.len() < 9, "{transactions:?}");
}

#[idempotent_handler(topic = "outage.orders", group = "outage", transaction = "shared", retry = ["1s"])]
async fn outage(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "outage").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_one_outcome_for_all_and_nothing_is_moved() {
    const EVENTS: usize = 6_000;
    let mut postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("app").await.unwrap();
    let env = TestEnv::on(&url, tests::Kafka::shared().await);
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("outage.orders", 2).await;
    let ids = orders::publish(&env.kafka, "outage.orders", &vec![Plan::Succeed; EVENTS]).await;
    let run = Run::start(&env, &["outage"]);
    let count =
        async || -> i64 { sqlx::query_scalar("SELECT count(*) FROM effect").fetch_one(&env.pool).await.unwrap_or(0) };
    eventually(LIMIT, "the first orders", async || count().await > 500).await;
    postgres.stop_immediate().await.unwrap();
    eventually(LIMIT, "readiness to say why", async || {
        run.health.reasons().iter().any(|reason| reason.contains("waits at offset"))
    })
    .await;
    assert!(run.health.reasons().len() <= 3, "one for each partition, and the position: {:?}", run.health);
    postgres.start_again().await.unwrap();
    let all = i64::try_from(EVENTS).unwrap();
    eventually(LIMIT, "the offsets to pass all", async || passed(&env, "outage").await == all).await;
    eventually(LIMIT, "readiness to return", async || run.health.is_ready()).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "outage", &ids).await;
    for topic in ["outage.dlq", "outage.retry.1s"] {
        assert_eq!(env.kafka.read_all(topic).await.len(), 0, "{topic}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    const EVENTS: usize = 12_000;
    let env = env("together", 4).await.with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "1000");
    let ids = orders::publish(&env.kafka, "together.orders", &vec![Plan::Succeed; EVENTS]).await;
    let program = workspace_program("tests", "consumer");
    for kill in 1..=3 {
        let mut running = Program::start(&program, &["together"], &env.variables());
        eventually(LIMIT, "some more orders", async || {
            orders::effect_count(&env.pool, "together").await > kill * EVENTS / 8
        })
        .await;
        running.kill().await;
        // What Kafka was told is below what the database holds, and that below what is done.
        let done: BTreeMap<Uuid, i64> = orders::effects(&env.pool, "together").await;
        let written: i64 = sqlx::query_scalar(
            "SELECT coalesce(sum(next_offset), 0)::bigint FROM consumer_progress WHERE topic = 'together.orders'",
        )
        .fetch_one(&env.pool)
        .await
        .unwrap();
        assert!(passed(&env, "together").await <= written);
        assert!(written <= i64::try_from(done.len()).unwrap());
    }
    let mut running = Program::start(&program, &["together"], &env.variables());
    let all = i64::try_from(EVENTS).unwrap();
    eventually(LIMIT, "the offsets to pass all", async || passed(&env, "together").await == all).await;
    running.terminate();
    assert!(running.wait(LIMIT).await.success());
    orders::assert_each_once(&env.pool, "together", &ids).await;
    assert_eq!(guards(&env.pool).await, 0);
}
