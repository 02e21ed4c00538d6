//! The circuit of a handler, shared by its lanes; what it decides is in `decide/circuit.rs`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::decide::circuit::{self, Admission, EventKey, Note, THRESHOLD, Verdict};
use crate::health::{Health, Obstacle};

/// One handler's circuit in this process.
pub(crate) struct Circuit {
    handler: &'static str,
    state: Mutex<circuit::Circuit>,
    started: Instant,
    health: Health,
}

impl Circuit {
    pub(crate) fn new(handler: &'static str, health: Health) -> Self {
        Self { handler, state: Mutex::default(), started: Instant::now(), health }
    }

    /// Asks for an event to run. One that may must be held, and noted.
    pub(crate) fn admit(&self, event: &EventKey) -> Admission {
        let now = self.now();
        self.lock().admit(event, now)
    }

    /// Holds an event's place until it is noted. Dropped before, the event was abandoned.
    pub(crate) fn hold<'a>(&'a self, event: &'a EventKey) -> Place<'a> {
        Place { circuit: self, event, noted: false }
    }

    fn note(&self, event: &EventKey, note: Note<'_>) -> Verdict {
        let now = self.now();
        let mut state = self.lock();
        let was_open = state.is_open();
        let verdict = state.note(event, note, now);
        let is_open = state.is_open();
        drop(state);
        if is_open != was_open {
            self.tell(is_open, note);
        }
        verdict
    }

    fn tell(&self, open: bool, note: Note<'_>) {
        let handler = self.handler;
        metrics::gauge!("idem_circuit_open", "handler" => handler).set(if open { 1.0 } else { 0.0 });
        let obstacle = Obstacle::Circuit(handler);
        if let (true, Note::Failed(cause)) = (open, note) {
            tracing::error!(
                handler,
                cause,
                "the circuit opens: {THRESHOLD} events in a row failed for one cause; events wait in place, uncounted"
            );
            self.health.set(obstacle, format!("{handler}: the circuit is open, every event fails with: {cause}"));
        } else {
            tracing::info!(handler, "the circuit closes: events are handled again");
            self.health.clear(&obstacle);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, circuit::Circuit> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of an event that was let through.
pub(crate) struct Place<'a> {
    circuit: &'a Circuit,
    event: &'a EventKey,
    noted: bool,
}

impl Place<'_> {
    /// Notes how the attempt ended.
    pub(crate) fn note(mut self, note: Note<'_>) -> Verdict {
        self.noted = true;
        self.circuit.note(self.event, note)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.noted {
            self.circuit.lock().abandon(self.event);
        }
    }
}
