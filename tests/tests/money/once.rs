//! One charge, whatever is lost on the way.

use std::time::Duration;

use idem_runtime::prelude::*;
use idem_runtime::testing::ProviderFault::{ChargeAfter, DropAfter, DropBefore, Garbage};
use tests::postgres::open_transactions;
use tests::{Fault, Proxy, TestEnv, eventually};

use crate::bill::{Desk, LIMIT, Plan};
use crate::money_handlers;

money_handlers! {
    lost: "lost" on "lost.bills", retry = ["200ms"];
    terminated: "terminated" on "terminated.bills", retry = ["200ms"];
    stale_connection: "stale-connection" on "stale-connection.bills", retry = [];
    swallowing: "swallowing" on "swallowing.bills", retry = ["200ms", "1s"];
    unsettled: "unsettled" on "unsettled.bills";
    waiting: "waiting" on "waiting.bills", concurrency = 8;
    ahead: "ahead" on "ahead.bills", concurrency = 2;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_asked_for_with_the_same_key_over_retry_restart_and_replay() {
    let desk = Desk::open("lost").await;
    desk.next(&[DropAfter, Garbage]);
    let id = desk.bill(Plan::Charge).await;
    let run = desk.run();
    assert_eq!(desk.until_letters(1).await, "exhausted");
    run.stop().await.unwrap();
    assert_eq!(desk.rows().await[0].state, "unknown");
    let listed = desk.idem(&["money", "list", "--state", "unknown", "--json"]).await.json();
    assert_eq!(listed["calls"][0]["key"], id.to_string(), "{listed}");

    desk.next(&[DropAfter]);
    let run = desk.run();
    desk.replay().await;
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    assert_eq!(desk.keys(), vec![id.to_string(); 4], "topic, retry topic, replay, retry topic again");
    assert_eq!(desk.charges(), 1);
    let rows = desk.rows().await;
    assert_eq!((rows.len(), &*rows[0].state, rows[0].attempt, rows[0].recorded), (1, "applied", 4, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_server_ends_during_the_call_is_one_charge() {
    let desk = Desk::open("terminated").await;
    // The answer is lost as well: a second request has to leave.
    desk.provider.charge_in(Duration::from_millis(1_500));
    desk.next(&[DropAfter]);
    let id = desk.bill(Plan::Charge).await;
    let run = desk.run();
    eventually(LIMIT, "the request", async || desk.keys().len() == 1).await;
    assert_eq!(open_transactions(&desk.env.pool).await, 1);
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                  WHERE datname = current_database() AND state = 'idle in transaction'";
    let ended: i64 = sqlx::query_scalar(ended).fetch_one(&desk.env.pool).await.unwrap();
    assert_eq!(ended, 1);
    desk.until_effects(1).await;
    desk.until_offset(1).await;
    run.stop().await.unwrap();
    assert_eq!(desk.keys(), [id.to_string(), id.to_string()]);
    assert_eq!(desk.charges(), 1);
    assert!(desk.rows().await[0].recorded);
    assert_eq!(desk.letters().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reused_connection_that_dies_after_the_body_was_sent_is_not_tried_again_by_itself() {
    let desk = Desk::open("stale-connection").await;
    let run = desk.run();
    desk.bill(Plan::Charge).await;
    desk.until_effects(1).await;
    assert_eq!(desk.provider.connections(), 1);
    desk.next(&[DropBefore]);
    let second = desk.bill(Plan::Charge).await;
    assert_eq!(desk.until_letters(1).await, "exhausted");
    run.stop().await.unwrap();
    assert_eq!(desk.provider.connections(), 1, "it was reused");
    assert_eq!(desk.keys().iter().filter(|key| **key == second.to_string()).count(), 1);
    assert_eq!(desk.rows().await[1].state, "unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_an_answer_can_not_be_swallowed() {
    let desk = Desk::open("swallowing").await;
    desk.next(&[DropAfter, ChargeAfter(Duration::from_millis(400))]);
    let run = desk.run();
    desk.bill(Plan::Swallow).await;
    desk.until_effects(1).await;
    assert_eq!((desk.charges(), desk.keys().len()), (1, 2), "the first answer was lost, the handler said Ok");
    assert!(desk.rows().await[0].recorded);

    // What is certain may be caught: nothing is open then.
    desk.next(&[idem_runtime::testing::ProviderFault::Status(400)]);
    desk.bill(Plan::Swallow).await;
    desk.until_effects(2).await;
    assert_eq!(desk.rows().await[1].state, "refused");

    desk.next(&[ChargeAfter(Duration::from_millis(300))]);
    desk.bill(Plan::GiveUpWaiting).await;
    desk.until_effects(3).await;
    assert_eq!(desk.charges(), 2);
    assert_eq!(desk.letters().await, []);

    // A refusal after a request that may have been carried out is not certain.
    desk.next(&[DropAfter, idem_runtime::testing::ProviderFault::Status(404)]);
    desk.bill(Plan::Swallow).await;
    assert_eq!(desk.until_letters(1).await, "permanent");
    run.stop().await.unwrap();
    let states: Vec<_> = desk.rows().await.into_iter().map(|row| (row.state, row.recorded)).collect();
    let recorded = |state: &str| (state.to_owned(), true);
    let open = ("unknown".to_owned(), false);
    assert_eq!(states, [recorded("applied"), recorded("refused"), recorded("applied"), open]);
    assert_eq!((desk.effects().await, desk.charges()), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_could_not_be_recorded_is_asked_for_again() {
    let database = tests::postgres::database().await;
    let proxy = Proxy::start(tests::postgres::shared().await.port()).await;
    let env = TestEnv::on(&database, tests::Kafka::shared().await).with("IDEM_DATABASE_URL", &proxy.url(&database));
    let desk = Desk::on("unsettled", env).await;
    let run = desk.run();
    desk.bill(Plan::Charge).await;
    desk.until_effects(1).await;

    // The event's transaction settles the answer, and the attempt does if that is lost: nothing is sent again.
    proxy.arm(Fault::CutBefore, "EXECUTE idem_record_call", 1);
    desk.bill(Plan::Charge).await;
    desk.until_effects(2).await;
    assert_eq!(proxy.count(Fault::CutBefore), 1);
    assert_eq!(desk.keys().len(), 2);
    assert_eq!(desk.env.kafka.read_all("unsettled.retry.1s").await, [], "an outage costs no attempt");

    // If that is lost as well, the event waits, and the same key leaves once more.
    proxy.arm(Fault::CutBefore, "UPDATE money_call SET state = $6", 2);
    let id = desk.bill(Plan::Violate).await;
    assert_eq!(desk.until_letters(1).await, "permanent");
    assert_eq!(proxy.count(Fault::CutBefore), 3);
    let keys = desk.keys();
    assert!(keys.len() >= 4 && keys[2..].iter().all(|key| *key == id.to_string()), "{keys:?}");
    assert_eq!(desk.rows().await[2].state, "applied");
    sqlx::query("DELETE FROM taken").execute(&desk.env.pool).await.unwrap();
    desk.replay().await;
    desk.until_effects(3).await;
    run.stop().await.unwrap();
    assert_eq!((desk.keys().len(), desk.charges()), (keys.len(), 3));
    assert!(desk.rows().await.iter().all(|row| row.state == "applied" && row.recorded));
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_is_told_how_far_charges_ran_ahead_of_one_that_waits() {
    let desk = Desk::open("ahead").await;
    desk.next(&[ChargeAfter(Duration::from_secs(4))]);
    let run = desk.run();
    desk.bill(Plan::Charge).await;
    eventually(LIMIT, "the slow request", async || desk.keys().len() == 1).await;
    desk.bill(Plan::Charge).await;
    eventually(LIMIT, "the other request", async || desk.keys().len() == 2).await;
    // Both, and what is reserved above them.
    eventually(LIMIT, "what was read above the position", async || {
        let committed = desk.env.kafka.committed(desk.group, &desk.topic).await;
        let Some(committed) = committed.get(&0) else { return false };
        let read: Vec<&str> = committed.metadata.split(':').collect();
        committed.offset == 0 && read.len() == 4 && read[2].parse::<i64>().is_ok_and(|below| below == 2 + 8)
    })
    .await;
    desk.until_effects(2).await;
    run.stop().await.unwrap();
    assert_eq!(desk.charges(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_different_keys_wait_for_the_provider_together() {
    let desk = Desk::open("waiting").await;
    desk.provider.charge_in(Duration::from_millis(300));
    for _ in 0..24 {
        desk.bill(Plan::Charge).await;
    }
    let run = desk.run();
    desk.until_effects(24).await;
    desk.until_offset(24).await;
    run.stop().await.unwrap();
    assert_eq!((desk.charges(), desk.provider.most_at_once()), (24, 8));
    assert!(desk.rows().await.iter().all(|row| row.attempt == 1 && row.recorded));
}
