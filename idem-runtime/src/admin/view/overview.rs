//! The first page: is it well, and if not, where to look.

use maud::{Markup, html};

use super::parts::{ago, asked, bytes, count, handler, millis, rate, span, sparkline};
use super::{Chrome, how_to_change, outbox, page, secret};
use crate::admin::overview::{Failure, GroupView, HandlerView, Overview};
use crate::decide::money::IN_FLIGHT;
use crate::ops::Timestamp;
use crate::ops::groups::{Brake, Group};
use crate::ops::money::Call;
use crate::ops::partitions::{Partition, Partitions};

pub(in crate::admin) fn overview(chrome: &Chrome<'_>, shown: &Overview) -> Markup {
    let now = shown.now;
    let body = html! {
        (verdict(chrome, shown))
        @for group in &shown.groups { (group_section(group)) }
        (asked(&shown.brakes, |brakes| html! { @if !brakes.is_empty() { (brakes_section(chrome, brakes, now)) } }))
        section {
            h2 { "Last failures" }
            @if shown.failures.is_empty() { p.dim { "None since the start of this process." } }
            @else { (failures(&shown.failures, now)) }
        }
        section {
            h2 { "Money calls to look at" }
            (asked(&shown.money, |calls| money(chrome, calls, now)))
        }
        section {
            h2 { "Outbox" }
            (asked(&shown.outbox, |outbox| outbox::section(chrome, outbox, now)))
        }
        section {
            h2 { "Dedup table" }
            (asked(&shown.dedup, window))
            (asked(&shown.known_groups, |groups| memory(groups, now)))
        }
        footer.dim { "As of " time { (now) } " · " a href="/metrics" { "metrics" } " · " a href="/api/overview" { "JSON" } }
    };
    page(chrome, if shown.ready { "Ready" } else { "Not ready" }, body)
}

/// The answer to the first question, in one line.
fn verdict(chrome: &Chrome<'_>, shown: &Overview) -> Markup {
    html! {
        section.verdict.well[shown.ready].ill[!shown.ready] role="status" {
            h1 { @if shown.ready { "Everything runs" } @else { "Something is in the way" } }
            @if !shown.reasons.is_empty() { ul { @for reason in &shown.reasons { li { (reason) } } } }
            p.totals { (totals(shown)) }
            p.refresh {
                @if chrome.refresh.is_some() { a href="/" { "Stop refreshing" } }
                @else { a href="/?refresh=5" { "Refresh every 5 s" } }
            }
        }
    }
}

/// What there is to do, in one line.
fn totals(shown: &Overview) -> String {
    let lag: i64 = shown.groups.iter().filter_map(|group| group.lag).sum();
    let letters: u64 = shown.groups.iter().filter_map(|group| group.letters_in_queue.as_ref().ok()).sum();
    let mut parts = vec![format!("{} behind", count(lag.unsigned_abs())), format!("{} dead letters", count(letters))];
    if let Ok(calls) = &shown.money {
        let open = calls.iter().filter(|call| !is_waiting(call, shown.now)).count();
        parts.push(format!("{open} money calls to look at"));
    }
    if let Ok(outbox) = &shown.outbox
        && !outbox.parked.is_empty()
    {
        parts.push(format!("{} parked in the outbox", outbox.parked.len()));
    }
    if let Ok(brakes) = &shown.brakes {
        parts.push(format!("{} stopped lanes", brakes.len()));
    }
    parts.join(" · ")
}

/// Whether a request left so lately that its answer may still come.
fn is_waiting(call: &Call, now: Timestamp) -> bool {
    let age = call.last_at.map_or(u64::MAX, |at| now.0.saturating_sub(at.0));
    call.state == "unknown" && u128::from(age) < IN_FLIGHT.as_millis()
}

