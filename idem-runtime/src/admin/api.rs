//! For programs: probes, metrics, and the same as the pages in JSON.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{Extension, Json, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::access::{Refused, Visitor};
use super::changes::{self, Failed, Plan, bounded, of_queue};
use super::{Site, overview};
use crate::kafka::consumer::Partition;
use crate::ops::dlq::{self, Filter, LetterInFull, Letters};
use crate::ops::groups::Resumed;
use crate::ops::money::{Call, Decision};
use crate::ops::outbox::{self, Outbox, Released};
use crate::ops::replay::{Options, Replayed};
use crate::ops::{OpsError, money as calls, partitions as parts, silent, status as whole};
use crate::telemetry::{GroupStats, OF_PARTITIONS};

type Shared = State<Arc<Site>>;
type Answer<T> = Result<Json<T>, Refusal>;

/// The process answers.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether nothing is in the way. What is, only who may read is told.
pub(super) async fn readyz(State(site): Shared, request: axum::extract::Request) -> Response {
    let reasons = site.health.reasons();
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = match site.access.tells_why(request.headers()) {
        true => json!({"ready": reasons.is_empty(), "reasons": reasons}),
        false => json!({"ready": reasons.is_empty()}),
    };
    (status, Json(body)).into_response()
}

/// In the format of Prometheus.
pub(super) async fn metrics(State(site): Shared) -> Response {
    match &site.metrics {
        Some(metrics) => {
            let shown = without_gone(&metrics.render(), &site.registry.groups());
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], shown).into_response()
        }
        None => {
            let why =
                "this program has installed a recorder of the `metrics` crate of its own: the metrics are there\n";
            (StatusCode::NOT_FOUND, why).into_response()
        }
    }
}

/// The series of partitions that have gone to another member are left out: the recorder can't forget a series, and its
/// last value is nobody's.
fn without_gone(text: &str, groups: &[Arc<GroupStats>]) -> String {
    let labels = |group: &Arc<GroupStats>| {
        let of = |partition: &Partition| {
            format!("{{group=\"{}\",topic=\"{}\",partition=\"{}\"}}", group.name, partition.topic, partition.number)
        };
        group.lanes().keys().map(of).collect::<Vec<_>>()
    };
    let here: HashSet<String> = groups.iter().flat_map(labels).collect();
    let is_gone = |line: &str| {
        let series = OF_PARTITIONS.iter().find_map(|name| line.strip_prefix(name)).filter(|rest| rest.starts_with('{'));
        series.is_some_and(|rest| !rest.split(' ').next().is_some_and(|labels| here.contains(labels)))
    };
    text.split_inclusive('\n').filter(|line| !is_gone(line)).collect()
}

pub(super) async fn overview(State(site): Shared) -> Json<overview::Overview> {
    Json(overview::gather(&site).await)
}

pub(super) async fn status(State(site): Shared) -> Answer<whole::Status> {
    Ok(Json(bounded(whole::status(&site.ops)).await?))
}

pub(super) async fn partitions(State(site): Shared) -> Answer<parts::Partitions> {
    Ok(Json(bounded(parts::list(&site.ops)).await?))
}

pub(super) async fn money(State(site): Shared) -> Answer<Vec<Call>> {
    Ok(Json(bounded(calls::list(&site.ops, None)).await?))
}

pub(super) async fn outbox(State(site): Shared) -> Answer<Outbox> {
    Ok(Json(bounded(outbox::list(&site.ops)).await?))
}

/// Which dead letters, as a query says it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Which {
    pub group: String,
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub handler: Option<String>,
    #[serde(default)]
    pub event_id: Option<String>,
    #[serde(default)]
    pub partition: Option<i32>,
    #[serde(default)]
    pub offset: Option<i64>,
}

impl Which {
    /// An empty field of a form is one that was not filled in.
    pub(super) fn filter(&self) -> Result<Filter, Refusal> {
        let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
        let event_id = given(&self.event_id).map(|id| id.trim().parse::<Uuid>()).transpose();
        let event_id = event_id.map_err(|_| Refusal::wrong("event_id is no UUID"))?;
        let at = self.partition.zip(self.offset);
        Ok(Filter { reason: given(&self.reason), handler: given(&self.handler), event_id, at })
    }
}

pub(super) async fn letters(State(site): Shared, Query(which): Query<Which>) -> Answer<Letters> {
    let filter = which.filter()?;
    Ok(Json(of_queue(&site, dlq::list(&site.ops, site.own(&which.group)?, &filter, &mut silent)).await?))
}

