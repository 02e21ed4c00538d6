//! What happens to one event, in its order, on one page:
//!
//! decode → gate → begin → dedup insert → version guard → handler → check → outbox → commit
//!
//! and then, by the outcome: the watermark moves, or the event waits in place, or it is moved to a
//! retry topic or the dead letter queue first. Progress and offset follow the watermark
//! (`group/`). What follows from what is decided in `decide/`; this page only does it.
//!
//! With `order = "key"` a failed event with a key waits in a row instead of a retry topic, and a record
//! whose key has rows is parked behind them before it is even decoded. Rows are settled here too.
//!
//! Events that share a transaction have a page of their own, `pipeline/shared.rs`. It rests on this one:
//! what can't share, or failed together with others, is settled here alone.

pub(crate) mod gather;
pub(crate) mod shared;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures_util::FutureExt;
use tracing::{Instrument, Span};

use crate::clock;
use crate::config::Unmatched;
use crate::decide::circuit::{Admission, EventKey, Note, Verdict};
use crate::decide::outcome::{Outcome, Reason};
use crate::decide::parking::{self, Arrival, Keep, Place};
use crate::decide::step::{self, Step};
use crate::decide::window::{self, Gate};
use crate::decide::{retry, sql_error};
use crate::error::{Class, Failure, HandlerError};
use crate::event::{DecodeError, DecodedEvent, EventId};
use crate::group::{GroupContext, Match};
use crate::handler::{Delivered, Handler, ParamSource, Tx};
use crate::health::Obstacle;
use crate::kafka::consumer::Partition;
use crate::kafka::names;
use crate::kafka::record::{Origin, Record};
use crate::money;
use crate::move_on::move_on;
use crate::outbox::{Handled, Parents};
use crate::parking::Parking;
use crate::pg::commit::{Commit, commit, is_of_a_removed_statement};
use crate::pg::dedup::{self, Check, Inserted, TransactionId};
use crate::pg::event_session::{self, EventSession};
use crate::pg::outbox;
use crate::pg::session::{bounded, on_service};
use crate::pg::versions;
use crate::probe::{self, CrashPoint};
use crate::run::RunError;
use crate::stop::Stop;
use crate::telemetry::{Failed, spans};

/// How the work on one record ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Settled {
    /// The watermark may move over it; a dead letter says its reason.
    Finished(Option<Reason>),
    /// A stop came first: it will be delivered again.
    Abandoned,
}

/// What the work on a partition rests on.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'a> {
    /// The run of the database server that the position was read from.
    pub server: &'a str,
    /// Where events wait that keep the order of their keys.
    pub parking: Option<&'a Parking>,
}

/// Works on one record until it is done, or a stop is asked for.
///
/// # Cancel safety
/// Dropping it rolls back what was not committed; the record is delivered again and recognised.
pub(crate) async fn settle(group: &GroupContext, claim: Claim<'_>, record: &Record, stop: &Stop) -> Settled {
    match claim.parking.map(|parking| (parking, parking.arrival(record))) {
        None | Some((_, Arrival::Handle)) => {}
        Some((_, Arrival::Known)) => return Settled::Finished(None),
        Some((parking, Arrival::Behind)) if parking.follow(record, stop).await => return Settled::Finished(None),
        Some((_, Arrival::Behind)) => return Settled::Abandoned,
    }
    let own = group.is_own_topic(&record.topic).then(|| Origin::of_own(&record.raw_headers()));
    let origin = own.clone().flatten().unwrap_or_else(|| Origin::of_main(record));
    if let (Some(due), Some(delay)) = (origin.due_at_millis, names::retry_delay(&group.name, &record.topic)) {
        let wait = Duration::from_millis(due.saturating_sub(clock::unix_millis())).min(retry::longest_wait(delay));
        if !wait.is_zero() && !stop.sleep(wait).await {
            return Settled::Abandoned;
        }
    }
    let place = claim.parking.map_or(Place::Topics, |parking| parking.place(record));
    let event = Event { record, origin: &origin, is_foreign: own == Some(None), is_own: own.is_some() };
    work(group, claim, place, event, stop).await
}

