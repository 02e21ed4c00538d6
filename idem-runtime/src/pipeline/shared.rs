//! What happens to events that share a transaction, in its order, on one page:
//!
//! decode → gate (`gather.rs`) → begin → dedup insert of all, and the guard → version guard → handler for each
//! fresh event (or once for all, with `batch`) → check → outbox → commit
//!
//! This page only knows how all of them succeed, or wait for the database together. Whatever needs a
//! path of its own is settled alone, by the page for one event: a record that is no event for a handler
//! is left out; an event that failed is set aside, and the others run again without it; and if nobody can
//! say which one failed, all of them are settled alone. So what happens to an event never depends on its
//! neighbours, and no event is blamed for what another one did to the transaction.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tracing::Instrument;

use super::gather::{Event, Run, most};
use super::{
    Connection, after_begin, after_error, another_server, expired, in_place_backoff, parents, rolled_back,
    wait_in_place, waiting,
};
use crate::decide::batch_size::BatchSize;
use crate::decide::circuit::Note;
use crate::decide::sql_error;
use crate::decide::turns::Deadlock;
use crate::error::{Class, Failure, HandlerError};
use crate::group::GroupContext;
use crate::handler::{Decoded, Handler, ParamSource, Tx};
use crate::kafka::queue::Queued;
use crate::pg::dedup::{self, Check};
use crate::pg::dedup_many;
use crate::pg::event_session::{self, EventSession};
use crate::pg::outbox;
use crate::pg::session::bounded;
use crate::pg::versions;
use crate::probe::{self, CrashPoint};
use crate::run::RunError;
use crate::stop::Stop;

/// Failed events that are set aside before the rest of a transaction is settled one by one as well.
const MOST_ASIDE: usize = 8;
/// How long a transaction whose handlers are slow goes on after a stop was asked for. Then it is rolled
/// back, and its events are delivered again.
const PATIENCE: Duration = Duration::from_millis(500);

/// How the work on a run ended.
pub(crate) struct Settled {
    /// Offsets that are done with.
    pub finished: Vec<i64>,
    /// Records to settle one by one, in the order of their offsets.
    pub alone: Vec<Queued>,
    /// A stop came first: what is not finished will be delivered again.
    pub abandoned: bool,
}

/// Works on a run until its events are committed, or are to be settled alone.
///
/// # Cancel safety
/// Dropping it rolls back what was not committed; the records are delivered again and recognised.
pub(crate) async fn settle(
    group: &GroupContext,
    server: &str,
    mut run: Run<'_>,
    size: &mut BatchSize,
    stop: &Stop,
) -> Settled {
    let mut settled = Settled { finished: Vec::new(), alone: Vec::new(), abandoned: false };
    let mut backoff = in_place_backoff();
    while !run.events.is_empty() {
        let turn = group.turns.wait().await;
        let attempt = attempt(group, server, &mut run, stop).await;
        drop(turn);
        match attempt {
            Attempt::Committed { fates, handled_in } => {
                size.committed(run.events.len(), most(run.handler), handled_in);
                report(group, &run, &fates);
                settled.finished.extend(run.events.drain(..).map(|event| event.record.offset));
            }
            Attempt::Again(failure) => {
                if sql_error::behind(failure.source()).is_some_and(sql_error::is_conflict)
                    && group.turns.deadlock() == Deadlock::DespiteTurns
                {
                    size.conflicted();
                }
                let error = failure.summary();
                let (handler, events) = (run.handler.spec.name, run.events.len());
                tracing::warn!(group = &*group.name, handler, events, error, "a shared transaction waits");
                let Some(first) = run.first() else { break };
                if !wait_in_place(group, first, &error, &mut backoff, stop).await {
                    settled.abandoned = true;
                    break;
                }
            }
            Attempt::Expired(aside) => {
                for at in aside.into_iter().rev() {
                    settled.alone.push(run.events.remove(at).record);
                }
            }
            Attempt::Failed { at: Some(at) } if settled.alone.len() < MOST_ASIDE && run.events.len() > 1 => {
                size.failed();
                settled.alone.push(run.events.remove(at).record);
            }
            Attempt::Failed { .. } => {
                size.failed();
                settled.alone.extend(run.events.drain(..).map(|event| event.record));
            }
            Attempt::Ended => {
                group.fail(RunError::TransactionEnded { handler: run.handler.spec.name.to_owned() });
                settled.abandoned = true;
                break;
            }
            Attempt::Abandoned => {
                settled.abandoned = true;
                break;
            }
        }
    }
    settled.alone.sort_unstable_by_key(|record| record.offset);
    settled
}

