//! Dead letters: by reason, one in full, and their replay.

use maud::{Markup, html};

use super::overview::escaped;
use super::parts::{ago, bytes, count, handler};
use super::{Chrome, how_to_change, page, secret};
use crate::ops::Timestamp;
use crate::ops::dlq::{Filter, LetterInFull, Letters};
use crate::ops::replay::Replayed;

pub(in crate::admin) fn letters(chrome: &Chrome<'_>, shown: &Letters, now: Timestamp) -> Markup {
    let body = html! {
        h1 { "Dead letters of " code { (shown.group) } }
        p { (count(shown.letters)) " in " code { (shown.topic) } ". Letters stay when they are replayed; what is done is skipped." }
        div.scroll { table {
            thead { tr { th { "reason" } th { "handler" } th.n { "letters" } th.n { "events" } th { "first" } th { "last" } th { "newest" } th {} } }
            tbody { @for group in &shown.groups { tr {
                td { span.tag.bad { (group.reason.as_deref().unwrap_or("unknown")) } }
                td { (handler(group.handler.as_deref().unwrap_or_default())) }
                td.n { (count(group.letters)) }
                td.n { (count(group.events)) }
                td { @if let Some(at) = group.first_seen { (ago(at, now)) } }
                td { @if let Some(at) = group.last_seen { (ago(at, now)) } }
                td { a href=(address(&shown.group, group.last_partition, group.last_offset)) { "look at it" } }
                td { @if chrome.form_secret.is_some() {
                    form method="post" action="/dlq/replay" {
                        (secret(chrome)) input type="hidden" name="group" value=(shown.group);
                        @if let Some(reason) = &group.reason { input type="hidden" name="reason" value=(reason); }
                        @if let Some(handler) = &group.handler { input type="hidden" name="handler" value=(handler); }
                        button { "Try a replay" }
                    }
                } }
            } } }
        } }
        @if chrome.form_secret.is_some() {
            details {
                summary { "Replay one event" }
                form.stack method="post" action="/dlq/replay" {
                    (secret(chrome)) input type="hidden" name="group" value=(shown.group);
                    label { "Event id" input name="event_id" required; }
                    label.check {
                        input type="checkbox" name="allow_expired" value="true";
                        "also if the group may have processed it and forgotten: I know that it did not"
                    }
                    button { "Try a replay" }
                }
            }
        } @else { (how_to_change(chrome)) }
        p { a href="/" { "Back to the overview" } }
    };
    page(chrome, "Dead letters", body)
}

fn address(group: &str, partition: i32, offset: i64) -> String {
    format!("/dlq/letter?group={}&partition={partition}&offset={offset}", escaped(group))
}

pub(in crate::admin) fn letter(chrome: &Chrome<'_>, group: &str, shown: &LetterInFull, now: Timestamp) -> Markup {
    let letter = &shown.letter;
    let (partition, offset) = (letter.partition, letter.offset);
    let size = |size: Option<usize>| size.map_or_else(|| "none".to_owned(), |size| bytes(size as u64));
    let body = html! {
        h1 { "Dead letter " code { (partition) "/" (offset) } }
        dl.pairs {
            dt { "why" } dd { span.tag.bad { (letter.reason.as_deref().unwrap_or("unknown")) } " " code { (letter.error.as_deref().unwrap_or_default()) } }
            dt { "handler" } dd { (letter.handler.as_deref().unwrap_or("none")) }
            dt { "dead-lettered" } dd { @if let Some(at) = letter.at { (ago(at, now)) } @else { "?" } }
            dt { "first failed" } dd { @if let Some(at) = letter.first_failed_at { (ago(at, now)) } @else { "?" } }
            dt { "attempts" } dd { (letter.attempts.unwrap_or_default()) }
            dt { "replayed" } dd {
                (letter.replay_count) " times" @if let Some(at) = letter.replayed_at { ", last " (ago(at, now)) }
            }
            dt { "read at" } dd {
                @match &letter.origin {
                    Some(at) => { (at.topic) "/" (at.partition) " @" (at.offset) },
                    None => "unknown: the library did not write this record",
                }
            }
            dt { "event" } dd { @match shown.event_id { Some(id) => code { (id) }, None => "no id found" } }
            dt { "the group" } dd { (state(shown)) }
            dt { "key" } dd { @match &shown.key { Some(key) => code { (key) }, None => (size(shown.key_bytes)) } }
            dt { "value" } dd { (size(shown.value_bytes)) }
        }
        @if shown.restricted { p.warn { "The topic is restricted: key, value and the producer's headers are shown to nobody." } }
        @if let Some(payload) = &shown.payload { pre.payload { (payload) } }
        @else if chrome.form_secret.is_some() && !shown.restricted {
            form method="post" action="/dlq/letter" {
                (place(chrome, group, partition, offset))
                button { "Show key and value" } " " small.dim { "It may be personal data. That you looked is logged." }
            }
        }
        h2 { "Headers" }
        div.scroll { table {
            thead { tr { th { "name" } th { "value" } } }
            tbody { @for header in &shown.headers { tr {
                td { (header.name) } td.long { @match &header.value { Some(value) => code { (value) }, None => span.dim { "none" } } }
            } } }
        } }
        @if chrome.form_secret.is_some() {
            form method="post" action="/dlq/replay" { (place(chrome, group, partition, offset)) button { "Try to replay this one" } }
        } @else { (how_to_change(chrome)) }
        p { a href={ "/dlq?group=" (escaped(group)) } { "All dead letters of " (group) } }
    };
    page(chrome, "Dead letter", body)
}

