//! For people: what the pages of `view/` are answered to.

use std::sync::Arc;

use axum::extract::{Extension, Form, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use maud::Markup;
use serde::Deserialize;

use super::access::{Operator, Visitor};
use super::api::{Refusal, Which, Word};
use super::changes::{self, Failed, Plan, bounded, of_queue};
use super::view::{self, Chrome};
use super::{Site, overview as gathered};
use crate::clock;
use crate::ops::replay::Options;
use crate::ops::{OpsError, Timestamp, dlq, money as calls, outbox, silent};

type Shared = State<Arc<Site>>;
type Page = Result<Html<String>, Sorry>;

fn chrome<'a>(site: &'a Site, visitor: &'a Visitor) -> Chrome<'a> {
    Chrome {
        program: &site.config.client_id,
        name: visitor.name(),
        form_secret: visitor.form_secret(),
        has_token: visitor.has_token,
        refresh: None,
    }
}

fn now() -> Timestamp {
    Timestamp(clock::unix_millis())
}

fn html(markup: Markup) -> Html<String> {
    Html(markup.into_string())
}

pub(super) async fn style() -> Response {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8"), (header::CACHE_CONTROL, "max-age=300")], view::STYLE)
        .into_response()
}

#[derive(Debug, Deserialize)]
pub(super) struct Refresh {
    refresh: Option<u32>,
}

pub(super) async fn overview(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Query(Refresh { refresh }): Query<Refresh>,
) -> Html<String> {
    let shown = gathered::gather(&site).await;
    let refresh = refresh.map(|seconds| seconds.clamp(2, 3_600));
    html(view::overview::overview(&Chrome { refresh, ..chrome(&site, &visitor) }, &shown))
}

pub(super) async fn login(State(site): Shared, Extension(visitor): Extension<Visitor>) -> Html<String> {
    html(view::login(&chrome(&site, &visitor), false))
}

#[derive(Deserialize)]
pub(super) struct LogIn {
    name: String,
    token: String,
}

pub(super) async fn log_in(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Form(LogIn { name, token }): Form<LogIn>,
) -> Response {
    // It goes into the log as it is.
    let name: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
    match site.access.log_in(&token, &name).await {
        Some(cookie) => {
            tracing::info!(operator = name, peer = %visitor.peer, "logged in");
            ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()
        }
        None => {
            tracing::warn!(operator = name, peer = %visitor.peer, "a log-in with a wrong token");
            (StatusCode::UNAUTHORIZED, html(view::login(&chrome(&site, &visitor), true))).into_response()
        }
    }
}

/// A form with nothing but the proof that it is this site's own.
#[derive(Deserialize)]
pub(super) struct Bare {
    form_secret: Option<String>,
}

pub(super) async fn log_out(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Form(Bare { form_secret }): Form<Bare>,
) -> Result<Response, Sorry> {
    allowed(&site, &visitor, form_secret.as_deref())?;
    Ok(([(header::SET_COOKIE, site.access.log_out(&visitor))], Redirect::to("/")).into_response())
}

pub(super) async fn letters(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Query(which): Query<Which>,
) -> Page {
    let filter = which.filter().map_err(sorry(&site, &visitor))?;
    let group = site.own(&which.group).map_err(sorry(&site, &visitor))?;
    let found = of_queue(&site, dlq::list(&site.ops, group, &filter, &mut silent)).await;
    let found = found.map_err(sorry(&site, &visitor))?;
    Ok(html(view::letters::letters(&chrome(&site, &visitor), &found, now())))
}

pub(super) async fn letter(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Query(which): Query<Which>,
) -> Page {
    let at = which
        .filter()
        .and_then(|filter| filter.at.ok_or(Refusal::wrong("which letter?")))
        .map_err(sorry(&site, &visitor))?;
    let group = site.own(&which.group).map_err(sorry(&site, &visitor))?;
    let found = of_queue(&site, dlq::show(&site.ops, group, at, false)).await.map_err(sorry(&site, &visitor))?;
    Ok(html(view::letters::letter(&chrome(&site, &visitor), &which.group, &found, now())))
}

/// A form about dead letters.
#[derive(Deserialize)]
pub(super) struct AboutLetters {
    form_secret: Option<String>,
    group: String,
    reason: Option<String>,
    handler: Option<String>,
    event_id: Option<String>,
    partition: Option<i32>,
    offset: Option<i64>,
    allow_expired: Option<String>,
}

impl AboutLetters {
    fn which(&self) -> Which {
        Which {
            group: self.group.clone(),
            reason: self.reason.clone(),
            handler: self.handler.clone(),
            event_id: self.event_id.clone(),
            partition: self.partition,
            offset: self.offset,
        }
    }
}

pub(super) async fn payload(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<AboutLetters>,
) -> Page {
    let operator = allowed(&site, &visitor, form.form_secret.as_deref())?;
    let filter = form.which().filter().map_err(sorry(&site, &visitor))?;
    let at = filter.at.ok_or_else(|| Sorry::new(&site, &visitor, Refusal::wrong("which letter?")))?;
    let found = changes::payload(&site, &operator, &form.group, at).await.map_err(sorry(&site, &visitor))?;
    Ok(html(view::letters::letter(&chrome(&site, &visitor), &form.group, &found, now())))
}

/// The dry run, which leads to the replay.
pub(super) async fn try_replay(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<AboutLetters>,
) -> Page {
    let operator = allowed(&site, &visitor, form.form_secret.as_deref())?;
    let filter = form.which().filter().map_err(sorry(&site, &visitor))?;
    let allow_expired = form.allow_expired.is_some();
    let options = Options { filter, limit: None, dry_run: true, allow_expired };
    let tried = Plan { group: form.group, options };
    let found = changes::replay(&site, &operator, &tried).await.map_err(sorry(&site, &visitor))?;
    let plan = (found.to_replay > 0).then(|| {
        // No more than what was shown.
        let options = Options { dry_run: false, limit: Some(found.to_replay), ..tried.options.clone() };
        site.access.keep_plan(&operator, Plan { group: tried.group.clone(), options })
    });
    let plan = plan.flatten();
    Ok(html(view::letters::replayed(&chrome(&site, &visitor), &found, &tried.options.filter, plan.as_deref())))
}

#[derive(Deserialize)]
pub(super) struct Confirm {
    form_secret: Option<String>,
    plan: String,
}

pub(super) async fn replay(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Form(Confirm { form_secret, plan }): Form<Confirm>,
) -> Page {
    let operator = allowed(&site, &visitor, form_secret.as_deref())?;
    let plan = site.access.take_plan(&operator, &plan);
    let plan = plan.ok_or_else(|| {
        Sorry::new(&site, &visitor, Refusal::wrong("this replay was done, or another one was tried since: try again"))
    })?;
    let done = changes::replay(&site, &operator, &plan).await.map_err(sorry(&site, &visitor))?;
    Ok(html(view::letters::replayed(&chrome(&site, &visitor), &done, &plan.options.filter, None)))
}

#[derive(Deserialize)]
pub(super) struct Key {
    key: String,
}

pub(super) async fn call(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Query(Key { key }): Query<Key>,
) -> Page {
    let open = bounded(calls::list(&site.ops, None)).await.map_err(sorry(&site, &visitor))?;
    let found = open.into_iter().find(|call| call.key == key);
    let found = found.ok_or_else(|| Sorry::new(&site, &visitor, Failed::Ops(OpsError::NoCall { key })))?;
    Ok(html(view::money::call(&chrome(&site, &visitor), &found, now())))
}

#[derive(Deserialize)]
pub(super) struct Resolve {
    form_secret: Option<String>,
    key: String,
    #[serde(rename = "as")]
    decision: Word,
    note: String,
}

pub(super) async fn resolve(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<Resolve>,
) -> Result<Redirect, Sorry> {
    let operator = allowed(&site, &visitor, form.form_secret.as_deref())?;
    let resolved = changes::resolve(&site, &operator, &form.key, form.decision.into(), &form.note).await;
    resolved.map_err(sorry(&site, &visitor))?;
    Ok(Redirect::to("/"))
}

#[derive(Deserialize)]
pub(super) struct Seq {
    seq: i64,
}

/// What a release would do.
pub(super) async fn parked(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Query(Seq { seq }): Query<Seq>,
) -> Page {
    let found = bounded(outbox::list(&site.ops)).await.map_err(sorry(&site, &visitor))?;
    let found = found.parked.into_iter().find(|parked| parked.seq == seq);
    let found = found.ok_or_else(|| Sorry::new(&site, &visitor, Failed::Ops(OpsError::NotParked { seq })))?;
    Ok(html(view::outbox::release(&chrome(&site, &visitor), &found, now())))
}

#[derive(Deserialize)]
pub(super) struct Release {
    form_secret: Option<String>,
    seq: i64,
    what: What,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Send,
    Drop,
}

pub(super) async fn release(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Form(Release { form_secret, seq, what }): Form<Release>,
) -> Result<Redirect, Sorry> {
    let operator = allowed(&site, &visitor, form_secret.as_deref())?;
    let released = changes::release(&site, &operator, seq, matches!(what, What::Drop)).await;
    released.map_err(sorry(&site, &visitor))?;
    Ok(Redirect::to("/"))
}

#[derive(Deserialize)]
pub(super) struct Resume {
    form_secret: Option<String>,
    group: String,
}

pub(super) async fn resume(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<Resume>,
) -> Result<Redirect, Sorry> {
    let operator = allowed(&site, &visitor, form.form_secret.as_deref())?;
    let resumed = changes::resume(&site, &operator, &form.group).await;
    resumed.map_err(sorry(&site, &visitor))?;
    Ok(Redirect::to("/"))
}

fn allowed(site: &Site, visitor: &Visitor, form_secret: Option<&str>) -> Result<Operator, Sorry> {
    visitor.may_change(form_secret).map_err(sorry(site, visitor))
}

/// Makes a page of why something was not done.
fn sorry<E: Into<Refusal>>(site: &Site, visitor: &Visitor) -> impl FnOnce(E) -> Sorry {
    move |refusal| Sorry::new(site, visitor, refusal)
}

/// A page that says why there is no other.
pub(super) struct Sorry {
    status: StatusCode,
    page: Html<String>,
}

impl Sorry {
    fn new(site: &Site, visitor: &Visitor, refusal: impl Into<Refusal>) -> Self {
        let Refusal { status, why } = refusal.into();
        Self { status, page: html(view::message(&chrome(site, visitor), "That did not work", &why)) }
    }
}

impl IntoResponse for Sorry {
    fn into_response(self) -> Response {
        (self.status, self.page).into_response()
    }
}