/// What became of an event of a committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Duplicate,
    Stale,
}

impl Fate {
    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
        }
    }
}

/// How one attempt at a run ended.
enum Attempt {
    /// All of it is done.
    Committed { fates: Vec<Fate>, handled_in: Duration },
    /// The infrastructure's: all of it again, in place.
    Again(Failure),
    /// These may have been processed and forgotten; the transaction was rolled back.
    Expired(Vec<usize>),
    /// One event failed, if known which one; the transaction was rolled back.
    Failed { at: Option<usize> },
    /// The handler ended the transaction itself.
    Ended,
    /// A stop came first.
    Abandoned,
}

/// One attempt at all events of a run.
async fn attempt(group: &GroupContext, server: &str, run: &mut Run<'_>, stop: &Stop) -> Attempt {
    let Some(decoded) = run.take_decoded() else { return Attempt::Failed { at: None } };
    let Ok(_permit) = group.permits.acquire().await else {
        return Attempt::Again(Failure::new("the run is ending"));
    };
    let mut session = match group.pools.handlers.acquire().await {
        Ok(session) => session,
        Err(error) => return Attempt::Again(Failure::new(error)),
    };
    if session.server() != server {
        return Attempt::Again(another_server(group));
    }
    let _in_flight = group.stats.in_flight(run.events.len());
    let span = run.begin_spans(group);
    let (attempt, connection) =
        transaction(group, run.handler, &run.events, decoded, &mut session, stop).instrument(span.clone()).await;
    run.end_spans(&span, matches!(attempt, Attempt::Committed { .. }));
    match (attempt, connection) {
        (attempt, Connection::Usable) => {
            session.release();
            attempt
        }
        (attempt, Connection::Unknown | Connection::Interrupted(_)) => attempt,
    }
}