/// Works on the parked event of a key that comes next, like [`settle`].
///
/// # Cancel safety
/// As for [`settle`]; the row stays.
pub(crate) async fn settle_parked(
    group: &GroupContext,
    server: &str,
    parking: &Parking,
    key: u64,
    stop: &Stop,
) -> Settled {
    let Some(row) = parking.head(key, stop).await else { return Settled::Finished(None) };
    let (record, origin) = &*row;
    // One that failed before had a handler, as on the group's own topics.
    let event = Event { record, origin, is_foreign: false, is_own: origin.attempt > 0 };
    work(group, Claim { server, parking: Some(parking) }, Place::Row, event, stop).await
}

/// A record, and what is known of it.
#[derive(Clone, Copy)]
struct Event<'a> {
    record: &'a Record,
    origin: &'a Origin,
    /// It is on a topic of the group's own, and the library did not write it.
    is_foreign: bool,
    /// The group had a handler for it before.
    is_own: bool,
}

async fn work(group: &GroupContext, claim: Claim<'_>, place: Place, event: Event<'_>, stop: &Stop) -> Settled {
    let Event { record, origin, is_foreign, is_own } = event;
    let key: EventKey = origin.event_key();
    let delivered = Delivered { record, origin };
    let mut backoff = in_place_backoff();
    loop {
        let span = spans::event(&group.name, record, origin.attempt);
        let (handler, outcome, circuit) = match group.handler_for(&origin.topic, record.payload.as_deref()) {
            _ if is_foreign => ("", foreign_record(), Verdict::Counts),
            Match::Handler(handler) => {
                let attempts = through_circuit(group, claim, handler, &key, delivered, stop);
                let Some((outcome, verdict)) = attempts.instrument(span.clone()).await else {
                    return Settled::Abandoned;
                };
                (handler.spec.name, outcome, verdict)
            }
            Match::None => ("", Outcome::Unmatched, Verdict::Counts),
            Match::Unparsable(error) => ("", undecodable(error), Verdict::Counts),
        };
        // On the group's own topics an event that nobody takes is no stranger: its handler is gone, or
        // not here yet.
        let unmatched_is_dead = is_own || group.config.unmatched == Unmatched::DeadLetter;
        let step = step::after(&outcome, origin.attempt, group.tiers(handler), unmatched_is_dead, circuit);
        let keep = parking::keep(place, &step);
        let moved = match &step {
            Step::Advance => Ok(()),
            // It waits in a row.
            Step::Retry { .. } if keep != Keep::Nothing => Ok(()),
            Step::WaitInPlace => Err(outcome.failure().map(Failure::summary).unwrap_or_default()),
            Step::Retry { .. } | Step::DeadLetter { .. } => {
                move_on(group, record, origin, handler, &outcome, &step).instrument(span.clone()).await
            }
            Step::StopRun => {
                group.fail(RunError::TransactionEnded { handler: handler.to_owned() });
                return Settled::Abandoned;
            }
        };
        report(span, group, event, handler, &outcome, &step, moved.is_ok());
        let Err(reason) = moved else {
            group.health.clear(&waiting(group, record));
            // The row last: an event whose row is left is driven again, and recognised.
            if let Some(parking) = claim.parking
                && !parking.keep(record, origin, keep, stop).await
            {
                return Settled::Abandoned;
            }
            return Settled::Finished(if let Step::DeadLetter { reason } = step { Some(reason) } else { None });
        };
        // An open circuit has a reason of its own, and says itself when to come again.
        if circuit == Verdict::Counts && !wait_in_place(group, record, &reason, &mut backoff, stop).await {
            return Settled::Abandoned;
        }
    }
}

