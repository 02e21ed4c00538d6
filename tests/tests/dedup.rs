//! The dedup table stays correct and small: days are added and emptied, a group that may have forgotten
//! an event says so, and nobody's backlog is taken for forgotten.

use std::time::Duration;

use idem_runtime::Config;
use idem_runtime::ops::{Ops, groups, partitions, status};
use idem_runtime::prelude::*;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use sqlx::PgPool;
use tests::orders::{self, Order, Plan};
use tests::{Record, Run, TestEnv, cli, eventually};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(60);
const DAY: i64 = 86_400_000;

fn ops(env: &TestEnv) -> Ops {
    Ops::new(Config::from_vars(env.variables()).unwrap())
}

/// A window of two days; the groups may differ by an hour.
async fn narrow() -> TestEnv {
    let env = TestEnv::new().await.with("IDEM_DEDUP_WINDOW", "2d").with("IDEM_DEDUP_CLOCK_SKEW", "1h");
    orders::create_tables(&env.pool).await;
    env
}

async fn now(pool: &PgPool) -> i64 {
    let now = "SELECT (extract(epoch FROM now()) * 1000)::bigint";
    sqlx::query_scalar(now).fetch_one(pool).await.unwrap()
}

/// An id of some time on the UTC day so many days ago; the 20th hour, which today may not have come yet.
fn id_at(now: i64, days_ago: i64, number: u64) -> Uuid {
    let evening = now - now % DAY - days_ago * DAY + 20 * 3_600_000 + i64::try_from(number % 1_000).unwrap();
    id_of(if days_ago == 0 { evening.min(now) } else { evening }, number)
}

fn id_of(millis: i64, number: u64) -> Uuid {
    Uuid::from_u128(u128::try_from(millis).unwrap() << 80 | 0x7000_8000_0000_0000_0000 | u128::from(number))
}

/// The name of the partition of the UTC day so many days ago.
async fn day(pool: &PgPool, days_ago: i32) -> String {
    let name = "SELECT idem_partition_of((now() AT TIME ZONE 'UTC')::date - $1)";
    sqlx::query_scalar(name).bind(days_ago).fetch_one(pool).await.unwrap()
}

async fn produce(env: &TestEnv, topic: &str, ids: &[Uuid]) {
    let sent = ids.iter().map(|id| {
        let value = orders::payload(*id, 0, &Plan::Succeed);
        env.kafka.produce(Record::to(topic).key(&id.to_string()).value(&value))
    });
    futures_util::future::join_all(sent.collect::<Vec<_>>()).await;
}

/// As if all that has been processed had been processed so many days earlier.
async fn age(pool: &PgPool, days: i32) {
    let older = "UPDATE processed_event SET processed_at = processed_at - $1 * interval '1 day'";
    sqlx::query(older).bind(days).execute(pool).await.unwrap();
}

/// Waits until the database knows that a group has read everything.
async fn has_read_all(env: &TestEnv, group: &str) {
    let open = "SELECT count(*) FROM consumer_progress WHERE consumer_group = $1 AND topic <> $1 || '.replay' \
                   AND (event_time IS NULL OR topic NOT LIKE $1 || '.retry.%') \
                   AND (caught_up_at IS NULL OR caught_up_at < now() - interval '1 hour')";
    eventually(LIMIT, "the group to have read all", async || {
        let known = "SELECT count(*) FROM consumer_progress WHERE consumer_group = $1";
        let count = async |query: &'static str| {
            sqlx::query_scalar::<_, i64>(query).bind(group).fetch_one(&env.pool).await.unwrap_or(-1)
        };
        count(known).await > 0 && count(open).await == 0
    })
    .await;
}

async fn offset_is(env: &TestEnv, group: &str, topic: &str, offset: i64) {
    eventually(LIMIT, "the offset to pass all", async || {
        let committed = env.kafka.committed(group, topic).await;
        committed.values().map(|committed| committed.offset).sum::<i64>() == offset
    })
    .await;
}

async fn reasons(env: &TestEnv, topic: &str) -> Vec<String> {
    let letters = env.kafka.read_all(topic).await;
    letters.iter().map(|letter| letter.header("idem-reason").unwrap_or_default()).collect()
}

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

#[idempotent_handler(topic = "raced.orders", group = "raced", concurrency = 16, expired = "skip", retry = [])]
async fn raced(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "raced").await
}

