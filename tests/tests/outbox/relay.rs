//! The relay: nothing is skipped, each key in its order, one sends at a time.

use std::time::Duration;

use idem_runtime::outbox;
use serde_json::json;
use sqlx::Connection;
use tests::cli::idem;
use tests::{Kafka, Proxy, TestEnv, eventually};

use crate::LIMIT;
use crate::desk::{Relay, Told, env, migrate, numbers, pending, records, tell};

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_transaction_commits_late_is_not_passed_over() {
    let env = env().await;
    let topic = env.topic("late");
    env.kafka.create_topic(&topic, 2).await;
    let _relay = Relay::start(&env);
    let mut first = env.pool.begin().await.unwrap();
    tell(&mut first, &topic, "first", 1).await;
    let mut second = env.pool.begin().await.unwrap();
    tell(&mut second, &topic, "second", 2).await;
    second.commit().await.unwrap();
    records(&env, &topic, 1).await;
    eventually(LIMIT, "the second one is deleted", async || pending(&env).await == 0).await;
    first.commit().await.unwrap();
    let sent = numbers(&records(&env, &topic, 2).await);
    assert_eq!(json!(sent), json!({"first": [1], "second": [2]}));
    eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_the_order_of_the_transactions_that_locked_its_aggregate_whatever_else_is_open() {
    let env = env().await;
    let topic = env.topic("ordered");
    env.kafka.create_topic(&topic, 3).await;
    sqlx::raw_sql("CREATE TABLE account (id int PRIMARY KEY); INSERT INTO account VALUES (1), (2)")
        .execute(&env.pool)
        .await
        .unwrap();
    let _relay = Relay::start(&env);
    // It has a transaction id, so no snapshot of the relay's looks beyond it; nothing may wait for it.
    let mut unrelated = env.pool.begin().await.unwrap();
    sqlx::query("UPDATE account SET id = id WHERE id = 2").execute(&mut *unrelated).await.unwrap();

    const LOCK: &str = "SELECT id FROM account WHERE id = 1 FOR UPDATE";
    let mut second = env.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_current_xact_id()").execute(&mut *second).await.unwrap();
    let mut first = env.pool.begin().await.unwrap();
    sqlx::query(LOCK).execute(&mut *first).await.unwrap();
    for number in 0..300 {
        tell(&mut first, &topic, "account-1", number).await;
    }
    let waits = tokio::spawn(async move {
        sqlx::query(LOCK).execute(&mut *second).await.unwrap();
        second
    });
    first.commit().await.unwrap();
    let mut second = waits.await.unwrap();
    for number in 300..600 {
        tell(&mut second, &topic, "account-1", number).await;
    }
    second.commit().await.unwrap();
    let sent = numbers(&records(&env, &topic, 600).await);
    assert_eq!(sent["account-1"], (0..600).collect::<Vec<_>>());
    unrelated.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_can_not_be_published_is_parked_and_holds_back_its_key_alone() {
    let env = env().await;
    let topic = env.topic("parked");
    env.kafka.create_topic_with_config(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let mut tx = env.pool.begin().await.unwrap();
    for (key, number, bytes) in [("a", 1, 5_000), ("a", 2, 0), ("b", 1, 0), ("a", 3, 0), ("b", 2, 0), ("c", 1, 5_000)] {
        let text = "x".repeat(bytes);
        outbox::publish(&mut tx, &topic, key, |event_id| Told { event_id, number, text }).await.unwrap();
    }
    tx.commit().await.unwrap();
    let relay = Relay::start(&env);
    assert_eq!(json!(numbers(&records(&env, &topic, 2).await)), json!({"b": [1, 2]}));
    let variables = env.variables();
    let list = async || idem(variables.clone(), &["outbox", "list", "--json"]).await.json();
    eventually(LIMIT, "both to be parked", async || list().await["parked"].as_array().unwrap().len() == 2).await;
    // What is published later waits too.
    let mut tx = env.pool.begin().await.unwrap();
    tell(&mut tx, &topic, "a", 4).await;
    tell(&mut tx, &topic, "b", 3).await;
    tx.commit().await.unwrap();
    assert_eq!(json!(numbers(&records(&env, &topic, 3).await)), json!({"b": [1, 2, 3]}));
    eventually(LIMIT, "three behind it", async || list().await["parked"][0]["behind"] == 3).await;
    let listed = list().await;
    let [a, c] = [&listed["parked"][0], &listed["parked"][1]];
    assert_eq!((&a["reason"], &a["topic"], &a["seq"]), (&json!("MessageSizeTooLarge"), &json!(topic), &json!(1)));
    assert_eq!((&listed["pending"], &listed["relayed"]), (&json!(0), &json!(true)), "{listed}");
    assert!(!listed.to_string().contains("xxx"), "nothing of a payload");

    // One is dropped; the other is sent when the topic takes it, and those behind it after it.
    let c = c["seq"].to_string();
    let dropped = idem(env.variables(), &["outbox", "release", "--seq", &c, "--drop", "--json"]).await.json();
    assert_eq!(dropped, json!({"released": 0, "dropped": 1}));
    env.kafka.alter_topic(&topic, &[("max.message.bytes", "20000")]).await;
    let released = idem(env.variables(), &["outbox", "release", "--seq", "1", "--json"]).await.json();
    assert_eq!(released, json!({"released": 4, "dropped": 0}));
    let sent = numbers(&records(&env, &topic, 7).await);
    assert_eq!(json!(sent), json!({"a": [1, 2, 3, 4], "b": [1, 2, 3]}));
    let again = idem(env.variables(), &["outbox", "release", "--seq", "1"]).await;
    assert!(again.status == Some(1) && again.stderr.contains("idem outbox list"), "{again:?}");
    eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
    relay.stop().await;
    assert_eq!(list().await["relayed"], json!(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_stays_small_also_while_a_long_transaction_keeps_vacuum_from_it() {
    let env = env().await;
    let topic = env.topic("small");
    env.kafka.create_topic(&topic, 2).await;
    let mut keeps = env.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_current_xact_id()").execute(&mut *keeps).await.unwrap();
    let relay = Relay::start(&env);
    const BATCH: i64 = 3_000;
    // As after 65,536 events each time.
    for round in 0..6 {
        sqlx::query("SELECT setval('idem_outbox_seq', $1)").bind(1 + (round << 16)).execute(&env.pool).await.unwrap();
        sqlx::query(
            "INSERT INTO idem_outbox (event_id, topic, key, payload, headers, occurred_at_millis) \
             SELECT gen_random_uuid(), $1, n::text, convert_to(repeat('x', 500), 'UTF8'), '[]', 1 FROM generate_series(1, $2) AS n",
        )
        .bind(&topic)
        .bind(BATCH)
        .execute(&env.pool)
        .await
        .unwrap();
        eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
    }
    let of_one_batch = BATCH * 600;
    eventually(LIMIT, "a small table", async || {
        let bytes: i64 = sqlx::query_scalar(
            "SELECT sum(pg_relation_size(inhrelid))::bigint FROM pg_inherits WHERE inhparent = 'idem_outbox'::regclass",
        )
        .fetch_one(&env.pool)
        .await
        .unwrap();
        // The one that is written to, and none of the five before it.
        bytes < 2 * of_one_batch
    })
    .await;
    assert_eq!(env.kafka.read_all(&topic).await.len(), 6 * BATCH as usize);
    keeps.rollback().await.unwrap();
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_publishes_wakes_a_relay_that_sleeps_and_no_other() {
    let env = env().await;
    let topic = env.topic("woken");
    let mut listener = sqlx::postgres::PgListener::connect_with(&env.pool).await.unwrap();
    listener.listen("idem_outbox").await.unwrap();
    let tell_once = async |number| {
        let mut tx = env.pool.begin().await.unwrap();
        tell(&mut tx, &topic, "key", number).await;
        tx.commit().await.unwrap();
    };
    tell_once(1).await;
    sqlx::query("UPDATE idem_relay SET wake_until = now() - interval '1 second'").execute(&env.pool).await.unwrap();
    tell_once(2).await;
    sqlx::query("NOTIFY idem_outbox, 'the first one'").execute(&env.pool).await.unwrap();
    assert_eq!(listener.recv().await.unwrap().payload(), "the first one");
    sqlx::query("UPDATE idem_relay SET wake_until = now() + interval '1 minute'").execute(&env.pool).await.unwrap();
    tell_once(3).await;
    assert_eq!(listener.recv().await.unwrap().payload(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_sends_when_nothing_late_of_its_predecessor_can_come_any_more() {
    let kafka = Kafka::start().await;
    let database_url = tests::postgres::database().await;
    let env = TestEnv::on(&database_url, &kafka).with("IDEM_RELAY_TIMEOUT", "3s");
    migrate(&env).await;
    let topic = env.topic("cut");
    env.kafka.create_topic(&topic, 3).await;
    let proxy = Proxy::start(tests::postgres::shared().await.port()).await;
    let through_proxy = env.clone().with("IDEM_DATABASE_URL", &proxy.url(&env.database_url));

    let former = Relay::start(&through_proxy);
    let holder = async || -> Option<uuid::Uuid> {
        sqlx::query_scalar("SELECT holder FROM idem_relay").fetch_one(&env.pool).await.unwrap()
    };
    eventually(LIMIT, "a relay", async || holder().await.is_some()).await;
    let first = holder().await;
    let successor = Relay::start(&env);
    // Sends pile up in the former one's queue.
    kafka.stop().await;
    let mut tx = env.pool.begin().await.unwrap();
    for number in 0..10 {
        for key in 0..500 {
            tell(&mut tx, &topic, &key.to_string(), number).await;
        }
    }
    tx.commit().await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    proxy.refuse(true);
    proxy.cut_all();
    eventually(LIMIT, "another relay", async || holder().await != first).await;
    kafka.start_again().await;
    let records = records(&env, &topic, 5_000).await;
    let sent = numbers(&records);
    assert_eq!(sent.len(), 500);
    for numbers in sent.values() {
        assert_eq!(*numbers, (0..10).collect::<Vec<_>>());
    }
    drop(former);
    successor.stop().await;
    assert_eq!(holder().await, None, "a goodbye");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_relay_goes_on_after_a_crash_and_one_that_says_goodbye_is_followed_at_once() {
    let env = env().await.with("IDEM_RELAY_TIMEOUT", "4s");
    let topic = env.topic("takeover");
    env.kafka.create_topic(&topic, 2).await;
    let publish = async |number| {
        let mut connection = env.pool.acquire().await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        tell(&mut tx, &topic, "key", number).await;
        tx.commit().await.unwrap();
    };
    let crashes = Relay::start(&env);
    publish(1).await;
    records(&env, &topic, 1).await;
    let second = Relay::start(&env);
    drop(crashes);
    let crashed = std::time::Instant::now();
    publish(2).await;
    records(&env, &topic, 2).await;
    assert!(crashed.elapsed() >= Duration::from_secs(4), "what the first one queued could still have been sent");
    let third = Relay::start(&env);
    second.stop().await;
    let stopped = std::time::Instant::now();
    publish(3).await;
    assert_eq!(numbers(&records(&env, &topic, 3).await)["key"], [1, 2, 3]);
    assert!(stopped.elapsed() < Duration::from_secs(4), "there is nothing to wait for");
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_missing_holds_up_no_other() {
    let env = env().await;
    let (missing, other) = (env.topic("missing"), env.topic("other"));
    env.kafka.create_topic(&other, 2).await;
    let relay = Relay::start(&env);
    let mut tx = env.pool.begin().await.unwrap();
    for number in 0..50 {
        tell(&mut tx, &missing, &number.to_string(), number).await;
        tell(&mut tx, &other, &number.to_string(), number).await;
    }
    tx.commit().await.unwrap();
    records(&env, &other, 50).await;
    env.kafka.create_topic(&missing, 2).await;
    records(&env, &missing, 50).await;
    eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
    relay.stop().await;
}
