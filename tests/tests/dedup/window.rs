//! What a group may have forgotten, and whose backlog keeps a day.

use idem_runtime::ops::{groups, partitions};
use idem_runtime::prelude::*;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use tests::orders::{self, Order, Plan};
use tests::{Record, Run, TestEnv, cli, eventually};
use uuid::Uuid;

use crate::{DAY, Invoice, LIMIT, age, day, has_read_all, id_at, narrow, now, offset_is, ops, produce, reasons};

#[idempotent_handler(topic = "forgotten.orders", group = "forgotten-dlq", retry = ["100ms"])]
async fn forgotten_dlq(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    // What is replayed fails once, and stays allowed over its retry.
    let plan = if delivery.header("idem-replay-count").is_some() { Plan::FailTimes(1) } else { order.plan.clone() };
    orders::handle(tx, Order { plan, ..order }, &delivery, "forgotten-dlq").await
}

#[idempotent_handler(topic = "forgotten.orders", group = "forgotten-skip", retry = ["100ms"], expired = "skip")]
async fn forgotten_skip(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "forgotten-skip").await
}

#[idempotent_handler(topic = "forgotten.orders", group = "forgotten-process", retry = ["100ms"], expired = "process")]
async fn forgotten_process(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "forgotten-process").await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_been_forgotten_is_dead_lettered_skipped_or_processed_as_its_handler_says() {
    let env = narrow().await;
    env.kafka.create_topic("forgotten.orders", 1).await;
    let groups = ["forgotten-dlq", "forgotten-skip", "forgotten-process"];
    let now = now(&env.pool).await;
    let (old, recent) = (id_at(now, 5, 1), id_at(now, 1, 2));
    produce(&env, "forgotten.orders", &[old, recent]).await;
    let run = Run::start(&env, &groups);
    for group in groups {
        offset_is(&env, group, "forgotten.orders", 2).await;
        has_read_all(&env, group).await;
    }
    let emptied = partitions::sweep(&ops(&env)).await.unwrap().emptied;
    assert_eq!(emptied, [""; 0], "processed just now: remembered for the window, however old the id is");

    age(&env.pool, 3).await;
    let emptied = partitions::sweep(&ops(&env)).await.unwrap().emptied;
    assert_eq!(emptied, [day(&env.pool, 5).await], "yesterday is in the window");
    produce(&env, "forgotten.orders", &[old, recent]).await;
    for group in groups {
        offset_is(&env, group, "forgotten.orders", 4).await;
    }
    assert_eq!(reasons(&env, "forgotten-dlq.dlq").await, ["expired"]);
    assert_eq!(reasons(&env, "forgotten-skip.dlq").await, [""; 0]);
    for (group, times) in groups.into_iter().zip([1, 1, 2]) {
        let effects = orders::effects(&env.pool, group).await;
        assert_eq!((effects[&old], effects[&recent]), (times, 1), "{group}");
    }

    // The letter goes back only if somebody says so, for this event.
    let replay = ["dlq", "replay", "--group", "forgotten-dlq", "--json"];
    let id = old.to_string();
    for more in [&[][..], &["--event-id", &id]] {
        let refused = cli::idem(env.variables(), &[&replay[..], more].concat()).await.json();
        assert_eq!((&refused["expired"], &refused["replayed"]), (&1.into(), &0.into()), "{refused}");
        assert_eq!(refused["events"][0]["action"], "expired");
    }
    let allowed = ["--event-id", &id, "--allow-expired"];
    let allowed = cli::idem(env.variables(), &[&replay[..], &allowed].concat()).await.json();
    assert_eq!((&allowed["states"]["expired"], &allowed["replayed"]), (&1.into(), &1.into()), "{allowed}");
    eventually(LIMIT, "the allowed event", async || {
        orders::effects(&env.pool, "forgotten-dlq").await.get(&old) == Some(&2)
    })
    .await;
    assert_eq!(env.kafka.read_all("forgotten-dlq.retry.100ms").await.len(), 1, "it failed once in between");
    run.stop().await.unwrap();
    assert_eq!(reasons(&env, "forgotten-dlq.dlq").await, ["expired"]);

    // A running program does by itself what was asked for here.
    let row = "INSERT INTO processed_event VALUES ($1, 'another', now() - interval '4 days')";
    sqlx::query(row).bind(id_at(now, 4, 9)).execute(&env.pool).await.unwrap();
    let run = Run::start(&env, &groups);
    eventually(LIMIT, "the day to be emptied", async || {
        let left = "SELECT count(*) FROM processed_event WHERE consumer_group = 'another'";
        sqlx::query_scalar::<_, i64>(left).fetch_one(&env.pool).await.unwrap() == 0
    })
    .await;
    run.stop().await.unwrap();
}

