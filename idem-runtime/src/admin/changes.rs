//! What is changed over HTTP: each change is logged with who and what before it is done, and what came of it after.

use std::sync::Arc;

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
    #[error("this program has no such group: ask the program that has it, or use the `idem` command")]
    NotOwn,
    #[error("it took longer than {} s: use the `idem` command, which waits", PATIENCE.as_secs())]
    TooLong,
    #[error("it takes longer than {} s and goes on: the program's log says what comes of it", PATIENCE.as_secs())]
    GoesOn,
}

/// A dead letter with key and value.
pub(super) async fn payload(site: &Site, who: &Operator, group: &str, at: (i32, i64)) -> Result<LetterInFull, Failed> {
    let Operator { name, peer, .. } = who;
    let group = site.own(group)?;
    tracing::warn!(operator = name, %peer, group, partition = at.0, offset = at.1, "the payload of a dead letter is shown");
    of_queue(site, dlq::show(&site.ops, group, at, true)).await
}

/// Replays, or tells what it would do.
pub(super) async fn replay(site: &Arc<Site>, who: &Operator, plan: &Plan) -> Result<Replayed, Failed> {
    let (Operator { name, peer, .. }, Plan { group, options }) = (who.clone(), plan.clone());
    site.own(&group)?;
    let filter = &options.filter;
    let (reason, handler) = (filter.reason.as_deref(), filter.handler.as_deref());
    let event_id = filter.event_id.map(|id| id.to_string());
    let (dry_run, limit, allow_expired) = (options.dry_run, options.limit, options.allow_expired);
    tracing::warn!(
        operator = name, %peer, group, reason, handler, event_id, at = ?filter.at, limit, allow_expired, dry_run,
        "dead letters are replayed"
    );
    let site = Arc::clone(site);
    to_the_end(async move {
        let _turn = site.reading.acquire().await;
        let done = replay::replay(&site.ops, &group, &options, &mut silent).await;
        match &done {
            Ok(Replayed { to_replay, replayed, .. }) => {
                tracing::warn!(operator = name, group, dry_run, to_replay, replayed, "replay ended");
            }
            Err(error) => tracing::warn!(operator = name, group, dry_run, %error, "replay failed"),
        }
        done
    })
    .await
}

/// Says what became of a money call.
pub(super) async fn resolve(
    site: &Arc<Site>,
    who: &Operator,
    key: &str,
    decision: Decision,
    note: &str,
) -> Result<Call, Failed> {
    let Operator { name, peer, .. } = who.clone();
    tracing::warn!(operator = name, %peer, key, ?decision, "a money call is to be resolved");
    let (site, key, note) = (Arc::clone(site), key.to_owned(), format!("{note} ({name})"));
    to_the_end(async move {
        let done = money::resolve(&site.ops, &key, decision, &note).await;
        match &done {
            Ok(_) => tracing::warn!(operator = name, key, ?decision, "the money call is resolved"),
            Err(error) => tracing::warn!(operator = name, key, ?decision, %error, "the money call is not resolved"),
        }
        done
    })
    .await
}

/// Lets a parked event of the outbox be sent, or deletes it; those behind it are sent.
pub(super) async fn release(site: &Arc<Site>, who: &Operator, seq: i64, drop: bool) -> Result<Released, Failed> {
    let Operator { name, peer, .. } = who.clone();
    tracing::warn!(operator = name, %peer, seq, drop, "a parked event of the outbox is to be released");
    let site = Arc::clone(site);
    to_the_end(async move {
        let done = outbox::release(&site.ops, seq, drop).await;
        match &done {
            Ok(_) => tracing::warn!(operator = name, seq, drop, "the parked event is released"),
            Err(error) => tracing::warn!(operator = name, seq, drop, %error, "the parked event is not released"),
        }
        done
    })
    .await
}

/// Lets stopped lanes go on.
pub(super) async fn resume(site: &Arc<Site>, who: &Operator, group: &str) -> Result<Resumed, Failed> {
    let Operator { name, peer, .. } = who.clone();
    let group = site.own(group)?.to_owned();
    tracing::warn!(operator = name, %peer, group, "stopped lanes are to be resumed");
    let site = Arc::clone(site);
    to_the_end(async move {
        let done = groups::resume(&site.ops, &group).await;
        match &done {
            Ok(_) => tracing::warn!(operator = name, group, "stopped lanes are resumed"),
            Err(error) => tracing::warn!(operator = name, group, %error, "stopped lanes are not resumed"),
        }
        done
    })
    .await
}

/// Carries a change out also when nobody waits for the answer any more: half a change is what nobody asked for.
async fn to_the_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, OpsError>> + Send + 'static,
) -> Result<T, Failed> {
    match tokio::time::timeout(PATIENCE, tokio::spawn(change)).await {
        Ok(Ok(done)) => Ok(done?),
        Ok(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
        Err(_elapsed) => Err(Failed::GoesOn),
    }
}

/// Reads a dead letter queue, when nobody else does, within the bound.
pub(super) async fn of_queue<T>(site: &Site, work: impl Future<Output = Result<T, OpsError>>) -> Result<T, Failed> {
    bounded(async {
        let _turn = site.reading.acquire().await;
        work.await
    })
    .await
}

/// Asks the servers within the bound.
pub(super) async fn bounded<T>(work: impl Future<Output = Result<T, OpsError>>) -> Result<T, Failed> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(result) => Ok(result?),
        Err(_elapsed) => Err(Failed::TooLong),
    }
}