#[tokio::test(flavor = "multi_thread")]
async fn redeliveries_that_race_the_emptying_of_their_day_never_take_effect_again() {
    let env = narrow().await;
    env.kafka.create_topic("raced.orders", 4).await;
    let now = now(&env.pool).await;
    // Two members, and partitions that are added while others are emptied.
    let runs = [Run::start(&env, &["raced"]), Run::start(&env, &["raced"])];
    let (mut all, mut produced) = (Vec::new(), 0);
    // Days from the oldest to the youngest, since the horizon only rises; the first is in `late`.
    for days_ago in [12, 5, 3] {
        let ids: Vec<Uuid> = (0..300).map(|number| id_at(now, days_ago, number)).collect();
        produce(&env, "raced.orders", &ids).await;
        all.extend_from_slice(&ids);
        produced += 300;
        offset_is(&env, "raced", "raced.orders", produced).await;
        assert_eq!(orders::effect_count(&env.pool, "raced").await, all.len(), "none of them is taken for forgotten");
        has_read_all(&env, "raced").await;
        age(&env.pool, 3).await;
        let redelivered = async {
            for _ in 0..3 {
                produce(&env, "raced.orders", &ids).await;
            }
        };
        let emptied = async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let ops = ops(&env);
            let dropped = "SELECT idem_partition_of((now() AT TIME ZONE 'UTC')::date + 5)";
            let dropped: String = sqlx::query_scalar(dropped).fetch_one(&env.pool).await.unwrap();
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("DROP TABLE IF EXISTS {dropped}")))
                .execute(&env.pool)
                .await
                .unwrap();
            let (swept, attached) = tokio::join!(partitions::sweep(&ops), status::migrate(&ops));
            attached.unwrap();
            swept.unwrap()
        };
        let (_, swept) = tokio::join!(redelivered, emptied);
        assert!(swept.deleted > 0 || swept.waiting > 0 || !swept.emptied.is_empty(), "{swept:?}");
        produced += 900;
        offset_is(&env, "raced", "raced.orders", produced).await;
        // What it did not do while others were at it, it does now.
        partitions::sweep(&ops(&env)).await.unwrap();
        produce(&env, "raced.orders", &ids).await;
        produced += 300;
        offset_is(&env, "raced", "raced.orders", produced).await;
        orders::assert_each_once(&env.pool, "raced", &all).await;
    }
    for run in runs {
        run.stop().await.unwrap();
    }
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM processed_event").fetch_one(&env.pool).await.unwrap();
    assert_eq!(left, 0, "every one of them was forgotten in the end");
}

#[idempotent_handler(topic = "cornered.orders", group = "cornered", concurrency = 8, retry = [])]
async fn cornered(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "cornered").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redelivery_that_meets_rows_on_their_way_out_waits_and_is_expired() {
    let env = narrow().await;
    env.kafka.create_topic("cornered.orders", 1).await;
    let now = now(&env.pool).await;
    let (of_day, of_late, slow) = (id_at(now, 5, 1), id_at(now, 12, 2), id_at(now, 4, 3));
    let beside_slow = id_at(now, 4, 4);
    produce(&env, "cornered.orders", &[of_late, of_day, beside_slow]).await;
    let run = Run::start(&env, &["cornered"]);
    offset_is(&env, "cornered", "cornered.orders", 3).await;
    has_read_all(&env, "cornered").await;
    let waiting = async |count: i64| {
        let waiting = "SELECT count(*) FROM pg_stat_activity \
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually(LIMIT, "sessions to wait for locks", async || {
            sqlx::query_scalar::<_, i64>(waiting).fetch_one(&env.pool).await.unwrap() == count
        })
        .await;
    };
    let older = async |id: Uuid| {
        let older = "UPDATE processed_event SET processed_at = processed_at - interval '3 days' WHERE event_id = $1";
        sqlx::query(older).bind(id).execute(&env.pool).await.unwrap();
    };
    let sweep = || {
        let ops = ops(&env);
        tokio::spawn(async move { partitions::sweep(&ops).await.unwrap() })
    };
    let horizon = "INSERT INTO group_horizon (consumer_group) VALUES ('cornered') ON CONFLICT DO NOTHING";
    sqlx::raw_sql(horizon).execute(&env.pool).await.unwrap();

    // Whoever removes the row is held between the removal and the commit.
    for (letters, id) in [(1, of_late), (2, of_day)] {
        older(id).await;
        let mut holder = env.pool.begin().await.unwrap();
        let hold = "SELECT FROM group_horizon WHERE consumer_group = 'cornered' FOR UPDATE";
        sqlx::query(hold).execute(&mut *holder).await.unwrap();
        let sweep = sweep();
        waiting(1).await;
        produce(&env, "cornered.orders", &[id]).await;
        waiting(2).await;
        holder.rollback().await.unwrap();
        let swept = sweep.await.unwrap();
        assert_eq!((swept.deleted, swept.emptied.len()), if id == of_late { (1, 0) } else { (0, 1) });
        eventually(LIMIT, "the letter", async || reasons(&env, "cornered.dlq").await.len() == letters).await;
    }

    // The other way round: the event of that day came first, and its row is seen.
    older(beside_slow).await;
    let value = orders::payload(slow, 0, &Plan::Sleep(1_000));
    env.kafka.produce(Record::to("cornered.orders").key("slow").value(&value)).await;
    eventually(LIMIT, "its transaction", async || tests::postgres::open_transactions(&env.pool).await == 1).await;
    let sweep = sweep();
    waiting(1).await;
    assert_eq!(sweep.await.unwrap().emptied, [day(&env.pool, 4).await]);
    produce(&env, "cornered.orders", &[slow, beside_slow]).await;
    eventually(LIMIT, "the last letter", async || reasons(&env, "cornered.dlq").await.len() == 3).await;
    offset_is(&env, "cornered", "cornered.orders", 8).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "cornered", &[of_day, of_late, slow, beside_slow]).await;
    assert_eq!(reasons(&env, "cornered.dlq").await, ["expired"; 3]);
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

