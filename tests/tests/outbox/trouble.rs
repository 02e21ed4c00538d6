//! What goes wrong around the relay stops nothing else, and is told.

use std::time::{Duration, Instant};

use idem_runtime::outbox;
use idem_runtime::prelude::*;
use serde_json::json;
use sqlx::PgPool;
use tests::{Proxy, Run, TestEnv, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::LIMIT;
use crate::desk::{Relay, Told, env, migrate, numbers, pending, records, tell};

/// Writes many rows at once, each with its number as the payload.
async fn fill(pool: &PgPool, topic: &str, key: &str, rows: i32, bytes: i32) {
    sqlx::query(
        "INSERT INTO idem_outbox (event_id, topic, key, payload, headers, occurred_at_millis) \
         SELECT gen_random_uuid(), $1, CASE $2 WHEN '' THEN n::text ELSE $2 END, \
                convert_to(rpad(n::text, greatest($4, length(n::text)), ' '), 'UTF8'), '[]', 1 \
           FROM generate_series(1, $3) AS n",
    )
    .bind(topic)
    .bind(key)
    .bind(rows)
    .bind(bytes)
    .execute(pool)
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_can_not_be_written_to_hold_up_no_other_however_much_waits_for_them() {
    let env = env().await;
    let (missing, large, other) = (env.topic("missing"), env.topic("large"), env.topic("other"));
    env.kafka.create_topic(&other, 2).await;
    // More than the relay keeps in memory, in rows and in bytes.
    fill(&env.pool, &missing, "", 5_000, 0).await;
    fill(&env.pool, &large, "", 40, 900_000).await;
    let relay = Relay::start(&env);
    for number in 0..3 {
        let mut tx = env.pool.begin().await.unwrap();
        for key in 0..50 {
            tell(&mut tx, &other, &key.to_string(), number).await;
        }
        tx.commit().await.unwrap();
        let sent = numbers(&records(&env, &other, 50 * (number as usize + 1)).await);
        assert!(sent.len() == 50 && sent.values().all(|numbers| *numbers == (0..=number).collect::<Vec<_>>()));
    }
    assert_eq!(pending(&env).await, 5_040);
    env.kafka.create_topic(&missing, 2).await;
    env.kafka.create_topic(&large, 2).await;
    records(&env, &missing, 5_000).await;
    eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
    assert_eq!(env.kafka.read_all(&missing).await.len(), 5_000);
    assert_eq!(env.kafka.read_all(&large).await.len(), 40);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_a_long_backlog_holds_up_no_other() {
    let env = env().await;
    let (hot, cold) = (env.topic("hot"), env.topic("cold"));
    env.kafka.create_topic(&hot, 1).await;
    env.kafka.create_topic(&cold, 1).await;
    fill(&env.pool, &hot, "hot", 50_000, 0).await;
    let mut tx = env.pool.begin().await.unwrap();
    for number in 0..50 {
        tell(&mut tx, &cold, &(number % 10).to_string(), number).await;
    }
    tx.commit().await.unwrap();
    let relay = Relay::start(&env);
    records(&env, &cold, 50).await;
    let sent = records(&env, &hot, 200).await;
    let sent: Vec<i32> = sent
        .iter()
        .map(|record| String::from_utf8(record.value.clone().unwrap()).unwrap().trim().parse().unwrap())
        .collect();
    assert!(sent.iter().copied().eq(1..=sent.len() as i32), "in its order");
    assert!(sent.len() < 50_000, "there was a backlog all the while");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_deleted_also_when_the_relays_session_fails_and_the_relay_goes_on_at_once() {
    let env = env().await.with("IDEM_RELAY_TIMEOUT", "20s");
    let topic = env.topic("cut");
    env.kafka.create_topic(&topic, 1).await;
    let proxy = Proxy::start(tests::postgres::shared().await.port()).await;
    let relay = Relay::start(&env.clone().with("IDEM_DATABASE_URL", &proxy.url(&env.database_url)));
    let started = Instant::now();
    for number in 0..5 {
        proxy.arm(tests::Fault::CutBefore, "DELETE FROM idem_outbox", 1);
        let mut connection = env.pool.acquire().await.unwrap();
        tell(&mut connection, &topic, "key", number).await;
        records(&env, &topic, number as usize + 1).await;
        eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
    }
    assert_eq!(proxy.count(tests::Fault::CutBefore), 5);
    assert!(started.elapsed() < Duration::from_secs(60), "it waits for nobody who said goodbye");
    let sent = numbers(&env.kafka.read_all(&topic).await);
    assert_eq!(json!(sent), json!({"key": [0, 1, 2, 3, 4]}), "nothing twice");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_got_the_number_of_one_that_was_acknowledged_is_kept_and_published() {
    let env = env().await.with("IDEM_RELAY_TIMEOUT", "20s");
    let topic = env.topic("renumbered");
    env.kafka.create_topic(&topic, 1).await;
    // Nothing is deleted while this lock is held.
    sqlx::raw_sql(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END'; \
         CREATE TRIGGER wait BEFORE DELETE ON idem_outbox_0 FOR EACH STATEMENT EXECUTE FUNCTION wait()",
    )
    .execute(&env.pool)
    .await
    .unwrap();
    let mut lock = env.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *lock).await.unwrap();
    let relay = Relay::start(&env);
    let mut connection = env.pool.acquire().await.unwrap();
    let first = tell(&mut connection, &topic, "key", 1).await;
    eventually(LIMIT, "the relay to delete what was acknowledged", async || {
        let waits = "SELECT count(*) = 1 FROM pg_stat_activity \
                      WHERE datname = current_database() AND query LIKE 'DELETE%' AND wait_event = 'advisory'";
        sqlx::query_scalar(waits).fetch_one(&env.pool).await.unwrap()
    })
    .await;

    // As if another server had taken over, which has not seen that row, and gave its number to another one.
    let second = EventId::now();
    let renumbered = sqlx::query("UPDATE idem_outbox SET event_id = $1").bind(second.uuid());
    assert_eq!(renumbered.execute(&env.pool).await.unwrap().rows_affected(), 1);
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                WHERE datname = current_database() AND query LIKE 'DELETE%' AND wait_event = 'advisory'";
    assert_eq!(sqlx::query_scalar::<_, i64>(cut).fetch_one(&env.pool).await.unwrap(), 1);
    lock.commit().await.unwrap();
    let sent = records(&env, &topic, 2).await;
    let ids: Vec<_> = sent.iter().map(|record| record.header("idem-event-id").unwrap()).collect();
    assert_eq!(ids, [first.to_string(), second.to_string()]);
    eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_is_not_truncated_by_whoever_can_not_see_what_was_committed_last() {
    let env = env().await;
    let topic = env.topic("truncated");
    fill(&env.pool, &topic, "", 10, 0).await;
    sqlx::query("DELETE FROM idem_outbox").execute(&env.pool).await.unwrap();
    let mut old = env.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    sqlx::query("SELECT 1 FROM idem_relay").execute(&mut *old).await.unwrap();
    fill(&env.pool, &topic, "", 1, 0).await;
    let truncate = "SELECT idem_outbox_truncate(0)";
    let refused = sqlx::query(truncate).execute(&mut *old).await.unwrap_err();
    assert!(refused.to_string().contains("READ COMMITTED"), "{refused}");
    old.rollback().await.unwrap();
    assert_eq!(pending(&env).await, 1);
    sqlx::query(truncate).execute(&env.pool).await.unwrap();
    assert_eq!(pending(&env).await, 1);
    sqlx::query("DELETE FROM idem_outbox").execute(&env.pool).await.unwrap();
    let is_empty: bool = sqlx::query_scalar(truncate).fetch_one(&env.pool).await.unwrap();
    assert!(is_empty);

    // The relay's session has the level that it needs, whatever is set for the database.
    let database = env.database_url.rsplit('/').next().unwrap();
    let set = format!("ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'");
    sqlx::query(sqlx::AssertSqlSafe(set)).execute(&env.pool).await.unwrap();
    env.kafka.create_topic(&topic, 1).await;
    let relay = Relay::start(&env);
    fill(&env.pool, &topic, "", 10, 0).await;
    records(&env, &topic, 10).await;
    sqlx::query("SELECT setval('idem_outbox_seq', 1 << 16)").execute(&env.pool).await.unwrap();
    fill(&env.pool, &topic, "", 10, 0).await;
    let size = "SELECT pg_relation_size('idem_outbox_0')";
    eventually(LIMIT, "the first partition to be given back", async || {
        sqlx::query_scalar::<_, i64>(size).fetch_one(&env.pool).await.unwrap() == 0
    })
    .await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schemas_of_a_database_have_a_relay_each() {
    let env = TestEnv::new().await.with("IDEM_RELAY_TIMEOUT", "2s");
    let mut relays = Vec::new();
    for schema in ["one", "two"] {
        let create = format!("CREATE SCHEMA {schema}");
        sqlx::query(sqlx::AssertSqlSafe(create)).execute(&env.pool).await.unwrap();
        let url = format!("{}?options=-csearch_path%3D{schema}", env.database_url);
        let of_schema = env.clone().with("IDEM_DATABASE_URL", &url);
        migrate(&of_schema).await;
        let topic = env.topic(schema);
        env.kafka.create_topic(&topic, 1).await;
        let relay = Relay::start(&of_schema);
        let mut connection = tests::postgres::pool(&url).acquire().await.unwrap();
        tell(&mut connection, &topic, "key", 1).await;
        assert_eq!(records(&env, &topic, 1).await.len(), 1);
        relays.push(relay);
    }
    for relay in relays {
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_refuses_a_pooler_whichever_url_leads_there() {
    // What PgBouncer answers to a startup message with `options`.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://u:sentinel@{}/d?sslmode=disable", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let fields = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
            let mut answer = vec![b'E'];
            answer.extend(u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
            answer.extend(fields);
            let _ = socket.read(&mut [0; 1_024]).await;
            let _ = socket.write_all(&answer).await;
            let _ = socket.shutdown().await;
        }
    });
    let env = env().await.with("IDEM_DATABASE_DIRECT_URL", &url).with("IDEM_MIGRATE", "false");
    let refused = Relay::start(&env).ended().await.unwrap_err().to_string();
    assert!(refused.contains("PgBouncer") && refused.contains("IDEM_DATABASE_DIRECT_URL"), "{refused}");
    assert!(!refused.contains("sentinel"), "{refused}");
}

#[idempotent_handler(topic = "quiet", group = "quiet")]
async fn on_quiet(_tx: &mut Tx<'_>, _event: Told) -> HandlerResult {
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_of_every_process_says_that_nothing_is_published() {
    let env = env().await.with("IDEM_RELAY", "false");
    env.kafka.create_topic("quiet", 1).await;
    let mut connection = env.pool.acquire().await.unwrap();
    let tell = outbox::publish(&mut connection, "nowhere", "key", |event_id| Told {
        event_id,
        number: 1,
        text: String::new(),
    });
    tell.await.unwrap();
    let age = "UPDATE idem_outbox SET created_at = created_at - interval '1 hour'";
    sqlx::query(age).execute(&mut *connection).await.unwrap();
    let run = Run::start(&env, &["quiet"]);
    eventually(LIMIT, "readiness to hear of it", async || {
        run.health.reasons().iter().any(|reason| reason.contains("outbox has waited for 36"))
    })
    .await;
    run.stop().await.unwrap();
}
