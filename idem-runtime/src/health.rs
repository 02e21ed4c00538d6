//! Whether the process does its work, and if not, why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::kafka::consumer::Partition;

/// What is in the way, asked for by a readiness probe.
///
/// Given by [`Builder::health`](crate::Builder::health) before the run.
///
/// ```no_run
/// # async fn example() -> Result<(), idem_runtime::RunError> {
/// let builder = idem_runtime::builder();
/// let health = builder.health();
/// tokio::spawn(async move {
///     // serve `health.reasons()` to the probe: ready while it is empty
///     drop(health.reasons());
/// });
/// builder.run().await
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Health {
    reasons: Arc<Mutex<BTreeMap<Obstacle, String>>>,
}

/// What can be in the way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Obstacle {
    /// The run has not begun to consume, or ends.
    Start,
    /// The group has not said which partitions this member has.
    Assignment(Arc<str>),
    /// The broker does not answer a group.
    Broker(Arc<str>),
    /// A group can't read or record its position.
    Position(Arc<str>),
    /// An event of a partition waits for the database or the broker.
    Waiting(Arc<str>, Partition),
    /// The circuit of a handler is open.
    Circuit(&'static str),
    /// A lane was stopped by its brake.
    Brake(Arc<str>, Partition),
    /// Too many events of a partition are parked.
    Parked(Arc<str>, Partition),
    /// A partition's position does not move although there is work.
    Stalled(Arc<str>, Partition),
    /// Events wait in the outbox for too long.
    Outbox,
    /// This process can't relay the outbox.
    Relay,
}

impl Health {
    /// Why the process is not ready, one sentence each; empty: it is. Names handlers, topics and
    /// partitions, nothing of a payload.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        self.lock().values().cloned().collect()
    }

    /// Whether nothing is in the way.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether it is in the way.
    pub(crate) fn has(&self, obstacle: &Obstacle) -> bool {
        self.lock().contains_key(obstacle)
    }

    /// Whether it was not in the way before.
    pub(crate) fn set(&self, obstacle: Obstacle, reason: String) -> bool {
        let mut reasons = self.lock();
        let is_new = reasons.insert(obstacle, reason).is_none();
        metrics::gauge!("idem_ready").set(0.0);
        is_new
    }

    /// Whether it was in the way.
    pub(crate) fn clear(&self, obstacle: &Obstacle) -> bool {
        let mut reasons = self.lock();
        let was_there = reasons.remove(obstacle).is_some();
        if was_there && reasons.is_empty() {
            metrics::gauge!("idem_ready").set(1.0);
        }
        was_there
    }

    /// Forgets what is in the way of one partition, when this member lets go of it.
    pub(crate) fn forget_partition(&self, group: &Arc<str>, partition: &Partition) {
        for of in [Obstacle::Waiting, Obstacle::Brake, Obstacle::Parked, Obstacle::Stalled] {
            self.clear(&of(Arc::clone(group), partition.clone()));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Obstacle, String>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("reasons", &self.reasons()).finish()
    }
}
