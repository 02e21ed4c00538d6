//! What is changed over HTTP: each change is logged with who and what, before it is done.

use super::access::Operator;
use super::{PATIENCE, Site};
use crate::ops::dlq::{self, LetterInFull};
use crate::ops::groups::{self, Resumed};
use crate::ops::money::{self, Call, Decision};
use crate::ops::outbox::{self, Released};
use crate::ops::replay::{self, Options, Replayed};
use crate::ops::{OpsError, silent};

/// A replay that was tried without doing it.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub group: String,
    pub options: Options,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Ops(#[from] OpsError),
    #[error("it took longer than {} s: use the `idem` command, which waits", PATIENCE.as_secs())]
    TooLong,
}

/// A dead letter with key and value.
pub(super) async fn payload(site: &Site, who: &Operator, group: &str, at: (i32, i64)) -> Result<LetterInFull, Failed> {
    let Operator { name, peer, .. } = who;
    tracing::warn!(operator = name, %peer, group, partition = at.0, offset = at.1, "the payload of a dead letter is shown");
    bounded(dlq::show(&site.ops, group, at, true)).await
}

/// Replays, or tells what it would do.
pub(super) async fn replay(site: &Site, who: &Operator, plan: &Plan) -> Result<Replayed, Failed> {
    let (Operator { name, peer, .. }, Plan { group, options }) = (who, plan);
    let filter = &options.filter;
    let (reason, handler) = (filter.reason.as_deref(), filter.handler.as_deref());
    let event_id = filter.event_id.map(|id| id.to_string());
    let (dry_run, limit, allow_expired) = (options.dry_run, options.limit, options.allow_expired);
    tracing::warn!(
        operator = name, %peer, group, reason, handler, event_id, at = ?filter.at, limit, allow_expired, dry_run,
        "dead letters are replayed"
    );
    let replayed = bounded(replay::replay(&site.ops, group, options, &mut silent)).await?;
    tracing::warn!(
        operator = name,
        group,
        dry_run,
        to_replay = replayed.to_replay,
        replayed = replayed.replayed,
        "replay ended"
    );
    Ok(replayed)
}

/// Says what became of a money call.
pub(super) async fn resolve(site: &Site, who: &Operator, key: &str, as_: Decision, note: &str) -> Result<Call, Failed> {
    let Operator { name, peer, .. } = who;
    tracing::warn!(operator = name, %peer, key, decision = ?as_, "a money call is resolved");
    let note = format!("{note} ({name})");
    bounded(money::resolve(&site.ops, key, as_, &note)).await
}

/// Lets a parked event of the outbox be sent, or deletes it; those behind it are sent.
pub(super) async fn release(site: &Site, who: &Operator, seq: i64, drop: bool) -> Result<Released, Failed> {
    let Operator { name, peer, .. } = who;
    tracing::warn!(operator = name, %peer, seq, drop, "a parked event of the outbox is released");
    bounded(outbox::release(&site.ops, seq, drop)).await
}

/// Lets stopped lanes go on.
pub(super) async fn resume(site: &Site, who: &Operator, group: &str) -> Result<Resumed, Failed> {
    let Operator { name, peer, .. } = who;
    tracing::warn!(operator = name, %peer, group, "stopped lanes are resumed");
    bounded(groups::resume(&site.ops, group)).await
}

/// Reads dead letters within the bound.
pub(super) async fn bounded<T>(work: impl Future<Output = Result<T, OpsError>>) -> Result<T, Failed> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(result) => Ok(result?),
        Err(_elapsed) => Err(Failed::TooLong),
    }
}
