//! Resolving a money call.

use maud::{Markup, html};

use super::parts::ago;
use super::{Chrome, how_to_change, page, secret};
use crate::ops::Timestamp;
use crate::ops::money::Call;

pub(in crate::admin) fn call(chrome: &Chrome<'_>, call: &Call, now: Timestamp) -> Markup {
    let body = html! {
        h1 { "Money call" }
        dl.pairs {
            dt { "key" } dd { code { (call.key) } }
            dt { "event" } dd { code { (call.event_id) } }
            dt { "group" } dd { (call.group) }
            dt { "call" } dd { @if call.operation.is_empty() { "unnamed" } @else { (call.operation) } }
            dt { "state" } dd { span.tag.bad { (call.state) } }
            dt { "requests" } dd { (call.attempts) }
            dt { "last request" } dd { @if let Some(at) = call.last_at { (ago(at, now)) } @else { "?" } }
            dt { "last status" } dd { @if let Some(status) = call.status { (status) } @else { "none" } }
        }
        @if chrome.form_secret.is_some() {
            p { "Look the key up at the provider. Then say what became of the call:" }
            form.stack method="post" action="/money/resolve" {
                (secret(chrome)) input type="hidden" name="key" value=(call.key);
                label.check { input type="radio" name="as" value="applied" required; "carried out: the next attempt sends nothing" }
                label.check { input type="radio" name="as" value="failed"; "not carried out, or undone: the next attempt leaves with another key" }
                label { "How you found out; nothing personal, it is kept" input name="note" required maxlength="200"; }
                button { "Resolve" }
            }
        } @else { (how_to_change(chrome)) }
        p { a href="/" { "Back to the overview" } }
    };
    page(chrome, "Money call", body)
}