/// Without key and value: those are for people who log in, and for the `idem` command.
pub(super) async fn letter(State(site): Shared, Query(which): Query<Which>) -> Answer<LetterInFull> {
    let at = which.filter()?.at.ok_or(Refusal::wrong("partition and offset are missing"))?;
    Ok(Json(of_queue(&site, dlq::show(&site.ops, site.own(&which.group)?, at, false)).await?))
}

/// What to replay; `dry_run` must be said.
#[derive(Debug, Deserialize)]
pub(super) struct ReplayOrder {
    #[serde(flatten)]
    which: Which,
    dry_run: bool,
    #[serde(default)]
    limit: Option<u64>,
    #[serde(default)]
    allow_expired: bool,
}

pub(super) async fn replay(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Json(order): Json<ReplayOrder>,
) -> Answer<Replayed> {
    let operator = visitor.may_change(None)?;
    let ReplayOrder { which, dry_run, limit, allow_expired } = order;
    let options = Options { filter: which.filter()?, limit, dry_run, allow_expired };
    Ok(Json(changes::replay(&site, &operator, &Plan { group: which.group, options }).await?))
}

#[derive(Debug, Deserialize)]
pub(super) struct ResolveOrder {
    key: String,
    #[serde(rename = "as")]
    decision: Word,
    note: String,
}

/// What became of a money call, as forms and programs say it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    Applied,
    Failed,
}

impl From<Word> for Decision {
    fn from(word: Word) -> Self {
        match word {
            Word::Applied => Self::Applied,
            Word::Failed => Self::Failed,
        }
    }
}

pub(super) async fn resolve(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Json(order): Json<ResolveOrder>,
) -> Answer<Call> {
    let operator = visitor.may_change(None)?;
    Ok(Json(changes::resolve(&site, &operator, &order.key, order.decision.into(), &order.note).await?))
}

/// `drop` must be said.
#[derive(Debug, Deserialize)]
pub(super) struct ReleaseOrder {
    seq: i64,
    drop: bool,
}

pub(super) async fn release(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Json(ReleaseOrder { seq, drop }): Json<ReleaseOrder>,
) -> Answer<Released> {
    let operator = visitor.may_change(None)?;
    Ok(Json(changes::release(&site, &operator, seq, drop).await?))
}

#[derive(Debug, Deserialize)]
pub(super) struct ResumeOrder {
    group: String,
}

pub(super) async fn resume(
    State(site): Shared,
    Extension(visitor): Extension<Visitor>,
    Json(order): Json<ResumeOrder>,
) -> Answer<Resumed> {
    let operator = visitor.may_change(None)?;
    Ok(Json(changes::resume(&site, &operator, &order.group).await?))
}

/// Why there is no answer: a status and a sentence.
#[derive(Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub why: String,
}

impl Refusal {
    pub(super) fn wrong(why: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, why: why.to_owned() }
    }
}

impl From<Refused> for Refusal {
    fn from(Refused(status, why): Refused) -> Self {
        Self { status, why: why.to_owned() }
    }
}

impl From<Failed> for Refusal {
    fn from(failed: Failed) -> Self {
        let status = match &failed {
            Failed::NotOwn
            | Failed::Ops(
                OpsError::NoTopic { .. }
                | OpsError::NoRecord { .. }
                | OpsError::NoCall { .. }
                | OpsError::NotParked { .. },
            ) => StatusCode::NOT_FOUND,
            Failed::Ops(OpsError::CallOpen { .. }) => StatusCode::CONFLICT,
            Failed::Ops(_) => StatusCode::BAD_GATEWAY,
            Failed::TooLong | Failed::GoesOn => StatusCode::GATEWAY_TIMEOUT,
        };
        Self { status, why: failed.to_string() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": self.why}))).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_partitions_that_went_to_another_member_are_left_out() {
        let group = Arc::new(GroupStats::new("g".into(), std::iter::empty()));
        group.lanes().insert(Partition { topic: "t.a".into(), number: 1 }, Default::default());
        let text = "# TYPE idem_consumer_lag gauge\n\
            idem_consumer_lag{group=\"g\",topic=\"t.a\",partition=\"1\"} 5\n\
            idem_consumer_lag{group=\"g\",topic=\"t.a\",partition=\"11\"} 0\n\
            idem_lane_stalled{group=\"g\",topic=\"t.b\",partition=\"1\"} 0\n\
            idem_consumer_lag_of_somebody_else{group=\"h\"} 7\n\
            idem_ready 1\n";
        let expected: Vec<&str> = text.lines().filter(|line| !line.ends_with(" 0")).collect();
        assert_eq!(without_gone(text, &[group]).lines().collect::<Vec<_>>(), expected);
    }
}