#[derive(Debug, serde::Deserialize, Event)]
#[event(key(invoice))]
struct Invoice {
    invoice: i64,
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

#[tokio::test(flavor = "multi_thread")]
async fn days_are_utc_days_whatever_the_time_zone_of_the_server_and_the_client() {
    let env = TestEnv::new().await;
    let zone = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Pacific/Kiritimati''', current_database()); END $$";
    sqlx::raw_sql(zone).execute(&env.pool).await.unwrap();
    env.pool.close().await;
    let env = TestEnv::on(&env.database_url, &env.kafka).with("TZ", "America/Los_Angeles").with("PGTZ", "Asia/Kolkata");
    let migrated = cli::idem(env.variables(), &["migrate", "--json"]).await.json();
    assert_eq!(migrated["pending"], serde_json::json!([]));
    // sqlx asks for UTC on every connection; others who call the functions may not.
    let mut elsewhere = env.pool.acquire().await.unwrap();
    sqlx::raw_sql("SET TimeZone = 'Pacific/Kiritimati'").execute(&mut *elsewhere).await.unwrap();
    let last = day(&env.pool, -7).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("DROP TABLE {last}"))).execute(&mut *elsewhere).await.unwrap();
    let attached: i32 = sqlx::query_scalar("SELECT idem_attach_days(7)").fetch_one(&mut *elsewhere).await.unwrap();
    assert_eq!(attached, 1);
    let now = now(&env.pool).await;
    let midnight = now - now % DAY;
    for (millis, days_ago) in [(midnight - 1, 1), (midnight, 0), (midnight + DAY - 1, 0), (midnight + DAY, -1)] {
        let home = "INSERT INTO processed_event VALUES ($1, 'zone') RETURNING tableoid::regclass::text";
        let home: String = sqlx::query_scalar(home).bind(id_of(millis, 1)).fetch_one(&mut *elsewhere).await.unwrap();
        assert_eq!(home, day(&env.pool, days_ago).await, "{millis}");
    }
    let listed = cli::idem(env.variables(), &["partitions", "--json"]).await.json();
    let listed = listed["partitions"].as_array().unwrap();
    assert_eq!(listed.len(), 17, "late, natural, 8 days until today, 7 ahead");
    let used: Vec<_> = listed.iter().filter(|part| part["rows"] != 0).collect();
    assert_eq!(used.len(), 3, "{used:?}");
    for part in listed.iter().filter(|part| !part["from"].is_null()) {
        let (from, to) = (part["from"].as_str().unwrap(), part["to"].as_str().unwrap());
        let name = part["name"].as_str().unwrap().trim_start_matches("processed_event_");
        assert_eq!(from.replace('-', "")[..8], *name, "{part}");
        assert!(from.ends_with("T00:00:00.000Z") && to.ends_with("T00:00:00.000Z"), "{part}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn emptying_a_day_waits_only_for_who_uses_it_and_holds_up_nobody_else() {
    let env = narrow().await;
    let ops = ops(&env);
    status::migrate(&ops).await.unwrap();
    let now = now(&env.pool).await;
    let insert = "INSERT INTO processed_event (event_id, consumer_group, processed_at) \
                  VALUES ($1, $2, now() - $3 * interval '1 day')";
    for (days_ago, group, age) in [(5, "a", 5), (5, "b", 0), (4, "b", 4)] {
        let id = id_at(now, days_ago, 1);
        sqlx::query(insert).bind(id).bind(group).bind(age).execute(&env.pool).await.unwrap();
    }
    // Two open transactions: one of today, one of the day before the last of these.
    let (mut of_today, mut of_old) = (env.pool.begin().await.unwrap(), env.pool.begin().await.unwrap());
    for (tx, days_ago) in [(&mut of_today, 0), (&mut of_old, 4)] {
        sqlx::query(insert).bind(id_at(now, days_ago, 7)).bind("a").bind(0).execute(&mut **tx).await.unwrap();
    }
    let locked = "SELECT count(*) FROM pg_locks l JOIN pg_inherits i ON i.inhrelid = l.relation \
                   WHERE l.pid = pg_backend_pid() AND i.inhparent = 'processed_event'::regclass";
    let locked: i64 = sqlx::query_scalar(locked).fetch_one(&mut *of_today).await.unwrap();
    assert_eq!(locked, 1, "an insert touches one partition");

    let sweep = tokio::spawn(async move { partitions::sweep(&ops).await });
    let mut slowest = Duration::ZERO;
    for number in 100..300 {
        let start = std::time::Instant::now();
        sqlx::query(insert).bind(id_at(now, 0, number)).bind("c").bind(0).execute(&env.pool).await.unwrap();
        slowest = slowest.max(start.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let swept = sweep.await.unwrap().unwrap();
    assert_eq!((swept.emptied, swept.waiting), (vec![day(&env.pool, 5).await], 1));
    assert!(slowest < Duration::from_millis(1_500), "an insert of today waited for {slowest:?}");
    let horizons: Vec<(String, i64)> =
        sqlx::query_as("SELECT consumer_group, (extract(epoch FROM ids_before) * 1000)::bigint FROM group_horizon")
            .fetch_all(&env.pool)
            .await
            .unwrap();
    assert_eq!(horizons, [("a".to_owned(), now - now % DAY - 4 * DAY)], "nothing of the others went");
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM processed_event WHERE consumer_group = 'b'")
        .fetch_one(&env.pool)
        .await
        .unwrap();
    assert_eq!(rows, 2, "what was processed in the window stays");

    of_old.commit().await.unwrap();
    let again = partitions::sweep(&Ops::new(Config::from_vars(env.variables()).unwrap())).await.unwrap();
    assert_eq!((again.emptied, again.waiting), (vec![day(&env.pool, 4).await], 0));
    of_today.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_many_rows_is_emptied_at_once_and_long_empty_days_are_merged() {
    let env = narrow().await.with("IDEM_DEDUP_WINDOW", "30h");
    let ops = ops(&env);
    status::migrate(&ops).await.unwrap();
    let filled = idem_runtime::testing::fill_day(&env.database_url, "filled", 4, 200_000).await.unwrap();
    assert_eq!(filled, day(&env.pool, 4).await);
    let listed = partitions::list(&ops).await.unwrap().partitions;
    let part = listed.iter().find(|part| part.name == filled).unwrap();
    assert!(part.bytes > 10_000_000, "{part:?}");
    // Ids made on the server are ids as any other.
    let id: Uuid = sqlx::query_scalar("SELECT event_id FROM processed_event OFFSET 777 LIMIT 1")
        .fetch_one(&env.pool)
        .await
        .unwrap();
    assert!(EventId::try_from(id).is_ok(), "{id}");
    let start = std::time::Instant::now();
    assert_eq!(partitions::sweep(&ops).await.unwrap().emptied, std::slice::from_ref(&filled));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let recent = idem_runtime::testing::fill_day(&env.database_url, "filled", 0, 10).await.unwrap();
    assert!(partitions::empty(&ops, &recent).await.unwrap(), "on demand, whatever its age");
    assert!(!partitions::empty(&ops, &recent).await.unwrap(), "nothing is in it any more");

    // Two years pass.
    sqlx::query_scalar::<_, i32>("SELECT idem_attach_days(500)").fetch_one(&env.pool).await.unwrap();
    let before = partitions::list(&ops).await.unwrap().partitions;
    let merged = partitions::sweep(&ops).await.unwrap().merged;
    let after = partitions::list(&ops).await.unwrap().partitions;
    assert_eq!((merged, before.len() - after.len()), (100, 100));
    let late = after.iter().find(|part| part.name == "processed_event_late").unwrap();
    assert_eq!(late.to, before.iter().find(|part| part.name == day_after_merge(&before)).unwrap().from);
    let homes = "INSERT INTO processed_event VALUES ($1, 'merged') RETURNING tableoid::regclass::text";
    let now = now(&env.pool).await;
    for (days_ago, home) in [(5, "processed_event_late".to_owned()), (-200, day(&env.pool, -200).await)] {
        let found: String = sqlx::query_scalar(homes).bind(id_at(now, days_ago, 1)).fetch_one(&env.pool).await.unwrap();
        assert_eq!(found, home);
    }
}

/// The first day that is left: 100 days behind the first one.
fn day_after_merge(before: &[partitions::Partition]) -> &str {
    &before.iter().filter(|part| part.from.is_some()).nth(100).unwrap().name
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
