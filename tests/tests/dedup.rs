//! The dedup table stays correct and small: days are added and emptied, a group that may have forgotten
//! an event says so, and nobody's backlog is taken for forgotten.

use std::time::Duration;

use idem_runtime::Config;
use idem_runtime::ops::{Ops, groups, partitions, status};
use idem_runtime::prelude::*;
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

/// An id of some time on the UTC day so many days ago; the 20th hour.
fn id_at(now: i64, days_ago: i64, number: u64) -> Uuid {
    id_of(now - now % DAY - days_ago * DAY + 20 * 3_600_000 + i64::try_from(number % 1_000).unwrap(), number)
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

#[idempotent_handler(topic = "newcomer.orders", group = "newcomer", concurrency = 8)]
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
    for days_ago in [12, 6, 5, 4, 3] {
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
        produced += 900;
        offset_is(&env, "raced", "raced.orders", produced).await;
        if days_ago == 12 {
            assert!(swept.deleted > 0, "{swept:?}");
        }
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
