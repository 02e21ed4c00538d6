use super::*;

const DAY: i64 = 86_400_000;
const RULES: Rules = Rules { window: 7 * DAY, skew: DAY, max_hold: 30 * DAY };

fn floor(group: &str, millis: i64) -> Floor {
    Floor { group: group.to_owned(), millis }
}

#[test]
fn a_day_is_emptied_after_the_window_and_when_everybody_has_read_it() {
    let end = 100 * DAY;
    let held = |by: &[&str]| Verdict::Held(by.iter().map(ToString::to_string).collect());
    let due = |now| Verdict::Due { processed_before: now - 7 * DAY };
    let overdue = |now| Verdict::Due { processed_before: now - 30 * DAY };
    let cases = [
        (106 * DAY, vec![], Verdict::Remembered),
        (107 * DAY - 1, vec![], Verdict::Remembered),
        (107 * DAY, vec![], due(107 * DAY)),
        (107 * DAY, vec![floor("a", 101 * DAY)], due(107 * DAY)),
        (107 * DAY, vec![floor("a", 101 * DAY - 1)], held(&["a"])),
        (107 * DAY, vec![floor("a", 90 * DAY), floor("b", 107 * DAY), floor("c", i64::MIN)], held(&["a", "c"])),
        (130 * DAY - 1, vec![floor("a", i64::MIN)], held(&["a"])),
        (130 * DAY, vec![floor("a", i64::MIN)], overdue(130 * DAY)),
        (500 * DAY, vec![floor("a", 90 * DAY), floor("b", 499 * DAY)], overdue(500 * DAY)),
        (500 * DAY, vec![floor("a", 101 * DAY)], due(500 * DAY)),
    ];
    for (now, floors, expected) in cases {
        assert_eq!(judge(end, now, &RULES, &floors), expected, "{now} {floors:?}");
    }
}

#[test]
fn a_floor_is_what_was_read() {
    let main = Position { topic: Topic::Main, event: Some(50), caught_up: Some(40) };
    let cases = [
        (main, Some(50)),
        (Position { caught_up: Some(80), ..main }, Some(80)),
        (Position { caught_up: None, ..main }, Some(50)),
        (Position { event: None, caught_up: None, ..main }, Some(i64::MIN)),
        (Position { topic: Topic::Retry, caught_up: Some(80), ..main }, Some(50)),
        (Position { topic: Topic::Retry, event: None, caught_up: Some(80) }, Some(i64::MIN)),
        (Position { topic: Topic::Replay, ..main }, None),
    ];
    for (position, expected) in cases {
        assert_eq!(floor_of(&position), expected, "{position:?}");
    }
}

#[test]
fn limits_keep_the_horizon_below_what_is_unread() {
    let limits = limits(&RULES, &[floor("a", 100 * DAY), floor("b", i64::MIN)]);
    assert_eq!((limits[0].ids_before, limits[0].natural_before), (99 * DAY, 98 * DAY));
    assert_eq!((limits[1].ids_before, limits[1].natural_before), (i64::MIN, i64::MIN));
}

#[test]
fn an_adopted_table_begins_with_a_horizon_that_lets_new_events_pass() {
    let now = 100 * DAY;
    for (oldest, expected) in [
        (70 * DAY, 71 * DAY),
        (98 * DAY + DAY / 2, 99 * DAY),
        (99 * DAY + DAY / 2, 99 * DAY + DAY / 2),
        (now - 1, now - 1),
    ] {
        assert_eq!(horizon_of_adopted(oldest, now, DAY), expected);
    }
}

#[test]
fn only_very_many_empty_days_are_merged_from_the_first_on() {
    let days = |count: i64, first_used: i64| (0..count).map(|day| (day, day < first_used)).collect::<Vec<_>>();
    for (count, first_used, expected) in [(400, 400, 0), (401, 401, 100), (401, 30, 30), (401, 0, 0), (1_000, 990, 100)]
    {
        assert_eq!(days_to_merge(&days(count, first_used)), expected, "{count} {first_used}");
    }
}