fn group_section(group: &GroupView) -> Markup {
    let letters: u64 = group.letters.values().sum();
    html! {
        section {
            h2 { "Group " code { (group.group) } }
            dl.facts {
                div { dt { "behind" } dd.bad[group.lag.is_some_and(|lag| lag > 10_000)] { (known(group.lag)) } }
                div { dt { "in progress" } dd { (group.in_flight) } }
                div { dt { "rebalances" } dd { (group.rebalances) } }
                div {
                    dt { "dead letters" }
                    dd {
                        @match &group.letters_in_queue {
                            Ok(0) => "0",
                            Ok(queued) => a.bad href={ "/dlq?group=" (escaped(&group.group)) } { (count(*queued)) },
                            Err(_) => "?",
                        }
                        @if letters > 0 { " " small.dim { (count(letters)) " since the start" } }
                    }
                }
            }
            div.scroll { table {
                thead { tr {
                    th { "handler" } th.wide { "topic" } th.n { "events/s" } th.wide { "last 5 min" } th.n { "a call takes" }
                    th.n { "event age" } th { "outcomes since the start" }
                } }
                tbody { @for one in &group.handlers { (handler_row(one)) } }
            } }
            details {
                summary { (group.lanes.len()) " partitions in this process" }
                div.scroll { table {
                    thead { tr { th { "partition" } th.n { "position" } th.n { "behind" } th.n { "in memory" } th { "state" } } }
                    tbody { @for lane in &group.lanes { tr {
                        td { (lane.topic) "/" (lane.partition) }
                        td.n { (lane.position) }
                        td.n { (known(lane.lag)) }
                        td.n { (bytes(lane.queued_bytes as u64)) }
                        td {
                            @if let Some(reason) = lane.brake { span.bad { "stopped: " (reason) } }
                            @else if let Some(stood) = lane.stalled_for_s { span.bad { "stands for " (span(stood * 1_000)) } }
                            @else { "works" }
                        }
                    } } }
                } }
            }
        }
    }
}

fn handler_row(shown: &HandlerView) -> Markup {
    html! { tr {
        td { (handler(shown.handler)) }
        td.wide { (shown.topic) }
        td.n { (rate(shown.per_second)) }
        td.wide { (sparkline(&shown.recent)) }
        td.n { @if let Some(mean) = shown.mean_call_ms { (millis(mean)) } @else { "–" } }
        td.n { @if let Some(age) = shown.last_age_ms { (span(age)) } @else { "–" } }
        td {
            @for (outcome, events) in &shown.outcomes {
                span.tag.bad[*outcome == "dead-letter"].warn[*outcome == "retry"] { (outcome) " " (count(*events)) } " "
            }
        }
    } }
}

fn known(lag: Option<i64>) -> String {
    lag.map_or_else(|| "?".to_owned(), |lag| count(lag.unsigned_abs()))
}

fn brakes_section(chrome: &Chrome<'_>, brakes: &[Brake], now: Timestamp) -> Markup {
    html! {
        section {
            h2.bad { "Stopped lanes" }
            p { "Everything in these partitions went to the dead letter queue for one reason. Find out why, then let them go on." }
            div.scroll { table {
                thead { tr { th { "group" } th { "partition" } th { "reason" } th { "since" } th {} } }
                tbody { @for brake in brakes { tr {
                    td { (brake.group) } td { (brake.topic) "/" (brake.partition) } td { (brake.reason) } td { (ago(brake.since, now)) }
                    td { @if chrome.form_secret.is_some() {
                        form method="post" action="/groups/resume" {
                            (secret(chrome)) input type="hidden" name="group" value=(brake.group);
                            button { "Resume the group" }
                        }
                    } }
                } } }
            } }
            @if chrome.form_secret.is_none() { (how_to_change(chrome)) }
        }
    }
}

fn failures(failures: &[Failure], now: Timestamp) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "last" } th.n { "times" } th { "handler" } th { "what failed" } th { "then" } th { "last at" } } }
            tbody { @for failure in failures { tr {
                td { (ago(failure.last_at, now)) }
                td.n { (count(failure.count)) }
                td { (handler(&failure.handler)) }
                td.long { code { (failure.error) } }
                td { span.tag.bad[failure.next == "dead-letter"].warn[failure.next != "dead-letter"] { (failure.next) } }
                td { (failure.topic) "/" (failure.partition) " " span.dim { "@" (failure.offset) } }
            } } }
        } }
    }
}

fn money(chrome: &Chrome<'_>, calls: &[Call], now: Timestamp) -> Markup {
    if calls.is_empty() {
        return html! { p.dim { "None." } };
    }
    html! {
        p {
            b { "unknown" } ": a request left and nobody knows what became of it. "
            b { "unrecorded" } ": it was carried out, and the event's effects are not committed. "
            b { "waiting" } ": a request has just left."
        }
        div.scroll { table {
            thead { tr { th { "state" } th { "key" } th { "group" } th { "call" } th.n { "requests" } th { "last request" } th.n { "status" } th {} } }
            tbody { @for call in calls { tr {
                td {
                    @if is_waiting(call, now) { span.tag { "waiting" } }
                    @else { span.tag.bad { @if call.state == "applied" { "unrecorded" } @else { (call.state) } } }
                }
                td { code { (call.key) } }
                td { (call.group) }
                td { (call.operation) }
                td.n { (call.attempts) }
                td { @if let Some(at) = call.last_at { (ago(at, now)) } }
                td.n { @if let Some(status) = call.status { (status) } @else { "–" } }
                td { @if chrome.form_secret.is_some() { a href={ "/money/resolve?key=" (escaped(&call.key)) } { "resolve" } } }
            } } }
        } }
        @if chrome.form_secret.is_none() { (how_to_change(chrome)) }
    }
}