/// Waits before the same work is done again, and lets readiness say why. `false`: a stop came first.
async fn wait_in_place(
    group: &GroupContext,
    record: &Record,
    reason: &str,
    backoff: &mut impl Iterator<Item = Duration>,
    stop: &Stop,
) -> bool {
    let Record { topic, partition, offset, .. } = record;
    let place = format!("group {}: {topic}/{partition} waits at offset {offset}: {reason}", group.name);
    group.health.set(waiting(group, record), place);
    probe::settled(probe::WAITS);
    stop.sleep(backoff.next().unwrap_or(LONGEST_PAUSE)).await
}

fn waiting(group: &GroupContext, record: &Record) -> Obstacle {
    let partition = Partition { topic: Arc::clone(&record.topic), number: record.partition };
    Obstacle::Waiting(Arc::clone(&group.name), partition)
}

/// An attempt, when the handler's circuit lets it through. `None`: a stop came first.
async fn through_circuit(
    group: &GroupContext,
    claim: Claim<'_>,
    handler: &Handler,
    event: &EventKey,
    delivered: Delivered<'_>,
    stop: &Stop,
) -> Option<(Outcome, Verdict)> {
    let circuit = group.circuit(handler.spec.name)?;
    while let Admission::Wait(millis) = circuit.admit(event) {
        if !stop.sleep(Duration::from_millis(millis)).await {
            return None;
        }
    }
    let place = circuit.hold(event);
    let outcome = attempt(group, claim, handler, delivered).await;
    let verdict = match &outcome {
        Outcome::Done | Outcome::Permanent { reason: Reason::Permanent, .. } => place.note(Note::Well),
        Outcome::Transient { failure, .. } => place.note(Note::Failed(&failure.summary())),
        _ => place.note(Note::Nothing),
    };
    Some((outcome, verdict))
}

/// One attempt at an event.
async fn attempt(group: &GroupContext, claim: Claim<'_>, handler: &Handler, delivered: Delivered<'_>) -> Outcome {
    // decode
    let Some(payload) = delivered.record.payload.as_deref() else {
        return Outcome::permanent(Reason::Null, Failure::new("the record has no value"));
    };
    let event = match std::panic::catch_unwind(AssertUnwindSafe(|| (handler.decode.one)(payload))) {
        Ok(Ok(event)) => event,
        Ok(Err(error)) => return undecodable(error),
        Err(_panic) => return Outcome::permanent(Reason::Panic, Failure::new("decoding the event panicked")),
    };
    spans::identified(&Span::current(), handler, event.id);
    // gate
    if gate(group, event.id, delivered.origin) == Gate::Future {
        let text = "the time of the event's id, or of a natural key's record, lies in the future";
        return Outcome::permanent(Reason::Future, Failure::new(text));
    }
    // begin; the permit keeps the events in progress below the pool's size, so that waiting for a
    // connection is never an outage
    let Ok(_permit) = group.permits.acquire().await else {
        return Outcome::Infrastructure(Failure::new("the run is ending"));
    };
    let mut session = match group.pools.handlers.acquire().await {
        Ok(session) => session,
        Err(error) => return infrastructure(error),
    };
    if session.server() != claim.server {
        return Outcome::Infrastructure(another_server(group));
    }
    let _in_flight = group.stats.in_flight(1);
    let id = event.id.uuid();
    let mut calls = None;
    let ended = transaction(group, claim, handler, event, delivered, &mut session, &mut calls).await;
    let outcome = match ended {
        (outcome, Connection::Usable) => {
            session.release();
            outcome
        }
        (outcome, Connection::Unknown) => {
            drop(session);
            outcome
        }
        (outcome, Connection::Interrupted(transaction)) => {
            drop(session);
            let group_name = Arc::clone(&group.name);
            let committed = on_service(&group.pools, move |connection| {
                Box::pin(async move { dedup::was_committed(connection, id, &group_name, transaction).await })
            });
            match committed.await {
                Ok(false) => outcome,
                Ok(true) => Outcome::TransactionEnded,
                // The handler was slow because the database is away.
                Err(error) => infrastructure(error),
            }
        }
    };
    match calls {
        Some(calls) => with_settled(&calls, outcome).await,
        None => outcome,
    }
}