#[idempotent_handler(topic = "down.orders", group = "down", retry = [])]
async fn down(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "down").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_down_for_days_finds_its_backlog_and_the_table_says_who_kept_it() {
    let env = narrow().await;
    env.kafka.create_topic("down.orders", 1).await;
    let now = now(&env.pool).await;
    produce(&env, "down.orders", &[id_at(now, 5, 1)]).await;
    let run = Run::start(&env, &["down"]);
    offset_is(&env, "down", "down.orders", 1).await;
    has_read_all(&env, "down").await;
    let running = cli::idem(env.variables(), &["group", "forget", "down", "--yes"]).await;
    assert_eq!(running.status, Some(1));
    assert!(running.stderr.contains("has running members"), "{}", running.stderr);
    run.stop().await.unwrap();

    // Five days pass without it; events are published meanwhile, and others work.
    age(&env.pool, 5).await;
    let back = "UPDATE consumer_progress SET event_time = event_time - interval '5 days', \
                   caught_up_at = caught_up_at - interval '5 days', updated_at = updated_at - interval '5 days'";
    sqlx::query(back).execute(&env.pool).await.unwrap();
    let backlog: Vec<Uuid> =
        (2..=40).map(|number| id_at(now, 5 - i64::try_from(number % 5).unwrap(), number)).collect();
    produce(&env, "down.orders", &backlog).await;

    let swept = partitions::sweep(&ops(&env)).await.unwrap();
    assert_eq!(swept.emptied, [""; 0]);
    let kept = day(&env.pool, 5).await;
    let listed = cli::idem(env.variables(), &["partitions", "--json"]).await.json();
    let of_day = listed["partitions"].as_array().unwrap().iter().find(|part| part["name"] == kept.as_str()).unwrap();
    assert_eq!((&of_day["held_by"], &of_day["rows"]), (&serde_json::json!(["down"]), &1.into()), "{of_day}");
    assert!(of_day["droppable_from"].as_str().unwrap() < listed["now"].as_str().unwrap(), "{of_day}");
    let patient = env.clone().with("IDEM_DEDUP_MAX_HOLD", "20d");
    assert_eq!(partitions::sweep(&ops(&patient)).await.unwrap().emptied, [""; 0]);

    let run = Run::start(&env, &["down"]);
    eventually(LIMIT, "the backlog", async || orders::effect_count(&env.pool, "down").await == 40).await;
    has_read_all(&env, "down").await;
    assert_eq!(partitions::sweep(&ops(&env)).await.unwrap().emptied, [kept], "everybody has read it");
    run.stop().await.unwrap();
    assert_eq!(reasons(&env, "down.dlq").await, [""; 0]);

    // It does not come back: what it keeps is let go.
    sqlx::query(back).execute(&env.pool).await.unwrap();
    age(&env.pool, 3).await;
    let held = partitions::list(&ops(&env)).await.unwrap();
    assert!(held.partitions.iter().any(|part| part.held_by == ["down"]), "{held:#?}");
    let forgotten = cli::idem(env.variables(), &["group", "forget", "down", "--yes", "--json"]).await.json();
    assert!(forgotten["positions"].as_u64().unwrap() >= 2, "{forgotten}");
    let held = partitions::list(&ops(&env)).await.unwrap();
    assert!(held.partitions.iter().all(|part| part.held_by.is_empty()), "{held:#?}");
    let known = groups::list(&ops(&env)).await.unwrap();
    assert_eq!((known[0].group.as_str(), known[0].partitions), ("down", 0));
    assert!(known[0].horizon.is_some(), "what it may have forgotten stays known");
    assert!(!partitions::sweep(&ops(&env)).await.unwrap().emptied.is_empty());
}

