//! The quickstart, run as its reader does: nothing set up, three crashes, nothing lost or doubled.

use std::time::Duration;

use tests::Program;
use tests::child::workspace_program;

/// Its own limit is 80 s; starting and counting come on top.
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::test]
async fn every_effect_happens_once_over_three_crashes() {
    let program = workspace_program("examples", "quickstart");
    let mut quickstart = Program::start(&program, &["--json"], &[]);
    let status = quickstart.wait(LIMIT).await;
    let last = quickstart.output().pop().unwrap_or_default();
    assert!(status.success(), "it said:\n{}", quickstart.output().join("\n"));

    let figures: serde_json::Value = serde_json::from_str(&last).expect("the last line is JSON");
    assert_eq!(figures["published"], 2_425);
    assert_eq!(figures["unique"], 2_000);
    assert_eq!(figures["applied"]["billing-order-confirmed"], 2_000);
    assert_eq!(figures["applied"]["shipping-order-confirmed"], 2_000);
    // Each group reads each bad record.
    assert_eq!(figures["dead_lettered"]["unparsable"], 40);
    assert_eq!(figures["dead_lettered"]["null"], 10);
    assert_eq!((&figures["lost"], &figures["double_effects"]), (&0.into(), &0.into()));
    // A crash can only add to these: what was under way is delivered, or sent to a retry topic, again.
    let at_least = |what: &str, least| assert!(figures[what].as_u64() >= Some(least), "{what}: {last}");
    at_least("crashes", 3);
    at_least("duplicates_skipped", 2 * 400);
    at_least("retried", 2 * 2 * 30);
}
