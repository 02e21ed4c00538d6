//! The outbox: what waits, and what can't be published.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::parts::{ago, bytes, count, span};
use super::{Chrome, how_to_change, page, secret};
use crate::ops::Timestamp;
use crate::ops::outbox::{Outbox, Parked};

/// Rows that are shown on the first page; the others are in the JSON.
const MOST_SHOWN: usize = 50;

pub(super) fn section(chrome: &Chrome<'_>, outbox: &Outbox, now: Timestamp) -> Markup {
    let oldest_millis = (outbox.oldest_seconds * 1_000.0) as u64;
    html! {
        dl.facts {
            div { dt { "to be sent" } dd { (count(outbox.pending.unsigned_abs())) } }
            div { dt { "the oldest waits" } dd.bad[oldest_millis > 60_000] { @if outbox.pending > 0 { (span(oldest_millis)) } @else { "–" } } }
            div { dt { "can't be published" } dd.bad[!outbox.parked.is_empty()] { (count(outbox.parked.len() as u64)) } }
        }
        @if !outbox.relayed && outbox.pending > 0 {
            p.bad role="alert" { "Nobody relays it: IDEM_RELAY is false everywhere, or no process with handlers runs. " code { "idem relay" } " does." }
        }
        @if !outbox.parked.is_empty() {
            p { (reasons(&outbox.parked)) ". Later events of the same key wait behind each." }
            div.scroll { table {
                thead { tr { th { "why" } th { "topic" } th { "event" } th.n { "size" } th { "published" } th { "parked" } th.n { "behind it" } th {} } }
                tbody { @for parked in outbox.parked.iter().take(MOST_SHOWN) { tr {
                    td { span.tag.bad { (parked.reason) } }
                    td { (parked.topic) }
                    td { code { (parked.event_id) } }
                    td.n { (bytes(parked.bytes.unsigned_abs())) }
                    td { @if let Some(at) = parked.created_at { (ago(at, now)) } }
                    td { @if let Some(at) = parked.parked_at { (ago(at, now)) } }
                    td.n { (parked.behind) }
                    td { @if chrome.form_secret.is_some() { a href={ "/outbox/release?seq=" (parked.seq) } { "release" } } }
                } } }
            } }
            @if outbox.parked.len() > MOST_SHOWN { p.dim { "and " (outbox.parked.len() - MOST_SHOWN) " more: " a href="/api/outbox" { "JSON" } } }
            @if chrome.form_secret.is_none() { (how_to_change(chrome)) }
        }
    }
}

/// How many there are for each reason.
fn reasons(parked: &[Parked]) -> String {
    let mut by_reason: BTreeMap<&str, usize> = BTreeMap::new();
    for one in parked {
        *by_reason.entry(&one.reason).or_default() += 1;
    }
    let said: Vec<String> = by_reason.iter().map(|(reason, events)| format!("{events} {reason}")).collect();
    said.join(", ")
}

/// What releasing a parked event would do, and the order to do it.
pub(in crate::admin) fn release(chrome: &Chrome<'_>, parked: &Parked, now: Timestamp) -> Markup {
    let body = html! {
        h1 { "Parked event" }
        dl.pairs {
            dt { "event" } dd { code { (parked.event_id) } }
            dt { "topic" } dd { (parked.topic) }
            dt { "why" } dd { span.tag.bad { (parked.reason) } }
            dt { "size" } dd { (bytes(parked.bytes.unsigned_abs())) }
            dt { "published" } dd { @if let Some(at) = parked.created_at { (ago(at, now)) } @else { "?" } }
            dt { "parked" } dd { @if let Some(at) = parked.parked_at { (ago(at, now)) } @else { "?" } }
            dt { "behind it" } dd { (parked.behind) " later events of its key" }
        }
        @if chrome.form_secret.is_some() {
            form.stack method="post" action="/outbox/release" {
                (secret(chrome)) input type="hidden" name="seq" value=(parked.seq);
                label.check {
                    input type="radio" name="what" value="send" required;
                    "send it again, and then those behind it: " (parked.behind + 1) " events. If the cause is still there, all of them are parked again"
                }
                label.check {
                    input type="radio" name="what" value="drop";
                    "delete it, and send the " (parked.behind) " behind it. Nobody will ever hear of this event"
                }
                button { "Release" }
            }
        } @else { (how_to_change(chrome)) }
        p { a href="/" { "Back to the overview" } }
    };
    page(chrome, "Parked event", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(seq: i64, reason: &str) -> Parked {
        Parked {
            seq,
            event_id: uuid::Uuid::nil(),
            topic: "order.paid".to_owned(),
            reason: reason.to_owned(),
            bytes: 2_048,
            created_at: None,
            parked_at: None,
            behind: 3,
        }
    }

    fn outbox(parked: Vec<Parked>) -> Outbox {
        Outbox { pending: 1_234, oldest_seconds: 7_200.0, relayed: true, parked }
    }

    #[test]
    fn what_waits_and_why_something_does_not_go_is_seen_by_everybody_and_released_by_who_may() {
        let all = outbox(vec![parked(7, "MessageSizeTooLarge"), parked(9, "InvalidTopic"), parked(8, "InvalidTopic")]);
        let stranger = section(&Chrome { has_token: true, ..Chrome::default() }, &all, Timestamp(0)).0;
        for expected in ["1\u{202f}234", "2 h", "2 InvalidTopic, 1 MessageSizeTooLarge", "2 KiB"] {
            assert!(stranger.contains(expected), "{expected} is missing in {stranger}");
        }
        assert!(!stranger.contains("/outbox/release") && !stranger.contains("Nobody relays"), "{stranger}");
        let known = Chrome { form_secret: Some("s3cret"), ..Chrome::default() };
        assert!(section(&known, &all, Timestamp(0)).0.contains("href=\"/outbox/release?seq=9\""));
        let page = release(&known, &all.parked[0], Timestamp(0)).0;
        assert!(page.contains("4 events") && page.contains("value=\"s3cret\""), "{page}");
    }

    #[test]
    fn an_outbox_that_nobody_relays_says_so() {
        let alone = Outbox { relayed: false, ..outbox(Vec::new()) };
        assert!(section(&Chrome::default(), &alone, Timestamp(0)).0.contains("Nobody relays"));
        let empty = Outbox { pending: 0, ..alone };
        assert!(!section(&Chrome::default(), &empty, Timestamp(0)).0.contains("Nobody relays"));
    }
}