#[idempotent_handler(topic = "marked.orders", group = "marked", retry = [])]
async fn marked(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "marked").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_ends_without_a_record_is_read_to_its_end_and_no_position_lies_in_the_future() {
    let env = narrow().await;
    env.kafka.create_topic("marked.orders", 1).await;
    let (id, value) = orders::order(0, &Plan::Succeed);
    let ahead = now(&env.pool).await + 1_800_000;
    let mut config = env.kafka.config();
    config.set("transactional.id", "marked");
    tokio::task::spawn_blocking(move || {
        let producer: FutureProducer = config.create().unwrap();
        producer.init_transactions(LIMIT).unwrap();
        producer.begin_transaction().unwrap();
        let record = FutureRecord::<(), [u8]>::to("marked.orders").payload(&value).timestamp(ahead);
        drop(producer.send_result(record).unwrap());
        producer.commit_transaction(LIMIT).unwrap();
    })
    .await
    .unwrap();
    let run = Run::start(&env, &["marked"]);
    // The marker behind the record is an offset that no position passes.
    has_read_all(&env, "marked").await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "marked", &[id]).await;
    let row = "SELECT next_offset, event_time <= now() FROM consumer_progress WHERE topic = 'marked.orders'";
    assert_eq!(sqlx::query_as::<_, (i64, bool)>(row).fetch_one(&env.pool).await.unwrap(), (1, true));
}

#[idempotent_handler(topic = "newcomer.orders", group = "newcomer", concurrency = 8, retry = [])]
async fn newcomer(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "newcomer").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_group_reads_a_months_history_and_a_reset_gives_duplicates() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("newcomer.orders", 2).await;
    let now = now(&env.pool).await;
    let ids: Vec<Uuid> = (0..=60).map(|number| id_at(now, 31 - i64::try_from(number / 2).unwrap(), number)).collect();
    // The last of them is of this evening, and within the skew.
    produce(&env, "newcomer.orders", &ids).await;
    let run = Run::start(&env, &["newcomer"]);
    offset_is(&env, "newcomer", "newcomer.orders", 61).await;
    has_read_all(&env, "newcomer").await;
    run.stop().await.unwrap();
    partitions::sweep(&ops(&env)).await.unwrap();
    env.kafka.reset_offsets("newcomer", "newcomer.orders", &["--to-earliest"]).await;
    let run = Run::start(&env, &["newcomer"]);
    eventually(LIMIT, "the position to be taken back and all to be read again", async || {
        let read = "SELECT count(*) FROM consumer_progress WHERE consumer_group = 'newcomer' \
                       AND topic = 'newcomer.orders' AND epoch >= 2 AND caught_up_at IS NOT NULL";
        sqlx::query_scalar::<_, i64>(read).fetch_one(&env.pool).await.unwrap() == 2
    })
    .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "newcomer", &ids).await;
    assert_eq!(reasons(&env, "newcomer.dlq").await, [""; 0]);
}

#[idempotent_handler(topic = "waiting.orders", group = "waiting-retry", retry = ["1h"])]
async fn waiting_retry(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "waiting-retry").await
}

#[idempotent_handler(topic = "waiting.orders", group = "waiting-row", retry = ["1h"], order = "key")]
async fn waiting_row(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "waiting-row").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_waits_for_its_retry_keeps_its_day() {
    let env = narrow().await;
    env.kafka.create_topic("waiting.orders", 1).await;
    let now = now(&env.pool).await;
    let then = id_at(now, 5, 0);
    for (number, plan) in [(1, Plan::Succeed), (2, Plan::FailTimes(1))] {
        let value = orders::payload(id_at(now, 5, number), 0, &plan);
        let at = i64::try_from(then.as_u128() >> 80).unwrap();
        env.kafka.produce(Record::to("waiting.orders").key("same").value(&value).timestamp(at)).await;
    }
    let groups = ["waiting-retry", "waiting-row"];
    let run = Run::start(&env, &groups);
    for group in groups {
        offset_is(&env, group, "waiting.orders", 2).await;
        let main = "SELECT count(*) FROM consumer_progress WHERE consumer_group = $1 AND topic = 'waiting.orders' \
                       AND caught_up_at IS NOT NULL";
        eventually(LIMIT, "the main topic to be read", async || {
            sqlx::query_scalar::<_, i64>(main).bind(group).fetch_one(&env.pool).await.unwrap() == 1
        })
        .await;
    }
    age(&env.pool, 3).await;
    assert_eq!(partitions::sweep(&ops(&env)).await.unwrap().emptied, [""; 0]);
    let kept = day(&env.pool, 5).await;
    let listed = partitions::list(&ops(&env)).await.unwrap().partitions;
    assert_eq!(listed.iter().find(|part| part.name == kept).unwrap().held_by, groups);
    run.stop().await.unwrap();
    let impatient = env.with("IDEM_DEDUP_MAX_HOLD", "3d");
    assert_eq!(partitions::sweep(&ops(&impatient)).await.unwrap().emptied, [kept], "not for ever");
}

