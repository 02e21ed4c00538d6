//! The demonstration in its short form: crashes, rebalances, lost answers, and books that agree.

use std::time::Duration;

use tests::Program;
use tests::child::workspace_example;

#[tokio::test]
async fn charges_equal_events_though_answers_are_lost_and_processes_killed() {
    let mut campaign = Program::start(&workspace_example("examples", "money"), &["--json"], &[]);
    let last = campaign.line("\"events\"", Duration::from_secs(110)).await;
    let figures: serde_json::Value = serde_json::from_str(&last).expect("the figures are a line of JSON");
    assert_eq!((&figures["events"], &figures["charges"]), (&600.into(), &600.into()), "{last}");
    for nothing in ["double_charges", "missed", "unknown"] {
        assert_eq!(figures[nothing], 0, "{nothing}: {last}");
    }
    for some in ["crashes", "lost_answers"] {
        assert!(figures[some].as_u64() >= Some(2), "{some}: {last}");
    }
    assert!(campaign.wait(Duration::from_secs(30)).await.success());
}
