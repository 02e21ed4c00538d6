//! The pages, as pure functions of what they show.

pub(super) mod letters;
pub(super) mod money;
pub(super) mod outbox;
pub(super) mod overview;
mod parts;

use maud::{DOCTYPE, Markup, html};

/// The one style sheet; the pages have no script.
pub(super) const STYLE: &str = include_str!("style.css");

/// What every page has around it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Chrome<'a> {
    pub program: &'a str,
    /// Who is logged in.
    pub name: Option<&'a str>,
    /// What forms must carry; without it there are none.
    pub form_secret: Option<&'a str>,
    /// Whether anybody could log in.
    pub has_token: bool,
    /// Comes again by itself after so many seconds.
    pub refresh: Option<u32>,
}

pub(super) fn page(chrome: &Chrome<'_>, title: &str, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if let Some(seconds) = chrome.refresh { meta http-equiv="refresh" content=(seconds); }
                title { (title) " · " (chrome.program) }
                link rel="stylesheet" href="/style.css";
            }
            body {
                header.top {
                    a.brand href="/" { (chrome.program) }
                    nav {
                        @match (chrome.name, chrome.has_token) {
                            (Some(name), _) => {
                                span.who { (name) }
                                form method="post" action="/logout" { (secret(chrome)) button.quiet { "Log out" } }
                            }
                            (None, true) => a href="/login" { "Log in" },
                            (None, false) => span.dim title="IDEM_ADMIN_TOKEN is not set" { "read only" },
                        }
                    }
                }
                main { (body) }
            }
        }
    }
}

/// The field that shows that a form is this site's own.
fn secret(chrome: &Chrome<'_>) -> Markup {
    html! { @if let Some(secret) = chrome.form_secret { input type="hidden" name="form_secret" value=(secret); } }
}

/// What to do to change something, where nobody may.
fn how_to_change(chrome: &Chrome<'_>) -> Markup {
    html! {
        p.dim {
            @if chrome.has_token { a href="/login" { "Log in" } " to change something." }
            @else { "Nothing can be changed here: IDEM_ADMIN_TOKEN is not set. The " code { "idem" } " command can." }
        }
    }
}

/// A page that only says something.
pub(super) fn message(chrome: &Chrome<'_>, title: &str, text: &str) -> Markup {
    page(chrome, title, html! { h1 { (title) } p { (text) } p { a href="/" { "Back to the overview" } } })
}

pub(super) fn login(chrome: &Chrome<'_>, wrong: bool) -> Markup {
    let body = html! {
        h1 { "Log in" }
        @if wrong { p.bad role="alert" { "That is not the token." } }
        form.stack method="post" action="/login" {
            label { "Your name, for the log" input name="name" autocomplete="username" required maxlength="60"; }
            label { "Token (IDEM_ADMIN_TOKEN)" input name="token" type="password" autocomplete="current-password" required; }
            button { "Log in" }
        }
    };
    page(chrome, "Log in", body)
}
