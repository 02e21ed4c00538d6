//! The key of a call, and its body.

use idem_runtime::prelude::*;
use idem_runtime::testing::ProviderFault::{DropBefore, Status};
use tests::Record;

use crate::bill::{Desk, Plan, env_with};
use crate::money_handlers;

money_handlers! {
    bare: "bare" on "bare.bills", retry = ["100ms"];
    quoted: "quoted" on "quoted.bills", retry = ["100ms"];
    named: "named" on "named.bills", operation = "charge", retry = ["100ms"];
    changed: "changed" on "changed.bills", retry = ["100ms"];
    twice: "twice" on "twice.bills", retry = ["100ms"];
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_the_event_id_bare_or_as_a_structured_field_and_stable() {
    for (group, format) in [("bare", "bare"), ("quoted", "quoted")] {
        let desk = Desk::on(group, env_with(&[("IDEM_MONEY_KEY_FORMAT", format)]).await).await;
        desk.next(&[DropBefore]);
        let id = desk.bill(Plan::Charge).await;
        let run = desk.run();
        desk.until_effects(1).await;
        run.stop().await.unwrap();
        let expected = if format == "bare" { id.to_string() } else { format!("\"{id}\"") };
        assert_eq!(desk.keys(), [expected.clone(), expected]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_makes_another_key_of_the_event() {
    let desk = Desk::open("named").await;
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let value = r#"{"event_id":"0198c5f4-7a00-7000-8000-000000000001","plan":"refund"}"#;
    let record = Record::to(&desk.topic).value(value).header("traceparent", Some(traceparent.as_bytes()));
    desk.env.kafka.produce(record).await;
    // The second call fails at first: both are asked for again, and the first one needs no request.
    desk.next(&[Status(201), Status(503)]);
    let run = desk.run();
    desk.until_effects(1).await;
    run.stop().await.unwrap();
    let requests = desk.provider.requests();
    let paths: Vec<&str> = requests.iter().map(|request| &*request.path).collect();
    assert_eq!(paths, ["/charges", "/refunds", "/refunds"]);
    assert_ne!(requests[0].key, requests[1].key);
    assert_eq!(requests[1].key, requests[2].key);
    assert!(requests.iter().all(|request| request.key.as_deref().unwrap().len() == 36));
    assert!(requests.iter().all(|request| request.headers.contains(&("traceparent".into(), traceparent.into()))));
    assert!(requests.iter().all(|request| request.key.as_deref() != Some("0198c5f4-7a00-7000-8000-000000000001")));
    let rows = desk.rows().await;
    assert_eq!((&*rows[0].operation, &*rows[1].operation), ("charge", "refund"));
    assert!(rows.iter().all(|row| row.state == "applied" && row.recorded));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_differs_between_attempts_is_named_before_it_leaves() {
    let desk = Desk::open("changed").await;
    desk.next(&[Status(500)]);
    desk.bill(Plan::ChangeBody).await;
    let run = desk.run();
    assert_eq!(desk.until_letters(1).await, "body-changed");
    run.stop().await.unwrap();
    let error = desk.letters().await[0].header("idem-error").unwrap();
    assert!(error.contains("differ from those of an earlier attempt"), "{error}");
    assert_eq!((desk.keys().len(), desk.charges()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_call_without_a_name_does_not_leave() {
    let desk = Desk::open("twice").await;
    desk.bill(Plan::TwoUnnamed).await;
    let run = desk.run();
    assert_eq!(desk.until_letters(1).await, "permanent");
    run.stop().await.unwrap();
    let error = desk.letters().await[0].header("idem-error").unwrap();
    assert!(error.contains("second call with one name") && error.contains("operation"), "{error}");
    assert_eq!((desk.keys().len(), desk.charges()), (1, 1));
}
