//! The whole chain, with its processes killed at random.

use std::time::Duration;

use tests::Program;
use tests::child::workspace_example;

#[tokio::test]
async fn every_order_takes_effect_once_over_service_outbox_handler_outbox_and_handler() {
    // A tenth of what the example does by itself, as it has to be built without optimisation here.
    let orders = std::env::var("IDEM_TEST_ORDERS").unwrap_or_else(|_| "1000".to_owned());
    let program = workspace_example("examples", "orders_pipeline");
    let mut pipeline = Program::start(&program, &["--json", "--orders", &orders], &[]);
    let last = pipeline.line("\"orders\"", Duration::from_secs(300)).await;
    let figures: serde_json::Value = serde_json::from_str(&last).expect("the figures are a line of JSON");
    let wanted: u64 = orders.parse().expect("a number");
    assert_eq!((figures["orders"].as_u64(), figures["effects"].as_u64()), (Some(wanted), Some(wanted)), "{last}");
    assert_eq!((&figures["lost"], &figures["double_effects"]), (&0.into(), &0.into()), "{last}");
    assert!(figures["crashes"].as_u64() >= Some(2), "{last}");
    assert!(pipeline.wait(Duration::from_secs(30)).await.success());
}