/// begin → dedup insert of all, and the guard → version guard → handler → check → outbox → commit
async fn transaction(
    group: &GroupContext,
    handler: &Handler,
    events: &[Event],
    decoded: Box<dyn Decoded>,
    session: &mut EventSession<'_>,
    stop: &Stop,
) -> (Attempt, Connection) {
    let again = |error: sqlx::Error| Attempt::Again(Failure::new(error));
    let mut tx = session.tx();
    if let Err(error) = bounded(event_session::begin(&mut tx)).await {
        return (again(error), Connection::Unknown);
    }

    // dedup insert of all, and the guard
    let mut ids: Vec<_> = events.iter().map(|event| event.id.uuid()).collect();
    ids.sort_unstable();
    ids.dedup();
    let inserted = match bounded(dedup_many::insert(&mut tx, &ids, &group.name)).await {
        Ok(inserted) => inserted,
        Err(error) => {
            if dedup::is_missing_partition(&error) {
                tracing::error!("the dedup table has no partition for an event; attaching it");
                group.missing_partition.notify_one();
            }
            let connection = after_begin(tx, &error).await;
            return (again(error), connection);
        }
    };
    // An id that is there twice is fresh the first time.
    let mut new: HashSet<_> = inserted.fresh.into_iter().collect();
    let fate = |event: &Event| if new.remove(&event.id.uuid()) { Fate::Done } else { Fate::Duplicate };
    let mut fates: Vec<Fate> = events.iter().map(fate).collect();
    let Some(transaction_id) = inserted.transaction else {
        return (Attempt::Committed { fates, handled_in: Duration::ZERO }, rolled_back(tx).await);
    };
    let is_expired = |event: &Event| expired(group, handler, event.id, &event.origin, inserted.horizon).is_some();
    let aside: Vec<usize> =
        (0..events.len()).filter(|at| fates[*at] == Fate::Done && is_expired(&events[*at])).collect();
    if !aside.is_empty() {
        return (Attempt::Expired(aside), rolled_back(tx).await);
    }

    // version guard
    if handler.spec.stale
        && let Err(error) = bounded(find_stale(handler, events, &mut fates, &mut tx)).await
    {
        let connection = after_error(tx, &error).await;
        return (after(None, HandlerError::from(error)), connection);
    }

    // handler
    probe::at(CrashPoint::BeforeHandler).await;
    let started = Instant::now();
    let called = call(group, handler, events, decoded, &fates, &mut tx, stop).await;
    let handled_in = started.elapsed();
    let failed = match called {
        Called::Well => None,
        Called::Failed { at, error } => Some((at, error)),
        // It stopped somewhere inside the transaction; the guard lets nobody commit it.
        Called::Interrupted { at } => return (Attempt::Failed { at }, Connection::Unknown),
        Called::Abandoned => return (Attempt::Abandoned, rolled_back(tx).await),
    };

    // check
    if failed.as_ref().is_some_and(|(_, error)| is_refused_commit(error)) {
        return (Attempt::Ended, Connection::Unknown);
    }
    match (bounded(dedup_many::check(&mut tx, transaction_id)).await, failed) {
        (Ok(Check::Whole), None) => {}
        (Ok(Check::Ended | Check::NotOwner), _) => return (Attempt::Ended, Connection::Unknown),
        (Ok(Check::Whole), Some((at, error))) => return (after(at, error), rolled_back(tx).await),
        // Its error aborted the transaction, or took the connection with it.
        (Err(check), Some((at, error))) => return (after(at, error), after_error(tx, &check).await),
        (Err(check), None) if sql_error::class(&check) == Class::Infrastructure => {
            return (again(check), Connection::Unknown);
        }
        // Somebody swallowed a database error.
        (Err(_), None) => return (Attempt::Failed { at: None }, Connection::Unknown),
    }

    probe::at(CrashPoint::BeforeCommit).await;
    // outbox
    let Tx { connection, outbox } = tx;
    if let Err(error) = bounded(outbox::insert(connection, outbox.rows())).await {
        return (after(None, HandlerError::of_own(error)), Connection::Unknown);
    }

    // commit; a deferred constraint of the user's tables fails here, and does not say for which event
    match bounded(event_session::commit(connection)).await {
        Ok(()) => {
            probe::at(CrashPoint::AfterCommit).await;
            // Others may have failed for one cause; these did not.
            if let (Some(circuit), Some(event)) = (group.circuit(handler.spec.name), events.first()) {
                let _ = circuit.hold(&event.origin.event_key()).note(Note::Well);
            }
            (Attempt::Committed { fates, handled_in }, Connection::Usable)
        }
        Err(error) => {
            let connection = Connection::after_commit(&error);
            (after(None, HandlerError::from(error)), connection)
        }
    }
}

/// How the calls of a handler ended.
enum Called {
    Well,
    /// With an error; of which event, if known.
    Failed {
        at: Option<usize>,
        error: HandlerError,
    },
    /// By a panic, or by its timeout.
    Interrupted {
        at: Option<usize>,
    },
    Abandoned,
}

/// Marks events whose aggregates have a later version, and notes the versions of the others.
async fn find_stale(
    handler: &Handler,
    events: &[Event],
    fates: &mut [Fate],
    tx: &mut Tx<'_>,
) -> Result<(), sqlx::Error> {
    let fresh = events.iter().zip(&*fates).map(|(event, fate)| event.version.as_ref().filter(|_| *fate == Fate::Done));
    let stale = versions::advance_many(tx, &handler.spec, &fresh.collect::<Vec<_>>()).await?;
    for (fate, _) in fates.iter_mut().zip(stale).filter(|(_, stale)| *stale) {
        *fate = Fate::Stale;
    }
    Ok(())
}

