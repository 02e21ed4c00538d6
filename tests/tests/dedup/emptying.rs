//! Days are emptied, whatever happens at that moment, and nobody waits for it.

use std::time::Duration;

use idem_runtime::Config;
use idem_runtime::ops::{Ops, partitions, status};
use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{Record, Run, TestEnv, cli, eventually};
use uuid::Uuid;

use crate::{DAY, LIMIT, age, day, has_read_all, id_at, id_of, narrow, now, offset_is, ops, produce, reasons};

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
