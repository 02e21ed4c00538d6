//! The testing kit: handlers that are idempotent pass at every crash point, and those that are not are
//! found out. It is driven as a user would.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::Charge;
use idem_runtime::prelude::*;
use idem_runtime::testing::{CrashPoint, End, Harness, ProviderFault, TestingError};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Debug, serde::Deserialize, Event)]
struct Order {
    event_id: EventId,
    order_id: i64,
    amount: i64,
}

/// A bench with the orders' table, and an event.
async fn bench() -> (Harness, Value) {
    let bench = Harness::start().await.unwrap();
    bench.execute("CREATE TABLE orders (id bigint, paid bigint); INSERT INTO orders VALUES (7, 0)").await.unwrap();
    (bench, json!({"event_id": EventId::now(), "order_id": 7, "amount": 1900}))
}

async fn paid(db: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT paid FROM orders WHERE id = 7").fetch_one(db).await
}

async fn pay(db: &mut PgConnection, order: &Order) -> Result<(), sqlx::Error> {
    let statement = sqlx::query("UPDATE orders SET paid = paid + $2 WHERE id = $1");
    statement.bind(order.order_id).bind(order.amount).execute(db).await.map(drop)
}

#[idempotent_handler(topic = "kit.pays", group = "kit-pays")]
async fn pays(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    Ok(pay(tx, &order).await?)
}

#[idempotent_handler(topic = "kit.charges", group = "kit-charges", money = true)]
async fn charges(tx: &mut Tx<'_>, order: Order, payments: MoneyClient) -> HandlerResult {
    payments.post("/charges").json(&json!({"amount": order.amount})).send().await?;
    payments.operation("fee").post("/fees").json(&json!({"amount": 30})).send().await?;
    Ok(pay(tx, &order).await?)
}

#[idempotent_handler(topic = "kit.shares", group = "kit-shares", transaction = "shared")]
async fn shares(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    Ok(pay(tx, &order).await?)
}

#[idempotent_handler(topic = "kit.batches", group = "kit-batches", batch = 100)]
async fn batches(tx: &mut Tx<'_>, orders: Vec<Order>) -> HandlerResult {
    for order in &orders {
        pay(tx, order).await?;
    }
    Ok(())
}

/// Fails for the first three times.
#[idempotent_handler(topic = "kit.later", group = "kit-later", retry = ["10m", "6h", "2d"])]
async fn later(tx: &mut Tx<'_>, order: Order, from: Delivery) -> HandlerResult {
    pay(tx, &order).await?;
    if from.attempt < 3 { Err(HandlerError::transient("not yet")) } else { Ok(()) }
}

#[idempotent_handler(topic = "kit.ordered", group = "kit-ordered", order = "key", retry = ["10m", "6h"])]
async fn ordered(tx: &mut Tx<'_>, order: Order, from: Delivery) -> HandlerResult {
    pay(tx, &order).await?;
    if from.attempt < 2 { Err(HandlerError::transient("not yet")) } else { Ok(()) }
}

#[idempotent_handler(topic = "kit.gives-up", group = "kit-gives-up", retry = ["1h"])]
async fn gives_up(_tx: &mut Tx<'_>, _order: Order) -> HandlerResult {
    Err(HandlerError::transient("never"))
}

#[idempotent_handler(topic = "kit.does-nothing", group = "kit-does-nothing")]
async fn does_nothing(_tx: &mut Tx<'_>, _order: Order) -> HandlerResult {
    Ok(())
}

// Handlers with the mistakes that the kit is for.

#[idempotent_handler(topic = "kit.another", group = "kit-another")]
async fn writes_elsewhere(tx: &mut Tx<'_>, order: Order, pool: State<PgPool>) -> HandlerResult {
    pay(&mut *pool.acquire().await?, &order).await?;
    sqlx::query("SELECT 1").execute(&mut **tx).await?;
    Ok(())
}

#[idempotent_handler(topic = "kit.applied", group = "kit-applied", money = true)]
async fn pays_for_applied_only(tx: &mut Tx<'_>, order: Order, payments: MoneyClient) -> HandlerResult {
    match payments.post("/charges").json(&json!({"amount": order.amount})).send().await? {
        Charge::Applied(_) => pay(tx, &order).await?,
        // As if the effects of a call that was carried out before were there.
        Charge::AlreadyProcessed => {}
    }
    Ok(())
}

#[idempotent_handler(topic = "kit.only", group = "kit-only", money = true)]
async fn charges_only(_tx: &mut Tx<'_>, order: Order, payments: MoneyClient) -> HandlerResult {
    payments.post("/charges").json(&json!({"amount": order.amount})).send().await?;
    Ok(())
}

