//! What the provider's answer means for the event.

use std::time::Duration;

use idem_runtime::prelude::*;
use idem_runtime::testing::ProviderFault::{AnswerAfter, ChargeAfter, DropAfter, Redirect, RetryAfter, Status};
use tests::eventually;

use crate::bill::{Desk, LIMIT, Plan, env_with};
use crate::money_handlers;

money_handlers! {
    in_flight: "in-flight" on "in-flight.bills", conflict = "in_flight", retry = ["100ms", "200ms"];
    conflicting: "conflicting" on "conflicting.bills", retry = ["100ms"];
    said_done: "said-done" on "said-done.bills", conflict = "processed", retry = [];
    unauthorised: "unauthorised" on "unauthorised.bills", concurrency = 4, retry = ["100ms"];
    patient: "patient" on "patient.bills", retry = ["100ms", "2s"];
    declined: "declined" on "declined.bills", retry = ["100ms"];
    slow: "slow" on "slow.bills", retry = ["1s"];
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_that_means_in_flight_is_retried_and_a_422_is_permanent() {
    let desk = Desk::open("in-flight").await;
    desk.next(&[Status(409), Status(409)]);
    let id = desk.bill(Plan::Charge).await;
    let run = desk.run();
    desk.until_effects(1).await;
    assert_eq!(desk.keys(), vec![id.to_string(); 3]);
    desk.next(&[Status(422)]);
    desk.bill(Plan::Charge).await;
    assert_eq!(desk.until_letters(1).await, "permanent");
    run.stop().await.unwrap();
    assert_eq!((desk.charges(), desk.keys().len()), (1, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_is_done_only_some_time_after_a_request_whose_answer_was_lost() {
    let desk = Desk::open("conflicting").await;
    let run = desk.run();
    // Nothing was asked for before: who did it is open.
    desk.next(&[Status(409), Status(409)]);
    let first = desk.bill(Plan::Charge).await;
    assert_eq!(desk.until_letters(1).await, "conflict");
    assert_eq!(desk.rows().await[0].state, "unknown", "the provider knows the key");

    // At once after a lost answer it may be in flight.
    desk.next(&[DropAfter, Status(409)]);
    let second = desk.bill(Plan::Charge).await;
    assert_eq!(desk.until_letters(2).await, "conflict");
    assert_eq!(desk.rows().await[1].state, "unknown");

    let replay = async |event_id| {
        let filter = idem_runtime::ops::dlq::Filter { event_id: Some(event_id), ..Default::default() };
        let letters = idem_runtime::ops::replay::Options { filter, ..Default::default() };
        idem_runtime::ops::replay::replay(&desk.ops(), desk.group, &letters, &mut idem_runtime::ops::silent)
            .await
            .unwrap();
    };
    // Two minutes later a request without an answer is done; one that was answered with a conflict proves nothing.
    desk.age("2 minutes").await;
    desk.next(&[Status(409), Status(409)]);
    replay(first).await;
    assert_eq!(desk.until_letters(3).await, "conflict");
    assert_eq!(desk.effects().await, 0);
    desk.next(&[Status(409)]);
    replay(second).await;
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    let rows = desk.rows().await;
    assert_eq!((&*rows[1].state, rows[1].recorded, rows[1].attempt), ("applied", true, 3));
    assert_eq!(desk.charges(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_says_done_with_a_conflict_is_believed_where_the_handler_says_so() {
    let desk = Desk::open("said-done").await;
    desk.next(&[Status(409)]);
    desk.bill(Plan::Charge).await;
    let run = desk.run();
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    assert_eq!(desk.rows().await[0].state, "applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_turns_every_call_away_costs_no_event_and_readiness_says_why() {
    let desk = Desk::open("unauthorised").await;
    for fault in [Status(401), Redirect] {
        desk.provider.always(Some(fault.clone()));
        let before = desk.effects().await;
        let offset = desk.keys().len();
        let run = desk.run();
        for _ in 0..4 {
            desk.bill(Plan::Charge).await;
        }
        let status = if fault == Redirect { "HTTP 307" } else { "HTTP 401" };
        eventually(LIMIT, "readiness to say why", async || {
            run.health.reasons().iter().any(|reason| reason.contains(status))
        })
        .await;
        eventually(LIMIT, "some more attempts", async || desk.keys().len() >= offset + 12).await;
        assert_eq!(desk.effects().await, before);
        desk.provider.always(None);
        desk.until_effects(before + 4).await;
        eventually(LIMIT, "readiness", async || run.health.is_ready()).await;
        run.stop().await.unwrap();
    }
    assert_eq!(desk.charges(), 8);
    assert_eq!((desk.letters().await, desk.env.kafka.read_all("unauthorised.retry.100ms").await), (vec![], vec![]));
    assert!(desk.rows().await.iter().all(|row| row.state == "applied" && row.recorded));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_asks_for_time_gets_it() {
    let desk = Desk::open("patient").await;
    desk.next(&[RetryAfter("1".to_owned())]);
    let run = desk.run();
    desk.bill(Plan::Charge).await;
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    assert_eq!(desk.env.kafka.read_all("patient.retry.100ms").await, [], "100 ms are too soon");
    assert_eq!(desk.env.kafka.read_all("patient.retry.2s").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_may_record_a_decline_also_one_whose_first_answer_was_lost() {
    let desk = Desk::open("declined").await;
    // The first answer is lost, and nothing was charged.
    desk.next(&[idem_runtime::testing::ProviderFault::DropBefore, Status(402)]);
    let run = desk.run();
    desk.bill(Plan::TakeDecline).await;
    desk.until_effects(1).await;
    // Without the handler's word a decline is a dead letter.
    desk.next(&[Status(402)]);
    desk.bill(Plan::Charge).await;
    assert_eq!(desk.until_letters(1).await, "permanent");
    run.stop().await.unwrap();
    let rows = desk.rows().await;
    assert_eq!((&*rows[0].state, rows[0].recorded), ("refused", true));
    assert_eq!((&*rows[1].state, rows[1].recorded), ("refused", false));
    assert_eq!(desk.charges(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_is_a_lost_one_and_the_key_in_flight_is_waited_for() {
    let env = env_with(&[("IDEM_MONEY_TIMEOUT", "300ms")]).await;
    let desk = Desk::on("slow", env).await;
    let run = desk.run();
    for fault in [AnswerAfter(Duration::from_millis(600)), ChargeAfter(Duration::from_millis(600))] {
        desk.next(&[fault]);
        desk.bill(Plan::Charge).await;
    }
    desk.until_effects(2).await;
    run.stop().await.unwrap();
    assert_eq!((desk.charges(), desk.letters().await.len()), (2, 0));
    assert!(desk.rows().await.iter().all(|row| row.state == "applied" && row.attempt == 2 && row.recorded));
}
