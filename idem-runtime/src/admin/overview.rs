//! Everything that the first page shows, gathered.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Site;
use crate::clock;
use crate::ops::groups::{self, Brake, Group};
use crate::ops::money::{self, Call};
use crate::ops::outbox::{self, Outbox};
use crate::ops::partitions::{self, Partitions};
use crate::ops::{OpsError, Timestamp, dlq};
use crate::telemetry::{GroupStats, OUTCOMES};

/// Everything that the first page shows.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Overview {
    pub now: Timestamp,
    pub program: String,
    pub ready: bool,
    /// Why it is not ready.
    pub reasons: Vec<String>,
    pub groups: Vec<GroupView>,
    pub failures: Vec<Failure>,
    pub brakes: Asked<Vec<Brake>>,
    pub money: Asked<Vec<Call>>,
    pub outbox: Asked<Outbox>,
    pub dedup: Asked<Partitions>,
    /// What the database knows of the groups.
    pub known_groups: Asked<Vec<Group>>,
}

/// The answer of a server, or why there is none.
pub(super) type Asked<T> = Result<T, String>;

/// A group in this process.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GroupView {
    pub group: String,
    pub in_flight: i64,
    pub rebalances: u64,
    /// Over its partitions here. None: none is known yet.
    pub lag: Option<i64>,
    pub handlers: Vec<HandlerView>,
    pub lanes: Vec<Lane>,
    /// Dead letters since the start, by reason.
    pub letters: BTreeMap<&'static str, u64>,
    /// Records in its dead letter queue.
    pub letters_in_queue: Asked<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct HandlerView {
    pub handler: &'static str,
    pub topic: &'static str,
    /// Over the last minute.
    pub per_second: f64,
    /// Over the last minutes, a number for each five seconds.
    pub recent: Vec<f64>,
    /// Since the start.
    pub outcomes: BTreeMap<&'static str, u64>,
    pub mean_call_ms: Option<f64>,
    /// How old the last finished event was when it was finished.
    pub last_age_ms: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Lane {
    pub topic: String,
    pub partition: i32,
    pub position: i64,
    pub lag: Option<i64>,
    pub queued_bytes: usize,
    pub brake: Option<&'static str>,
    pub stalled_for_s: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Failure {
    pub group: String,
    pub handler: String,
    pub error: String,
    pub next: &'static str,
    pub count: u64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
}

/// A page must come also when a server does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

async fn asked<T>(question: impl Future<Output = Result<T, OpsError>>) -> Asked<T> {
    match tokio::time::timeout(PATIENCE, question).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

pub(super) async fn gather(site: &Site) -> Overview {
    let stats = site.registry.groups();
    let names: Vec<String> = stats.iter().map(|group| group.name.to_string()).collect();
    let (brakes, money, outbox, dedup, known_groups, depths) = tokio::join!(
        asked(groups::stopped(&site.ops)),
        asked(money::list(&site.ops, None)),
        asked(outbox::list(&site.ops)),
        asked(partitions::list(&site.ops)),
        asked(groups::list(&site.ops)),
        asked(dlq::depths(&site.ops, &names)),
    );
    let reasons = site.health.reasons();
    Overview {
        now: Timestamp(clock::unix_millis()),
        program: site.config.client_id.clone(),
        ready: reasons.is_empty(),
        reasons,
        failures: {
            let mut failures: Vec<Failure> = stats.iter().flat_map(|group| failures(group)).collect();
            failures.sort_by_key(|failure| std::cmp::Reverse(failure.last_at));
            failures
        },
        groups: stats.iter().map(|group| view(site, group, &depths)).collect(),
        brakes,
        money,
        outbox,
        dedup,
        known_groups,
    }
}

fn view(site: &Site, group: &GroupStats, depths: &Asked<BTreeMap<String, u64>>) -> GroupView {
    let lanes: Vec<Lane> = group
        .lanes()
        .iter()
        .map(|(partition, lane)| Lane {
            topic: partition.topic.to_string(),
            partition: partition.number,
            position: lane.position,
            lag: lane.lag,
            queued_bytes: lane.queued_bytes,
            brake: lane.brake,
            stalled_for_s: lane.stalled_for.map(|stood| stood.as_secs()),
        })
        .collect();
    let handlers = group.handlers.iter().map(|handler| {
        let recent = site.rates.recent(&group.name, handler.name);
        let minute = &recent.per_second[recent.per_second.len().saturating_sub(12)..];
        let outcomes = OUTCOMES.into_iter().zip(handler.outcomes()).filter(|(_, count)| *count > 0);
        HandlerView {
            handler: handler.name,
            topic: handler.topic,
            per_second: minute.iter().sum::<f64>() / (minute.len().max(1)) as f64,
            outcomes: outcomes.collect(),
            mean_call_ms: recent.mean_call.map(|took| took.as_secs_f64() * 1_000.0),
            last_age_ms: handler.last_age().and_then(|age| u64::try_from(age.as_millis()).ok()),
            recent: recent.per_second,
        }
    });
    let known = lanes.iter().filter_map(|lane| lane.lag);
    let depth = depths.as_ref().map(|depths| depths.get(&*group.name).copied().unwrap_or(0));
    GroupView {
        group: group.name.to_string(),
        in_flight: group.events_in_flight(),
        rebalances: group.rebalances(),
        lag: lanes.iter().any(|lane| lane.lag.is_some()).then(|| known.sum()),
        // Events that no handler took are shown once there are some.
        handlers: handlers.filter(|handler| !handler.handler.is_empty() || !handler.outcomes.is_empty()).collect(),
        lanes,
        letters: group.letters(),
        letters_in_queue: depth.map_err(Clone::clone),
    }
}

fn failures(group: &GroupStats) -> Vec<Failure> {
    let failure = |kind: crate::telemetry::Kind| Failure {
        group: group.name.to_string(),
        handler: kind.handler,
        error: kind.error,
        next: kind.next,
        count: kind.count,
        first_at: Timestamp(kind.first_millis),
        last_at: Timestamp(kind.last_millis),
        topic: kind.partition.topic.to_string(),
        partition: kind.partition.number,
        offset: kind.offset,
    };
    group.failures().into_iter().map(failure).collect()
}