/// Whether it was called before.
#[derive(Default)]
struct Called(AtomicBool);

#[idempotent_handler(topic = "kit.another-way", group = "kit-another-way", money = true)]
async fn takes_another_way(
    tx: &mut Tx<'_>,
    order: Order,
    payments: MoneyClient,
    called: State<Called>,
) -> HandlerResult {
    if !called.0.swap(true, Ordering::SeqCst) {
        payments.post("/charges").json(&json!({"amount": order.amount})).send().await?;
    }
    Ok(pay(tx, &order).await?)
}

/// The address of a provider.
struct Desk(String);

#[idempotent_handler(topic = "kit.by-hand", group = "kit-by-hand")]
async fn charges_by_hand(tx: &mut Tx<'_>, order: Order, desk: State<Desk>) -> HandlerResult {
    // A key of its own for each attempt, as many a program has it.
    let body = json!({"amount": order.amount}).to_string();
    let request = format!(
        "POST /charges HTTP/1.1\r\nhost: desk\r\nidempotency-key: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        EventId::now(),
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(&desk.0).await.transient()?;
    stream.write_all(request.as_bytes()).await.transient()?;
    stream.read_to_end(&mut Vec::new()).await.transient()?;
    Ok(pay(tx, &order).await?)
}

#[tokio::test]
async fn an_effect_in_the_transaction_passes_at_every_crash_point() {
    let (bench, event) = bench().await;
    let found = bench.handler("pays").idempotence(&event, paid).await.unwrap();
    assert!(found.holds(), "{found}");
    let scenarios = found.scenarios().join("\n");
    for point in ["twice", "BeforeHandler", "BeforeCommit", "AfterCommit"] {
        assert!(scenarios.contains(point), "{scenarios}");
    }
    assert_eq!(found.scenarios().len(), 4);
}

#[tokio::test]
async fn so_do_money_calls_after_each_of_them_and_with_lost_answers() {
    let (bench, event) = bench().await;
    bench.provider().next(ProviderFault::DropAfter);
    let found = bench.handler("charges").idempotence(&event, paid).await.unwrap();
    assert!(found.holds(), "{found}");
    let after_calls = found.scenarios().iter().filter(|scenario| scenario.contains("AfterMoneyCall")).count();
    // The first call twice, as its answer was lost, and the second one.
    assert_eq!(after_calls, 3, "{:#?}", found.scenarios());
    let settled = found.scenarios().iter().filter(|scenario| scenario.contains("AfterSettling")).count();
    assert_eq!(settled, 1, "{:#?}", found.scenarios());
    assert_eq!(bench.provider().charges().len(), 2);
}

#[tokio::test]
async fn an_effect_that_waits_for_the_first_answer_is_found_out_where_that_was_recorded_without_it() {
    let (bench, event) = bench().await;
    let found = bench.handler("pays_for_applied_only").idempotence(&event, paid).await.unwrap();
    let text = found.to_string();
    assert!(text.contains("CrashPoint::AfterSettling") && text.contains("effects:    0"), "{text}");
    assert!(!text.contains("CrashPoint::BeforeCommit") && !text.contains("twice"), "{text}");
}

#[tokio::test]
async fn a_point_that_is_not_reached_again_shows_nothing() {
    let (bench, event) = bench().await;
    let found = bench.handler("takes_another_way").state(Called::default()).idempotence(&event, paid).await.unwrap();
    let text = found.to_string();
    assert!(text.contains("CrashPoint::AfterMoneyCall") && text.contains("not reached again"), "{text}");
    assert!(found.scenarios().iter().all(|scenario| !scenario.contains("AfterMoneyCall")), "{:?}", found.scenarios());
}

#[tokio::test]
async fn so_do_shared_transactions_and_batches() {
    let (bench, event) = bench().await;
    for name in ["shares", "batches"] {
        let found = bench.handler(name).idempotence(&event, paid).await.unwrap();
        assert!(found.holds(), "{found}");
        assert_eq!(found.scenarios().len(), 4, "{:#?}", found.scenarios());
        bench.execute("UPDATE orders SET paid = 0").await.unwrap();
    }
}

#[tokio::test]
async fn retries_of_hours_and_days_take_no_time() {
    let (bench, event) = bench().await;
    let started = Instant::now();
    let delivered = bench.handler("later").deliver(&event).await.unwrap();
    assert_eq!(delivered.end, End::Done);
    assert_eq!(delivered.waits, [600, 21_600, 172_800].map(Duration::from_secs));
    assert_eq!(paid(&mut bench.connect().await.unwrap()).await.unwrap(), 1900, "once, at the fourth attempt");
    assert_eq!(bench.handler("later").deliver(&event).await.unwrap().end, End::Duplicate);

    let delivered = bench.handler("gives_up").deliver(&event).await.unwrap();
    assert_eq!(delivered.waits, [Duration::from_secs(3_600)]);
    let End::DeadLetter { reason, error } = delivered.end else { panic!("{:?}", delivered.end) };
    assert_eq!((&*reason, error.contains("never")), ("exhausted", true), "{error}");
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn so_do_the_rows_of_events_that_keep_their_order() {
    let (bench, event) = bench().await;
    let delivered = bench.handler("ordered").key("7").deliver(&event).await.unwrap();
    assert_eq!(delivered.end, End::Done);
    assert_eq!(delivered.waits, [600, 21_600].map(Duration::from_secs));
    assert_eq!(paid(&mut bench.connect().await.unwrap()).await.unwrap(), 1900);
}

#[tokio::test]
async fn an_effect_over_another_connection_is_found_out() {
    let (bench, event) = bench().await;
    let pool = PgPool::connect(&bench.database_url()).await.unwrap();
    let found = bench.handler("writes_elsewhere").state(pool).idempotence(&event, paid).await.unwrap();
    assert!(!found.holds());
    let text = found.to_string();
    assert!(text.contains("CrashPoint::BeforeCommit") && text.contains("3800"), "{text}");
    assert!(!text.contains("CrashPoint::AfterCommit") && !text.contains("twice"), "{text}");
}

#[tokio::test]
async fn a_call_without_the_client_is_found_out() {
    let (bench, event) = bench().await;
    let desk = Desk(bench.provider().url().replace("http://", ""));
    let found = bench.handler("charges_by_hand").state(desk).idempotence(&event, paid).await.unwrap();
    let text = found.to_string();
    assert!(text.contains("CrashPoint::BeforeCommit") && text.contains("2 instead of 1"), "{text}");
    assert!(!text.contains("effects:"), "the transaction was rolled back: {text}");
}

#[tokio::test]
#[should_panic(expected = "could not be tested: no handler `pay` is linked into the test, which has: kit::batches")]
async fn a_name_is_not_guessed() {
    let (bench, event) = bench().await;
    bench.handler("pay").assert_idempotent(&event, paid).await;
}

#[tokio::test]
async fn what_shows_nothing_is_no_success() {
    let (bench, event) = bench().await;
    let found = bench.handler("does_nothing").idempotence(&event, paid).await.unwrap();
    assert!(!found.holds() && found.to_string().contains("changed nothing that the test looks at: 0"), "{found}");
    // A charge alone does not make the test look at anything.
    let found = bench.handler("charges_only").idempotence(&event, paid).await.unwrap();
    assert!(!found.holds() && found.to_string().contains("changed nothing that the test looks at: 0"), "{found}");
    let found = bench.handler("gives_up").idempotence(&event, paid).await.unwrap();
    assert!(!found.holds() && found.to_string().contains("dead letter (exhausted"), "{found}");
}

#[tokio::test]
async fn a_crash_by_hand_and_its_redelivery() {
    let (bench, event) = bench().await;
    let (pays, mut db) = (bench.handler("pays"), bench.connect().await.unwrap());
    pays.crash(CrashPoint::BeforeCommit, &event).await.unwrap();
    assert_eq!(paid(&mut db).await.unwrap(), 0);
    pays.crash(CrashPoint::AfterCommit, &event).await.unwrap();
    assert_eq!(paid(&mut db).await.unwrap(), 1900);
    assert_eq!(pays.deliver(&event).await.unwrap().end, End::Duplicate);
    assert_eq!(paid(&mut db).await.unwrap(), 1900);
    let never = pays.crash(CrashPoint::AfterMoneyCall, &event).await;
    assert!(matches!(never, Err(TestingError::NotReached { .. })), "{never:?}");
}

#[tokio::test]
async fn what_waits_says_for_what() {
    let (bench, event) = bench().await;
    bench.provider().always(Some(ProviderFault::Status(401)));
    let waits = bench.handler("charges").deliver(&event).await.unwrap_err().to_string();
    assert!(waits.contains("401"), "{waits}");
    let lacks = bench.handler("writes_elsewhere").deliver(&event).await.unwrap_err().to_string();
    assert!(lacks.contains("needs a State"), "{lacks}");
}