/// What is certain of money calls outlives a transaction that failed: the event waits until it is recorded.
async fn with_settled(calls: &money::Running, outcome: Outcome) -> Outcome {
    if let Outcome::Done = outcome {
        calls.noted();
        return outcome;
    }
    match (calls.settle().await, outcome) {
        (Err(error), outcome) if !matches!(outcome, Outcome::TransactionEnded) => infrastructure(error),
        (_, outcome) => outcome,
    }
}

/// What may be done with a connection after the transaction. Only a usable one goes back to the pool.
enum Connection {
    Usable,
    Unknown,
    /// The handler stopped somewhere inside the transaction, which it may have ended before.
    Interrupted(TransactionId),
}

impl Connection {
    /// The server has ended the transaction, unless it could not be asked.
    fn after_commit(error: &sqlx::Error) -> Self {
        if sql_error::leaves_connection_usable(error) { Self::Usable } else { Self::Unknown }
    }
}

/// begin → dedup insert → version guard → handler → check → outbox → commit
async fn transaction(
    group: &GroupContext,
    claim: Claim<'_>,
    handler: &Handler,
    event: DecodedEvent,
    delivered: Delivered<'_>,
    session: &mut EventSession<'_>,
    calls: &mut Option<money::Running>,
) -> (Outcome, Connection) {
    // begin, dedup insert
    let mut tx = session.tx();
    let (transaction_id, horizon) = match bounded(dedup::begin(&mut tx, event.id.uuid(), &group.name)).await {
        Ok(Some(Inserted { transaction, horizon })) => {
            match expired(group, handler, event.id, delivered.origin, horizon) {
                None => (transaction, horizon),
                Some(expired) => return (expired, rolled_back(tx).await),
            }
        }
        Ok(None) => return (Outcome::Duplicate, rolled_back(tx).await),
        Err(error) => {
            if dedup::is_missing_partition(&error) {
                tracing::error!(event_id = %event.id, "the dedup table has no partition for this event; attaching it");
                group.missing_partition.notify_one();
            }
            let connection = after_begin(tx, &error).await;
            return (infrastructure(error), connection);
        }
    };

    // version guard
    if let Some(version) = event.version.as_ref().filter(|_| handler.spec.stale) {
        match bounded(versions::advance(&mut tx, &handler.spec, version)).await {
            Ok(true) => {}
            Ok(false) => return (Outcome::Stale, rolled_back(tx).await),
            Err(error) => {
                let connection = after_error(tx, &error).await;
                return (HandlerError::from(error).into(), connection);
            }
        }
    }

    tx.outbox.called_for(parents(group, handler, [(event.id, delivered)]));
    *calls = money_calls(group, handler, event.id, delivered, horizon);
    let params = ParamSource { states: &group.states, delivered, money: calls.as_ref() };
    let ended = handled(group, claim, handler, event.event, params, tx, transaction_id).await;
    if let Some(calls) = calls {
        calls.end();
    }
    ended
}

