//! What a handler publishes, until its transaction is committed.

use std::collections::HashMap;

use super::Outgoing;
use super::error::Unpublishable;
use crate::decide::derived_id::{self, Parent, Published};
use crate::event::EventId;
use crate::handler::Delivered;
use crate::pg::outbox::Row;
use crate::telemetry::spans;

/// The rows of one transaction. They are written with its commit: in one statement for all events that share
/// it, and without a round trip of their own.
#[derive(Default)]
pub(crate) struct Buffer<'c> {
    parents: Parents<'c>,
    rows: Vec<Row>,
    /// How many were derived that are equal in all but their ordinal, by the first one's id.
    equals: HashMap<EventId, u32>,
}

/// The events that a handler is called for.
#[derive(Default)]
pub(crate) enum Parents<'c> {
    #[default]
    None,
    One(Handled<'c>),
    /// Of a handler with `batch`, by their ids.
    Batch(HashMap<EventId, Handled<'c>>),
}

/// One of them.
#[derive(Clone, Copy)]
pub(crate) struct Handled<'c> {
    pub id: EventId,
    pub group: &'c str,
    pub handler: &'c str,
    pub window_millis: u64,
    pub delivered: Delivered<'c>,
}

/// What an event that is published for another one is told apart by.
#[derive(Debug, Clone, Copy)]
pub(super) struct What<'a> {
    pub topic: &'a str,
    pub key: &'a str,
    pub event_type: Option<&'a str>,
}

impl<'c> Buffer<'c> {
    /// The handler is called for these from now on.
    pub(crate) fn called_for(&mut self, parents: Parents<'c>) {
        self.parents = parents;
    }

    /// What was published.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn parent(&self, id: Option<EventId>) -> Result<Handled<'c>, Unpublishable> {
        match (&self.parents, id) {
            (Parents::One(handled), None) => Ok(*handled),
            (Parents::One(handled), Some(id)) if handled.id == id => Ok(*handled),
            (Parents::Batch(all), Some(id)) => all.get(&id).copied().ok_or(Unpublishable::AnotherParent),
            (Parents::Batch(_) | Parents::None, None) => Err(Unpublishable::NoParent),
            (Parents::One(_) | Parents::None, Some(_)) => Err(Unpublishable::AnotherParent),
        }
    }
}

impl Outgoing for Buffer<'_> {
    fn id_for(&mut self, parent: Option<EventId>, what: What<'_>) -> Result<EventId, Unpublishable> {
        let Handled { id, group, handler, window_millis, delivered } = self.parent(parent)?;
        let What { topic, key, event_type } = what;
        let replayed_millis = delivered.origin.replay.map(|replay| replay.at_millis);
        let parent = Parent { id, record_millis: delivered.origin.timestamp_millis, replayed_millis };
        let derive = |ordinal| {
            let published = Published { group, handler, topic, key, event_type, ordinal };
            derived_id::derive(parent, window_millis, published)
        };
        // Without any time to give it, a fresh one is better than none.
        let Some(first) = derive(0) else { return Ok(EventId::now()) };
        let ordinal = self.equals.entry(first).or_insert(0);
        let id = if *ordinal == 0 { Some(first) } else { derive(*ordinal) };
        *ordinal += 1;
        Ok(id.unwrap_or(first))
    }

    fn push(&mut self, parent: Option<EventId>, mut row: Row) {
        if let Ok(handled) = self.parent(parent) {
            let record = handled.delivered.record;
            super::continue_trace(&mut row, || match &self.parents {
                Parents::Batch(_) => spans::outgoing_from_batch(record),
                Parents::One(_) | Parents::None => spans::outgoing(record),
            });
        }
        self.rows.push(row);
    }
}
