//! What a person decides: unrecorded and unknown calls, forgotten keys, restores.

use std::time::Duration;

use idem_runtime::prelude::*;
use idem_runtime::testing::Provider;
use idem_runtime::testing::ProviderFault::{DropAfter, Status};
use tests::child::workspace_program;
use tests::{Kafka, Postgres, Program, Record, TestEnv, eventually, orders};

use crate::bill::{Desk, LIMIT, Plan};
use crate::money_handlers;

money_handlers! {
    unrecorded: "unrecorded" on "unrecorded.bills", retry = ["100ms"];
    forgotten: "forgotten" on "forgotten.bills", retry = [];
    failed: "failed" on "failed.bills", retry = [];
    restored: "restored" on "restored.bills", retry = [], concurrency = 2;
    aged: "aged" on "aged.bills";
    older_record: "older-record" on "older-record.bills", retry = [];
    other_path: "other-path" on "other-path.bills", retry = [];
    below_horizon: "below-horizon" on "below-horizon.bills", retry = [], expired = "process";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_without_its_effects_is_listed_and_recorded_after_the_replay() {
    let desk = Desk::open("unrecorded").await;
    let id = desk.bill(Plan::Violate).await;
    let run = desk.run();
    assert_eq!(desk.until_letters(1).await, "permanent");
    let listed = desk.idem(&["money", "list", "--state", "unrecorded", "--json"]).await.json();
    assert_eq!(listed["calls"][0]["key"], id.to_string());
    assert_eq!(listed["calls"].as_array().unwrap().len(), 1, "{listed}");

    sqlx::query("DELETE FROM taken").execute(&desk.env.pool).await.unwrap();
    desk.replay().await;
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    assert_eq!((desk.charges(), desk.keys().len()), (1, 1));
    let listed = desk.idem(&["money", "list", "--json"]).await.json();
    assert_eq!(listed["calls"].as_array().unwrap().len(), 0, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_after_the_provider_forgot_the_key_waits_for_a_person() {
    let desk = Desk::open("forgotten").await;
    desk.next(&[DropAfter]);
    let id = desk.bill(Plan::Charge).await;
    let run = desk.run();
    assert_eq!(desk.until_letters(1).await, "exhausted");
    let key = id.to_string();
    let resolve = ["money", "resolve", "--key", &key, "--as", "applied", "--note", "seen at the provider"];
    let said = desk.idem(&resolve).await;
    assert!(said.status == Some(1) && said.stderr.contains("less than a minute ago"), "{}", said.stderr);

    desk.provider.forget_keys();
    desk.age("25 hours").await;
    desk.replay().await;
    assert_eq!(desk.until_letters(2).await, "key-expired");
    assert_eq!((desk.charges(), desk.keys().len()), (1, 1));

    let said = desk.idem(&[&resolve[..], &["--json"]].concat()).await.json();
    assert_eq!((&said["state"], &said["note"]), (&"applied".into(), &"seen at the provider".into()));
    desk.replay().await;
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    assert_eq!((desk.charges(), desk.keys().len()), (1, 1));
    let said = desk.idem(&resolve).await;
    assert!(said.stderr.contains("effects are committed"), "{}", said.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_resolved_as_failed_leaves_with_another_key() {
    let desk = Desk::open("failed").await;
    desk.next(&[DropAfter]);
    let id = desk.bill(Plan::Charge).await;
    let run = desk.run();
    desk.until_letters(1).await;
    desk.age("2 minutes").await;
    let key = id.to_string();
    let resolve = ["money", "resolve", "--key", &key, "--as", "failed", "--note", "undone at the provider"];
    assert_eq!(desk.idem(&resolve).await.status, Some(0));
    desk.replay().await;
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    let keys = desk.keys();
    assert_eq!(keys.len(), 2);
    assert!(keys[0] == key && keys[1] != key, "{keys:?}");
    let rows = desk.rows().await;
    assert_eq!((rows[0].generation, &*rows[0].state), (0, "failed"));
    assert_eq!((rows[1].generation, &*rows[1].state, &rows[1].key, rows[1].recorded), (1, "applied", &keys[1], true));
    let said = desk.idem(&resolve).await;
    assert!(said.stderr.contains("another key followed"), "{}", said.stderr);
    let said = desk.idem(&["money", "resolve", "--key", "none", "--as", "failed", "--note", "n"]).await;
    assert!(said.status == Some(1) && said.stderr.contains("no money call has the key"), "{}", said.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_lost_a_charge_does_not_let_it_leave_again_when_its_key_may_be_forgotten() {
    let mut postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("app").await.unwrap();
    let desk = Desk::on("restored", TestEnv::on(&url, Kafka::shared().await)).await;
    let run = desk.run();
    desk.bill(Plan::Charge).await;
    desk.until_offset(1).await;
    run.stop().await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    postgres.stop_fast().await.unwrap();
    postgres.copy_data_dir_to(&copy.path().join("data")).await.unwrap();
    postgres.start_again().await.unwrap();

    let now: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000)::bigint")
        .fetch_one(&desk.env.pool)
        .await
        .unwrap();
    let old = EventId::now().uuid();
    desk.publish(old, Plan::Charge, Some(now - 25 * 3_600_000)).await;
    let fresh = desk.bill(Plan::Charge).await;
    let run = desk.run();
    desk.until_offset(3).await;
    run.stop().await.unwrap();
    assert_eq!(desk.charges(), 3);

    postgres.stop_immediate().await.unwrap();
    postgres.restore_from(&copy.path().join("data")).await.unwrap();
    postgres.start_again().await.unwrap();
    // As old, and never read before: it is no victim of the restore.
    let late = EventId::now().uuid();
    desk.publish(late, Plan::Charge, Some(now - 25 * 3_600_000)).await;
    let run = desk.run();
    assert_eq!(desk.until_letters(1).await, "key-expired");
    desk.until_effects(3).await;
    // What the database lost is listed, and no replay of the letter charges before a person decided.
    let listed = desk.idem(&["money", "list", "--state", "unknown", "--json"]).await.json();
    assert_eq!((&listed["calls"][0]["key"], &listed["calls"][0]["attempts"]), (&old.to_string().into(), &0.into()));
    assert_eq!(listed["calls"].as_array().unwrap().len(), 1, "{listed}");
    desk.replay().await;
    assert_eq!(desk.until_letters(2).await, "key-expired");
    let key = old.to_string();
    let said = desk.idem(&["money", "resolve", "--key", &key, "--as", "applied", "--note", "it was charged"]).await;
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    desk.replay().await;
    desk.until_effects(4).await;
    run.stop().await.unwrap();
    let asked = |id: uuid::Uuid| desk.keys().iter().filter(|key| **key == id.to_string()).count();
    assert_eq!((asked(old), asked(fresh), asked(late)), (1, 2, 1));
    assert_eq!(desk.charges(), 4, "the first one, the old one, the fresh one, the late one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_of_a_process_that_was_killed_at_once_is_known_after_a_restore() {
    let mut postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("app").await.unwrap();
    let env = TestEnv::on(&url, Kafka::shared().await).with("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000");
    orders::create_tables(&env.pool).await;
    let provider = Provider::start().await.unwrap();
    let env = env.with("IDEM_MONEY_BASE_URL", &provider.url()).with("RUST_LOG", "idem_runtime=info");
    env.kafka.create_topic("paying.orders", 1).await;
    let program = workspace_program("tests", "consumer");
    let publish = async |timestamp: i64| {
        let value = orders::payload(EventId::now().uuid(), 0, &orders::Plan::Succeed);
        env.kafka.produce(Record::to("paying.orders").key("k").value(&value).timestamp(timestamp)).await;
    };
    let done = async |count: i64| {
        eventually(LIMIT, "the offset", async || {
            let committed = env.kafka.committed("paying", "paying.orders").await;
            committed.get(&0).is_some_and(|committed| committed.offset == count)
        })
        .await;
    };
    let now = i64::try_from(EventId::now().uuid().as_u128() >> 80).unwrap();
    publish(now).await;
    let mut first = Program::start(&program, &["paying"], &env.variables());
    done(1).await;
    first.terminate();
    assert!(first.wait(LIMIT).await.success());
    let copy = tempfile::tempdir().unwrap();
    postgres.stop_fast().await.unwrap();
    postgres.copy_data_dir_to(&copy.path().join("data")).await.unwrap();
    postgres.start_again().await.unwrap();

    // It is charged, and killed before it can tell anybody.
    let mut second = Program::start(&program, &["paying"], &env.variables());
    second.line("starting", LIMIT).await;
    publish(now - 25 * 3_600_000).await;
    tokio::time::timeout(LIMIT, async {
        while provider.charges().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    second.kill().await;
    let committed = env.kafka.committed("paying", "paying.orders").await.remove(&0).unwrap();
    let below: i64 = committed.metadata.split(':').nth(2).unwrap().parse().unwrap();
    assert!(committed.offset == 1 && below > 1, "{committed:?}");
    provider.forget_keys();

    postgres.stop_immediate().await.unwrap();
    postgres.restore_from(&copy.path().join("data")).await.unwrap();
    postgres.start_again().await.unwrap();
    let mut third = Program::start(&program, &["paying"], &env.variables());
    done(2).await;
    let letters = env.kafka.read_all("paying.dlq").await;
    assert_eq!(letters[0].header("idem-reason").as_deref(), Some("key-expired"));
    assert_eq!(provider.charges().len(), 2, "the first one, and the one whose answer nobody saw");
    third.terminate();
    assert!(third.wait(LIMIT).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_from_before_the_database_went_back_lets_nothing_leave_until_a_person_decides() {
    let desk = Desk::open("older-record").await;
    desk.next(&[Status(429)]);
    let now: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000)::bigint")
        .fetch_one(&desk.env.pool)
        .await
        .unwrap();
    let id = EventId::now().uuid();
    desk.publish(id, Plan::Charge, Some(now - 25 * 3_600_000)).await;
    let run = desk.run();
    assert_eq!(desk.until_letters(1).await, "exhausted");
    assert_eq!(desk.rows().await[0].state, "waiting");
    desk.age("2 minutes").await;
    let went_back = "UPDATE consumer_progress SET reread_below = 1, reread_at = now() \
                      WHERE consumer_group = $1 AND topic = $2";
    let resolve = async |key: &str| {
        let said = desk.idem(&["money", "resolve", "--key", key, "--as", "failed", "--note", "not there"]).await;
        assert_eq!(said.status, Some(0), "{}", said.stderr);
    };

    // Later requests of the waiting call may be lost, then those of the key after it.
    for (letters, states) in [(2, &["unknown"][..]), (3, &["failed", "unknown"])] {
        sqlx::query(went_back).bind(desk.group).bind(&desk.topic).execute(&desk.env.pool).await.unwrap();
        desk.replay().await;
        assert_eq!(desk.until_letters(letters).await, "key-expired");
        let rows = desk.rows().await;
        let found: Vec<&str> =
            (0..).map_while(|of| Some(&*rows.iter().find(|row| row.generation == of)?.state)).collect();
        assert_eq!(found, states);
        resolve(&rows.iter().find(|row| row.state == "unknown").unwrap().key).await;
    }
    desk.replay().await;
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    let keys = desk.keys();
    assert_eq!((keys.len(), &keys[0], desk.charges()), (2, &id.to_string(), 1));
    let applied: Vec<_> = desk.rows().await.into_iter().filter(|row| row.state == "applied").collect();
    assert_eq!((applied.len(), applied[0].generation, &applied[0].key), (1, 2, &keys[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_group_may_have_forgotten_charges_only_when_a_person_allows_it() {
    let desk = Desk::open("below-horizon").await;
    let run = desk.run();
    let fresh = desk.bill(Plan::Charge).await;
    desk.until_effects(1).await;
    let horizon = "INSERT INTO group_horizon (consumer_group, ids_before) VALUES ($1, now() - interval '1 hour')";
    sqlx::query(horizon).bind(desk.group).execute(&desk.env.pool).await.unwrap();
    let millis = fresh.as_u128() >> 80;
    let two_days_ago = uuid::Uuid::from_u128(((millis - 2 * 86_400_000) << 80) | (fresh.as_u128() & ((1 << 80) - 1)));
    desk.publish(two_days_ago, Plan::Charge, None).await;
    assert_eq!(desk.until_letters(1).await, "key-expired");
    assert_eq!(desk.keys(), [fresh.to_string()]);
    let listed = desk.idem(&["money", "list", "--state", "unknown", "--json"]).await.json();
    assert_eq!(listed["calls"][0]["key"], two_days_ago.to_string(), "{listed}");

    let key = two_days_ago.to_string();
    let said = desk.idem(&["money", "resolve", "--key", &key, "--as", "failed", "--note", "not at the provider"]).await;
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    let replay = ["dlq", "replay", "--group", desk.group, "--event-id", &key, "--allow-expired"];
    assert_eq!(desk.idem(&replay).await.status, Some(0));
    desk.until_effects(2).await;
    run.stop().await.unwrap();
    assert_eq!(desk.charges(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_is_recorded_also_where_the_handler_left_another_search_path() {
    let desk = Desk::open("other-path").await;
    let run = desk.run();
    desk.bill(Plan::LeavePath).await;
    desk.until_effects(1).await;
    // A second call without a name would have the first one's key.
    desk.bill(Plan::EmptyName).await;
    assert_eq!(desk.until_letters(1).await, "permanent");
    run.stop().await.unwrap();
    let rows = desk.rows().await;
    assert_eq!((rows[0].recorded, rows[1].recorded, desk.charges()), (true, false, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_age_out_with_the_window_but_never_while_they_are_open() {
    let desk = Desk::open("aged").await;
    let run = desk.run();
    desk.bill(Plan::Charge).await;
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    let insert = "INSERT INTO money_call (event_id, consumer_group, operation, generation, key, body_hash, state, \
                                          attempt, attempted_at, recorded_at, resolved_at) \
                  SELECT event_id, 'aged', concat(state, recorded, resolved), generation, 'k', '', state, 1, \
                         now() - interval '8 days', CASE WHEN recorded THEN now() END, CASE WHEN resolved THEN now() END \
                    FROM unnest(ARRAY['01900000-0000-7000-8000-000000000001', \
                                      'ff000000-0000-8000-8000-000000000001']::uuid[]) AS event_id, \
                         (VALUES ('applied', true, false, 0), ('applied', false, false, 0), ('applied', false, true, 0), \
                                 ('applied', true, true, 0), ('unknown', false, false, 0), ('waiting', false, false, 0), \
                                 ('refused', true, false, 0), ('refused', false, false, 0), ('failed', false, true, 0), \
                                 ('failed', false, true, 1)) AS call (state, recorded, resolved, generation)";
    assert_eq!(sqlx::query(insert).execute(&desk.env.pool).await.unwrap().rows_affected(), 20);
    let run = desk.run();
    eventually(LIMIT, "what is settled to go", async || desk.rows().await.len() == 9).await;
    run.stop().await.unwrap();
    let mut left: Vec<_> =
        desk.rows().await.into_iter().map(|row| (row.operation, row.generation, row.recorded)).collect();
    left.sort();
    let open = |operation: &str, generation| vec![(operation.to_owned(), generation, false); 2];
    let expected = [
        vec![(String::new(), 0, true)],
        open("appliedff", 0),
        open("appliedft", 0),
        open("failedft", 1),
        open("unknownff", 0),
    ];
    assert_eq!(left, expected.concat(), "the charge of today, what is open, and what a person decided last");
}