/// handler → check → commit
async fn handled(
    group: &GroupContext,
    claim: Claim<'_>,
    handler: &Handler,
    event: Box<dyn Any + Send>,
    params: ParamSource<'_>,
    mut tx: Tx<'_>,
    transaction_id: TransactionId,
) -> (Outcome, Connection) {
    // handler
    probe::at(CrashPoint::BeforeHandler).await;
    let money = params.money;
    let call = AssertUnwindSafe((handler.call)(&mut tx, event, params)).catch_unwind();
    let interrupted = Connection::Interrupted(transaction_id);
    let measured = group.stats.call(handler.spec.name);
    let called = tokio::time::timeout(handler.spec.timeout, call).await;
    drop(measured);
    let failed: Option<HandlerError> = match called {
        // A call whose fate is open can't be swallowed: nobody else would ask again.
        Ok(Ok(result)) => result.err().or_else(|| money.and_then(|money| money.swallowed())),
        Ok(Err(_panic)) => return (transient("the handler panicked", true), interrupted),
        Err(_elapsed) => return (transient("the handler took longer than its timeout", false), interrupted),
    };

    // check
    let owner = claim.parking.map(Parking::owner);
    if let Some(error) = failed {
        return match bounded(dedup::check(&mut tx, transaction_id, owner)).await {
            Ok(Check::Ended) => (Outcome::TransactionEnded, Connection::Unknown),
            Ok(Check::NotOwner) => (replaced(group), rolled_back(tx).await),
            Ok(Check::Whole) => (error.into(), rolled_back(tx).await),
            // The error aborted the transaction, or took the connection with it.
            Err(check) => (error.into(), after_error(tx, &check).await),
        };
    }

    // check, outbox, commit
    if let Some(money) = money {
        money.late_commit().await;
    }
    probe::at(CrashPoint::BeforeCommit).await;
    let sessions = &group.pools.handlers;
    let is_prepared = !sessions.are_statements_removed();
    let calls = money.map(|money| money.statements(is_prepared)).unwrap_or_default();
    let published = outbox::statements(tx.outbox.rows());
    match bounded(commit(&mut tx, transaction_id, owner, &calls, &published, is_prepared)).await {
        Ok(Commit::Done) => {
            probe::at(CrashPoint::AfterCommit).await;
            (Outcome::Done, if is_prepared { Connection::Usable } else { Connection::Unknown })
        }
        Ok(Commit::Ended) => (Outcome::TransactionEnded, Connection::Unknown),
        Ok(Commit::NotOwner) => (replaced(group), rolled_back(tx).await),
        // The event is handled again, by what is recorded now.
        Ok(Commit::Disputed) => {
            let text = "a money call was resolved otherwise while its event was handled";
            (Outcome::Infrastructure(Failure::new(text)), Connection::Unknown)
        }
        Ok(Commit::Unpublished(error)) => (HandlerError::of_own(error).into(), Connection::Unknown),
        // A deferred constraint of the user's tables, with the class of its SQLSTATE.
        Ok(Commit::Failed(error)) => {
            let connection = if is_prepared { Connection::after_commit(&error) } else { Connection::Unknown };
            (HandlerError::from(error).into(), connection)
        }
        Err(sqlx::Error::Database(error)) if is_of_a_removed_statement(&*error) => {
            sessions.note_removed_statements();
            (infrastructure(sqlx::Error::Database(error)), interrupted)
        }
        Err(error) if sql_error::class(&error) == Class::Infrastructure => (infrastructure(error), Connection::Unknown),
        Err(_) => {
            let text = "the handler returned Ok after a database error that aborted the transaction";
            (transient(text, false), Connection::Unknown)
        }
    }
}

/// The connection leads to another server, or another run of it, than the one the position was read from: what
/// either says is done may be unknown to the other. The coordinator goes back first.
fn another_server(group: &GroupContext) -> Failure {
    group.doubt.notify_one();
    Failure::new("the database server is another one")
}

fn replaced(group: &GroupContext) -> Outcome {
    group.doubt.notify_one();
    Outcome::Infrastructure(Failure::new("another member has taken the partition over"))
}

/// The events that a handler is called for, as what it publishes is derived from them.
fn parents<'a>(
    group: &'a GroupContext,
    handler: &'a Handler,
    events: impl IntoIterator<Item = (EventId, Delivered<'a>)>,
) -> Parents<'a> {
    let window_millis = u64::try_from(group.config.dedup_window.as_millis()).unwrap_or(u64::MAX);
    let (group, handler, is_batch) = (&*group.name, handler.spec.name, handler.spec.batch.is_some());
    let handled = |(id, delivered)| Handled { id, group, handler, window_millis, delivered };
    let mut all = events.into_iter().map(handled);
    if is_batch {
        return Parents::Batch(all.map(|handled| (handled.id, handled)).collect());
    }
    all.next().map_or(Parents::None, Parents::One)
}