/// The partitions of the dedup table side by side: how full each is, which are kept for somebody, and
/// which may go.
fn window(dedup: &Partitions) -> Markup {
    const BAR: usize = 24;
    const HEIGHT: f64 = 72.0;
    const LABEL: f64 = 16.0;
    let parts = &dedup.partitions;
    let width = parts.len() * BAR;
    let most = parts.iter().map(|part| part.bytes).max().unwrap_or(0).max(1) as f64;
    // The square root: a small day beside a large one is still seen.
    let height = |part: &Partition| {
        if part.rows == 0 { 2.0 } else { 4.0 + (part.bytes as f64 / most).sqrt() * (HEIGHT - 6.0) }
    };
    let class = |part: &Partition| match part {
        _ if !part.held_by.is_empty() => "held",
        Partition { rows: 0, .. } => "empty",
        Partition { droppable_from: Some(at), .. } if *at <= dedup.now => "due",
        _ => "kept",
    };
    let rows: i64 = parts.iter().map(|part| part.rows).sum();
    let total: i64 = parts.iter().map(|part| part.bytes).sum();
    html! {
        p {
            "About " (count(rows.unsigned_abs())) " events remembered, " (bytes(total.unsigned_abs())) ", for "
            (span(dedup.window_ms)) " after they were processed."
        }
        div.scroll {
            svg.window viewBox={ "0 0 " (width) " " (HEIGHT + LABEL) } width=(width) height=(HEIGHT + LABEL) role="img"
                aria-label="the partitions of the dedup table, the oldest first" {
                @for (at, part) in parts.iter().enumerate() {
                    @let tall = height(part);
                    rect.(class(part)) x=(at * BAR + 1) y=(format!("{:.1}", HEIGHT - tall)) width=(BAR - 2) height=(format!("{tall:.1}")) {
                        title { (part.name) ": " (count(part.rows.unsigned_abs())) " rows, " (class(part)) }
                    }
                    text x=(at * BAR + BAR / 2) y=(HEIGHT + LABEL - 3.0) text-anchor="middle" { (day_label(&part.name)) }
                }
            }
        }
        p.legend {
            span.kept { "kept" } " " span.held { "held for a group" } " " span.due { "may go" } " " span.empty { "empty" }
            span.dim { " · oldest first, one bar a day" }
        }
        @for part in parts.iter().filter(|part| !part.held_by.is_empty()) {
            p.warn { (part.name) " is past its window and kept for " (part.held_by.join(", ")) }
        }
        details {
            summary { (parts.len()) " partitions" }
            div.scroll { table {
                thead { tr { th { "partition" } th.n { "rows" } th.n { "size" } th { "goes from" } th { "kept for" } } }
                tbody { @for part in parts { tr {
                    td { (part.name) }
                    td.n { @if !part.rows_are_exact { "~" } (count(part.rows.unsigned_abs())) }
                    td.n { (bytes(part.bytes.unsigned_abs())) }
                    td { @if let Some(at) = part.droppable_from { (at) } @else { "–" } }
                    td { (part.held_by.join(", ")) }
                } } }
            } }
        }
    }
}

/// The day of the month; of the others, what they hold.
fn day_label(name: &str) -> &str {
    let end = name.rsplit('_').next().unwrap_or(name);
    match end {
        "late" => "old",
        "natural" => "key",
        day if day.len() == 8 && day.is_ascii() => &day[6..],
        _ => "",
    }
}

fn memory(groups: &[Group], now: Timestamp) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "group" } th { "still reads from" } th { "may have forgotten" } th.n { "parked" } th { "recorded" } } }
            tbody { @for group in groups { tr {
                td { (group.group) }
                td { @if let Some(at) = group.reads_from { (ago(at, now)) } @else { "not known: all is kept" } }
                td { @if let Some(at) = group.horizon { "before " (ago(at, now)) } @else { "nothing" } }
                td.n { (group.parked) }
                td { (ago(group.updated_at, now)) }
            } } }
        } }
    }
}