#[idempotent_handler(topic = "natural.invoices", group = "natural", retry = [])]
async fn natural(tx: &mut Tx<'_>, event: Invoice) -> HandlerResult {
    sqlx::query("INSERT INTO effect (event_id, consumer_group, number) VALUES (gen_random_uuid(), 'natural', $1)")
        .bind(event.invoice)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_natural_key_is_forgotten_by_its_age_and_the_time_of_its_record_tells_a_redelivery() {
    let env = narrow().await;
    let any_time = [
        ("message.timestamp.before.max.ms", "9223372036854775807"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
    ];
    env.kafka.create_topic_with_config("natural.invoices", 1, &any_time).await;
    let now = now(&env.pool).await;
    let send = async |number: i64, at: i64| {
        let value = format!(r#"{{"invoice":{number}}}"#);
        env.kafka.produce(Record::to("natural.invoices").value(&value).timestamp(at)).await
    };
    let run = Run::start(&env, &["natural"]);
    send(1, now - 10 * DAY).await;
    send(1, now - 10 * DAY).await;
    send(2, now - 1_000).await;
    offset_is(&env, "natural", "natural.invoices", 3).await;
    has_read_all(&env, "natural").await;
    let ten_days = "UPDATE processed_event SET processed_at = now() - interval '10 days' \
                     WHERE event_id = (SELECT event_id FROM processed_event ORDER BY processed_at LIMIT 1)";
    sqlx::query(ten_days).execute(&env.pool).await.unwrap();
    assert_eq!(partitions::sweep(&ops(&env)).await.unwrap().deleted, 1);
    // The old record again, the young one again, the old key in a new record; and one that could never be
    // found to be a redelivery.
    send(1, now - 10 * DAY).await;
    send(2, now - 1_000).await;
    send(1, now).await;
    send(3, now + 2 * 3_600_000).await;
    offset_is(&env, "natural", "natural.invoices", 7).await;
    run.stop().await.unwrap();
    let effects: Vec<i64> =
        sqlx::query_scalar("SELECT number FROM effect ORDER BY seq").fetch_all(&env.pool).await.unwrap();
    assert_eq!(effects, [1, 2, 1], "the last one is a new event");
    assert_eq!(reasons(&env, "natural.dlq").await, ["expired", "future"]);
}

#[idempotent_handler(topic = "strict.orders", group = "strict", retry = ["1h", "1d"])]
async fn strict(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "strict").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_too_narrow_is_told_with_both_numbers_before_anything_is_consumed() {
    let env = narrow().await.with("IDEM_STRICT", "true").with("IDEM_DEDUP_WINDOW", "26h");
    env.kafka.create_topic_with_config("strict.orders", 1, &[("retention.ms", "432000000")]).await;
    let error = Run::start(&env, &["strict"]).ended(LIMIT).await.expect_err("too narrow").to_string();
    for part in [
        "topic `strict.orders` keeps events for 5d (retention.ms=432000000), and IDEM_DEDUP_WINDOW is 26h",
        "group `strict` retries for 25h in all, clocks may differ by 1h, and IDEM_DEDUP_WINDOW is 26h",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let wrong = env.clone().with("IDEM_DEDUP_WINDOW", "1h");
    let wrong = cli::idem(wrong.variables(), &["config", "check"]).await;
    assert!(wrong.stderr.contains("IDEM_DEDUP_WINDOW: is not longer than IDEM_DEDUP_CLOCK_SKEW"), "{}", wrong.stderr);
    // Without IDEM_STRICT they are warnings.
    let run = Run::start(&env.with("IDEM_STRICT", "false"), &["strict"]);
    eventually(LIMIT, "it to run", async || run.health.is_ready()).await;
    run.stop().await.unwrap();
}