/// The money calls that the handler may make, if it makes any.
fn money_calls(
    group: &GroupContext,
    handler: &Handler,
    id: EventId,
    delivered: Delivered<'_>,
    horizon: Option<i64>,
) -> Option<money::Running> {
    let (provider, spec) = (group.provider.as_ref()?, handler.spec.money?);
    let event = money::Event::new(id, &group.name, spec, delivered, handler.spec.timeout, horizon);
    Some(money::Running::new(Arc::clone(provider), event))
}

async fn rolled_back(tx: Tx<'_>) -> Connection {
    match bounded(event_session::rollback(tx.connection)).await {
        Ok(()) => Connection::Usable,
        Err(_) => Connection::Unknown,
    }
}

async fn after_begin(tx: Tx<'_>, error: &sqlx::Error) -> Connection {
    if sql_error::is_no_fault_of_the_session(error) { rolled_back(tx).await } else { Connection::Unknown }
}

async fn after_error(tx: Tx<'_>, error: &sqlx::Error) -> Connection {
    if sql_error::leaves_connection_usable(error) { rolled_back(tx).await } else { Connection::Unknown }
}

const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Backoff for an outage: it never ends, and never grows beyond a few seconds, so that work resumes
/// soon after.
pub(crate) fn in_place_backoff() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter()
        .build()
}

fn gate(group: &GroupContext, id: EventId, origin: &Origin) -> Gate {
    window::gate(id.unix_millis(), origin.timestamp_millis, clock::unix_millis(), group.config.clock_skew)
}

/// What becomes of an event without a row that may have been processed and forgotten. `None`: it is
/// handled.
fn expired(
    group: &GroupContext,
    handler: &Handler,
    id: EventId,
    origin: &Origin,
    horizon: Option<i64>,
) -> Option<Outcome> {
    if !window::may_be_forgotten(id.unix_millis(), origin.timestamp_millis, horizon) {
        return None;
    }
    let allowed_at = origin.replay.filter(|replay| replay.may_be_expired).map(|replay| replay.at_millis);
    let (window, skew) = (group.config.dedup_window, group.config.clock_skew);
    window::expired(handler.spec.expired, window::is_allowed(allowed_at, clock::unix_millis(), window, skew))
}

fn infrastructure(error: sqlx::Error) -> Outcome {
    Outcome::Infrastructure(Failure::new(error))
}

fn transient(text: &'static str, panicked: bool) -> Outcome {
    Outcome::Transient { failure: Failure::new(text), panicked }
}

fn undecodable(error: DecodeError) -> Outcome {
    let reason = match error {
        DecodeError::BadId(_) => Reason::BadId,
        DecodeError::Unparsable { .. } => Reason::Unparsable,
    };
    Outcome::permanent(reason, Failure::with_safe_text(error))
}

/// A record on the group's own topics that the library did not write.
fn foreign_record() -> Outcome {
    Outcome::permanent(Reason::Unparsable, Failure::new("the record does not say where it comes from"))
}

/// One line per event for who listens; a failure is worth a warning. The attempt's span ends here.
fn report(
    span: Span,
    group: &GroupContext,
    event: Event<'_>,
    handler: &str,
    outcome: &Outcome,
    step: &Step,
    moved: bool,
) {
    let Event { record, origin, .. } = event;
    let settled = step::word(step, outcome);
    spans::settled(&span, if moved { settled } else { "wait" }, outcome);
    let _in_span = span.entered();
    let (topic, partition, offset) = (&*record.topic, record.partition, record.offset);
    if let Some(failure) = outcome.failure() {
        let error = failure.summary();
        tracing::warn!(group = &*group.name, handler, topic, partition, offset, error, next = settled, "event failed");
        let partition = Partition { topic: Arc::clone(&record.topic), number: partition };
        group.stats.failed(Failed { handler: handler.to_owned(), error, next: settled, partition, offset });
    }
    if moved {
        probe::settled(settled);
        group.stats.settled(handler, settled, origin.timestamp_millis);
        if let Step::DeadLetter { reason } = step {
            group.stats.dead_letter(*reason);
        }
        tracing::debug!(target: "idem::settled", handler, outcome = settled, topic, partition, offset);
    }
}