fn place(chrome: &Chrome<'_>, group: &str, partition: i32, offset: i64) -> Markup {
    html! {
        (secret(chrome))
        input type="hidden" name="group" value=(group);
        input type="hidden" name="partition" value=(partition);
        input type="hidden" name="offset" value=(offset);
    }
}

/// What the dedup table knows, in a sentence.
fn state(shown: &LetterInFull) -> &'static str {
    use crate::ops::DedupState;
    match shown.state {
        DedupState::Done => "has processed this event since: a replay does nothing",
        DedupState::InWindow => "has not processed this event",
        DedupState::Expired => "may have processed this event and forgotten it: look before you allow a replay",
        DedupState::NoId => "can't tell: no id was found in the value",
    }
}

/// Events that a person reads through.
const SHOWN: usize = 50;

/// What a replay would do, with the button that does it; or what it did.
pub(in crate::admin) fn replayed(chrome: &Chrome<'_>, shown: &Replayed, filter: &Filter, plan: Option<&str>) -> Markup {
    let title = if shown.dry_run { "A replay would do this" } else { "Replayed" };
    let body = html! {
        h1 { (title) }
        p { "Group " code { (shown.group) } ", " (what(filter)) "." }
        dl.facts {
            @if shown.dry_run { div { dt { "to replay" } dd { (count(shown.to_replay)) } } }
            @else { div { dt { "replayed" } dd { (count(shown.replayed)) } } }
            div { dt { "matched" } dd { (count(shown.matched)) } }
            div { dt { "done already" } dd { (count(shown.done)) } }
            div { dt { "older letters" } dd { (count(shown.superseded)) } }
            div { dt { "refused: expired" } dd.bad[shown.expired > 0] { (count(shown.expired)) } }
            div { dt { "impossible" } dd.bad[shown.impossible > 0] { (count(shown.impossible)) } }
        }
        @if let Some(plan) = plan {
            form method="post" action="/dlq/replay/confirm" {
                (secret(chrome)) input type="hidden" name="plan" value=(plan);
                button { "Replay " (count(shown.to_replay)) @if shown.to_replay == 1 { " event" } @else { " events" } " now" }
            }
        } @else if shown.dry_run { p { b { "Nothing to replay." } } }
        div.scroll { table {
            thead { tr { th { "letter" } th { "reason" } th { "event" } th { "the group" } th.n { "replays" } th { "action" } } }
            tbody { @for event in shown.events.iter().take(SHOWN) { tr {
                td { a href=(address(&shown.group, event.partition, event.offset)) { (event.partition) "/" (event.offset) } }
                td { (event.reason.as_deref().unwrap_or("unknown")) }
                td { @if let Some(id) = event.event_id { code { (id) } } }
                td { (word(&event.state)) }
                td.n { (event.replay_count) }
                td { (word(&event.action)) }
            } } }
        } }
        @if shown.events.len() > SHOWN { p.dim { "and " (count((shown.events.len() - SHOWN) as u64)) " more" } }
        p { a href={ "/dlq?group=" (escaped(&shown.group)) } { "All dead letters of " (shown.group) } }
    };
    page(chrome, title, body)
}

fn what(filter: &Filter) -> String {
    let mut parts = Vec::new();
    parts.extend(filter.reason.as_ref().map(|reason| format!("reason {reason}")));
    parts.extend(filter.handler.as_ref().map(|handler| format!("handler {handler}")));
    parts.extend(filter.event_id.map(|id| format!("event {id}")));
    parts.extend(filter.at.map(|(partition, offset)| format!("the letter at {partition}/{offset}")));
    if parts.is_empty() { "all letters".to_owned() } else { parts.join(", ") }
}

/// A plain enum as its serialized word.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