/// For a query.
pub(super) fn escaped(text: &str) -> String {
    serde_urlencoded::to_string([("", text)]).unwrap_or_default().trim_start_matches('=').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::admin::overview::Lane;
    use crate::ops::outbox::Outbox;

    fn part(name: &str, rows: i64, droppable_from: Option<Timestamp>, held_by: &[&str]) -> Partition {
        Partition {
            name: name.to_owned(),
            from: None,
            to: None,
            rows,
            rows_are_exact: true,
            bytes: rows * 100,
            droppable_from,
            held_by: held_by.iter().map(|group| (*group).to_owned()).collect(),
        }
    }

    fn shown() -> Overview {
        Overview {
            now: Timestamp(1_000_000),
            program: "billing".to_owned(),
            ready: true,
            reasons: Vec::new(),
            groups: vec![GroupView {
                group: "billing & co".to_owned(),
                in_flight: 3,
                rebalances: 1,
                lag: Some(1_234),
                handlers: vec![HandlerView {
                    handler: "shop::on_order",
                    topic: "orders",
                    per_second: 12.5,
                    recent: vec![1.0, 2.0],
                    outcomes: BTreeMap::from([("done", 10_000), ("dead-letter", 2)]),
                    mean_call_ms: Some(3.2),
                    last_age_ms: Some(120_000),
                }],
                lanes: vec![Lane {
                    topic: "orders".to_owned(),
                    partition: 3,
                    position: 70,
                    lag: None,
                    queued_bytes: 2_048,
                    brake: Some("unparsable"),
                    stalled_for_s: None,
                }],
                letters: BTreeMap::from([("permanent", 2)]),
                letters_in_queue: Ok(7),
            }],
            failures: Vec::new(),
            brakes: Ok(Vec::new()),
            money: Ok(Vec::new()),
            outbox: Ok(Outbox { pending: 0, oldest_seconds: 0.0, relayed: true, parked: Vec::new() }),
            dedup: Ok(Partitions {
                now: Timestamp(1_000_000),
                window_ms: 604_800_000,
                partitions: vec![
                    part("processed_event_late", 0, None, &[]),
                    part("processed_event_20260101", 10, Some(Timestamp(1)), &["slow"]),
                    part("processed_event_20260102", 10, Some(Timestamp(1)), &[]),
                    part("processed_event_20260103", 10, Some(Timestamp(2_000_000)), &[]),
                ],
            }),
            known_groups: Ok(Vec::new()),
        }
    }

    #[test]
    fn the_first_line_says_whether_it_is_well() {
        let well = overview(&Chrome::default(), &shown()).0;
        assert!(well.contains("Everything runs") && !well.contains("in the way"), "{well}");
        let ill = Overview { ready: false, reasons: vec!["orders/3 <waits>".to_owned()], ..shown() };
        let ill = overview(&Chrome::default(), &ill).0;
        assert!(ill.contains("in the way") && ill.contains("orders/3 &lt;waits&gt;"), "{ill}");
    }

    #[test]
    fn numbers_links_and_states_are_shown() {
        let page = overview(&Chrome::default(), &shown()).0;
        for expected in [
            "1\u{202f}234",
            "on_order",
            "12.5",
            "2 min",
            "stopped: unparsable",
            "href=\"/dlq?group=billing+%26+co\"",
            "is past its window and kept for slow",
            "<rect class=\"held\"",
            "<rect class=\"due\"",
            "<rect class=\"kept\"",
            "<rect class=\"empty\"",
        ] {
            assert!(page.contains(expected), "{expected} is missing in {page}");
        }
    }

    #[test]
    fn a_server_that_does_not_answer_leaves_the_rest() {
        let away = Overview { money: Err("the database is away".to_owned()), ..shown() };
        let page = overview(&Chrome::default(), &away).0;
        assert!(page.contains("the database is away") && page.contains("on_order"), "{page}");
    }

    #[test]
    fn there_is_no_script_no_inline_style_and_no_form_for_strangers() {
        let brake = Brake {
            group: "g".to_owned(),
            topic: "t".to_owned(),
            partition: 0,
            reason: "unparsable".to_owned(),
            since: Timestamp(0),
        };
        let braked = Overview { brakes: Ok(vec![brake]), ..shown() };
        let stranger = overview(&Chrome { has_token: true, ..Chrome::default() }, &braked).0;
        for never in ["<script", " style=", "onclick", "<form"] {
            assert!(!stranger.contains(never), "{never} in {stranger}");
        }
        let known = Chrome { form_secret: Some("s3cret"), name: Some("ada"), has_token: true, ..Chrome::default() };
        let known = overview(&known, &braked).0;
        assert!(known.contains("action=\"/groups/resume\"") && known.contains("value=\"s3cret\""), "{known}");
    }
}
