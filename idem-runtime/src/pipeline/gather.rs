//! Which of the waiting records share the next transaction.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;

use tracing::Span;

use super::gate;
use crate::clock;
use crate::decide::batch_size::{BatchSize, MOST};
use crate::decide::window::Gate;
use crate::event::{EventId, EventVersion};
use crate::group::{GroupContext, Match};
use crate::handler::{Decoded, Delivered, Handler};
use crate::kafka::queue::Queued;
use crate::kafka::record::Origin;
use crate::spec::Transaction;
use crate::telemetry::spans;

/// Due events of one handler that follow each other, for one transaction.
pub(crate) struct Run<'g> {
    pub(super) handler: &'g Handler,
    pub(super) events: Vec<Event>,
    /// Of these events, unless an attempt has used it up.
    decoded: Option<Box<dyn Decoded>>,
}

/// An event of a run.
pub(super) struct Event {
    pub record: Queued,
    pub origin: Origin,
    pub id: EventId,
    pub version: Option<EventVersion>,
    /// Of the attempt at it; none, if a handler with `batch` takes it together with others.
    pub span: Span,
}

impl Event {
    pub(super) fn delivered(&self) -> Delivered<'_> {
        Delivered { record: &self.record, origin: &self.origin }
    }
}

/// What a lane does next.
pub(crate) struct Next<'g> {
    /// These share a transaction.
    pub run: Option<Run<'g>>,
    /// And then so many from the front of the backlog are settled one by one.
    pub alone: usize,
}

/// Takes the events off the backlog that share the next transaction. Records in between that are no
/// event for any handler have no effect that could come too early or too late: they come after it.
pub(crate) fn next<'g>(group: &'g GroupContext, backlog: &mut VecDeque<Queued>, size: &BatchSize) -> Next<'g> {
    let mut run: Option<Run<'g>> = None;
    let mut left = VecDeque::new();
    while let Some(record) = backlog.pop_front() {
        let full = run.as_ref().is_some_and(|run| run.events.len() >= size.limit(most(run.handler)));
        match look(group, &record) {
            Look::Shares(handler, origin)
                if !full && run.as_ref().is_none_or(|run| std::ptr::eq(run.handler, handler)) =>
            {
                let run = run.get_or_insert_with(|| Run {
                    handler,
                    events: Vec::new(),
                    decoded: Some((handler.decode.many)()),
                });
                match run.decode(group, &record, &origin) {
                    Some((id, version)) => {
                        run.events.push(Event { record, origin, id, version, span: Span::none() });
                    }
                    None => left.push_back(record),
                }
            }
            Look::Nobody if !full => left.push_back(record),
            _ => {
                backlog.push_front(record);
                break;
            }
        }
    }
    let run = run.filter(|run| !run.events.is_empty());
    // Without anything that can share, the first one is on its own.
    let alone = left.len().max(usize::from(run.is_none()));
    while let Some(record) = left.pop_back() {
        backlog.push_front(record);
    }
    Next { run, alone }
}

/// The most events that a handler takes in one transaction.
pub(super) fn most(handler: &Handler) -> usize {
    handler.spec.batch.map_or(MOST, usize::from)
}

/// What a record is to a lane that shares transactions.
enum Look<'g> {
    Shares(&'g Handler, Origin),
    /// Of a handler with transactions of its own, or not due yet.
    Waits,
    /// No handler will be called.
    Nobody,
}

fn look<'g>(group: &'g GroupContext, record: &Queued) -> Look<'g> {
    let origin = if group.is_own_topic(&record.topic) {
        match Origin::of_own(&record.raw_headers()) {
            Some(origin) if origin.due_at_millis.is_some_and(|due| due > clock::unix_millis()) => return Look::Waits,
            Some(origin) => origin,
            None => return Look::Nobody,
        }
    } else {
        Origin::of_main(record)
    };
    let payload = record.payload.as_deref();
    match group.handler_for(&origin.topic, payload) {
        Match::Handler(_) if payload.is_none() => Look::Nobody,
        Match::Handler(handler) if handler.spec.transaction == Transaction::Shared => Look::Shares(handler, origin),
        Match::Handler(_) => Look::Waits,
        Match::None | Match::Unparsable(_) => Look::Nobody,
    }
}

impl Run<'_> {
    /// Decodes one more event, unless it is none that the handler may see.
    fn decode(
        &mut self,
        group: &GroupContext,
        record: &Queued,
        origin: &Origin,
    ) -> Option<(EventId, Option<EventVersion>)> {
        let (decoded, payload) = (self.decoded.as_mut()?, record.payload.as_deref()?);
        let (id, version) = std::panic::catch_unwind(AssertUnwindSafe(|| decoded.push(payload))).ok()?.ok()?;
        if gate(group, id, origin) == Gate::Future {
            let mut keep = vec![true; self.events.len()];
            keep.push(false);
            decoded.retain(&keep);
            return None;
        }
        Some((id, version))
    }

    /// All its events decoded, for an attempt. `None`: a value can't be decoded that could be before.
    pub(super) fn take_decoded(&mut self) -> Option<Box<dyn Decoded>> {
        if let Some(decoded) = self.decoded.take() {
            return Some(decoded);
        }
        let mut decoded = (self.handler.decode.many)();
        for event in &self.events {
            let payload = event.record.payload.as_deref()?;
            std::panic::catch_unwind(AssertUnwindSafe(|| decoded.push(payload))).ok()?.ok()?;
        }
        Some(decoded)
    }

    /// The span of an attempt at all of it, and those of its events.
    pub(super) fn begin_spans(&mut self, group: &GroupContext) -> Span {
        let Self { handler, events, .. } = self;
        let shared = spans::shared(&group.name, handler, events.iter().map(|event| &*event.record));
        if handler.spec.batch.is_none() && !shared.is_disabled() {
            for event in events {
                event.span = spans::event(&group.name, &event.record, event.origin.attempt);
                spans::identified(&event.span, handler, event.id);
                spans::in_transaction(&event.span, &shared);
            }
        }
        shared
    }

    /// What was rolled back is handled again, with a span of its own. Of what is committed each event says its outcome.
    pub(super) fn end_spans(&mut self, shared: &Span, committed: bool) {
        shared.record("idem.outcome", if committed { "done" } else { "again" });
        if !committed {
            self.events.iter_mut().for_each(|event| event.span = Span::none());
        }
    }

    /// Where it begins: what waits, waits there.
    pub(super) fn first(&self) -> Option<&Queued> {
        Some(&self.events.first()?.record)
    }
}