/// Calls the handler for each fresh event in order; with `batch` once for all of them.
async fn call<'t>(
    group: &'t GroupContext,
    handler: &'t Handler,
    events: &'t [Event],
    mut decoded: Box<dyn Decoded>,
    fates: &[Fate],
    tx: &mut Tx<'t>,
    stop: &Stop,
) -> Called {
    let started = Instant::now();
    let fresh: Vec<bool> = fates.iter().map(|fate| *fate == Fate::Done).collect();
    decoded.retain(&fresh);
    let mut places = fresh.iter().enumerate().filter(|(_, fresh)| **fresh).map(|(at, _)| at);
    if handler.spec.batch.is_some() {
        let places: Vec<usize> = places.collect();
        let Some(first) = places.first() else { return Called::Well };
        let all = places.iter().map(|at| &events[*at]);
        tx.outbox.called_for(parents(group, handler, all.map(|event| (event.id, event.delivered()))));
        let call = AssertUnwindSafe((handler.call)(tx, decoded.together(), params(group, &events[*first])));
        let _measured = group.stats.call(handler.spec.name);
        return match tokio::time::timeout(handler.spec.timeout, call.catch_unwind()).await {
            Ok(Ok(Ok(()))) => Called::Well,
            Ok(Ok(Err(error))) => {
                let at = error.failure().index.and_then(|index| places.get(index).copied());
                Called::Failed { at, error }
            }
            Ok(Err(_)) | Err(_) => Called::Interrupted { at: None },
        };
    }
    for (payload, at) in decoded.singly().zip(&mut places) {
        if stop.is_requested() && started.elapsed() > PATIENCE {
            return Called::Abandoned;
        }
        let event = &events[at];
        tx.outbox.called_for(parents(group, handler, [(event.id, event.delivered())]));
        let call = AssertUnwindSafe((handler.call)(tx, payload, params(group, event)));
        let call = call.catch_unwind().instrument(event.span.clone());
        let _measured = group.stats.call(handler.spec.name);
        match tokio::time::timeout(handler.spec.timeout, call).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => return Called::Failed { at: Some(at), error },
            Ok(Err(_)) | Err(_) => return Called::Interrupted { at: Some(at) },
        }
    }
    Called::Well
}

fn params<'a>(group: &'a GroupContext, event: &'a Event) -> ParamSource<'a> {
    ParamSource { states: &group.states, delivered: event.delivered(), money: None }
}

/// What follows from a handler's error: the infrastructure's is everybody's, another is one event's.
fn after(at: Option<usize>, error: HandlerError) -> Attempt {
    let aborted = sql_error::behind(error.failure().source()).is_some_and(sql_error::was_aborted_before);
    match error {
        HandlerError::Infrastructure(failure) => Attempt::Again(failure),
        // An event before it swallowed an error.
        _ if aborted => Attempt::Failed { at: None },
        _ => Attempt::Failed { at },
    }
}

fn is_refused_commit(error: &HandlerError) -> bool {
    sql_error::behind(error.failure().source()).is_some_and(dedup_many::is_refused_commit)
}

/// Counts what was committed, and clears what was in its way.
fn report(group: &GroupContext, run: &Run<'_>, fates: &[Fate]) {
    let handler = run.handler.spec.name;
    for outcome in [Fate::Done, Fate::Duplicate, Fate::Stale] {
        let of_these = run.events.iter().zip(fates).filter(|(_, fate)| **fate == outcome);
        let times = of_these.map(|(event, _)| event.origin.timestamp_millis);
        group.stats.settled_many(handler, outcome.name(), times);
    }
    for (event, fate) in run.events.iter().zip(fates) {
        let outcome = fate.name();
        event.span.record("idem.outcome", outcome);
        probe::settled(outcome);
        let (topic, partition, offset) = (&*event.record.topic, event.record.partition, event.record.offset);
        tracing::debug!(target: "idem::settled", handler, outcome, topic, partition, offset);
    }
    if let Some(first) = run.first() {
        group.health.clear(&waiting(group, first));
    }
}
