//! What is refused before the first event.

use idem_runtime::prelude::*;
use tests::{Run, eventually};

use crate::bill::{Desk, LIMIT, Plan, env_with};
use crate::money_handlers;

money_handlers! {
    first_here: "first-here" on "shared-name.bills";
    second_here: "second-here" on "shared-name.bills";
    other_name: "other-name" on "shared-name.bills", operation = "fee";
    short: "short" on "short.bills", timeout = "5s";
}

#[tokio::test(flavor = "multi_thread")]
async fn two_groups_whose_calls_have_one_name_are_refused_in_one_process_and_in_two() {
    let desk = Desk::open("first-here").await;
    desk.env.kafka.create_topic("shared-name.bills", 1).await;
    let error = async |groups: &[&str]| {
        Run::start(&desk.env, groups).ended(LIMIT).await.expect_err("one name for two calls").to_string()
    };
    let said = error(&["first-here", "second-here"]).await;
    for part in ["`first-here`", "`second-here`", "`shared-name.bills`", "operation = "] {
        assert!(said.contains(part), "{said}");
    }

    let run = Run::start(&desk.env, &["first-here", "other-name"]);
    let value = format!(r#"{{"event_id":"{}"}}"#, EventId::now());
    desk.env.kafka.produce(tests::Record::to("shared-name.bills").value(&value)).await;
    desk.until_effects(1).await;
    eventually(LIMIT, "a charge of each operation", async || desk.charges() == 2).await;
    run.stop().await.unwrap();
    let said = error(&["second-here"]).await;
    for part in ["`first-here`", "`second-here`", "`shared-name.bills`", "operation = ", "group forget first-here"] {
        assert!(said.contains(part), "{said}");
    }
    let keys = desk.keys();
    assert_ne!(keys[0], keys[1], "each operation has a key of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_may_outlast_its_handler_is_refused_with_both_numbers() {
    let desk = Desk::on("short", env_with(&[("IDEM_MONEY_TIMEOUT", "5s")]).await).await;
    desk.bill(Plan::Charge).await;
    let error = desk.run().ended(LIMIT).await.expect_err("a contradiction").to_string();
    for part in ["IDEM_MONEY_TIMEOUT is 5s", "the `timeout` of money::start::short is 5s"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(desk.keys(), [""; 0]);
}
