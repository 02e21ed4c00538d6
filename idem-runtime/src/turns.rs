//! Shared transactions of a group take turns after a deadlock; when they do is in `decide/turns.rs`.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::decide::turns::{self, Deadlock};

/// The turns of one group in this process.
pub(crate) struct Turns {
    state: Mutex<turns::Turns>,
    // Held by each transaction; while turns are taken, by one alone. So the first turn begins when
    // those that began before have ended.
    transactions: RwLock<()>,
    started: Instant,
}

/// The right to run one shared transaction.
#[must_use]
pub(crate) enum Turn<'a> {
    Among(#[allow(dead_code, reason = "held")] RwLockReadGuard<'a, ()>),
    Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>),
}

impl Default for Turns {
    fn default() -> Self {
        Self { state: Mutex::default(), transactions: RwLock::new(()), started: Instant::now() }
    }
}

impl Turns {
    /// Waits for a turn, if turns are taken.
    pub(crate) async fn wait(&self) -> Turn<'_> {
        if self.lock().are_taken(self.now()) {
            Turn::Alone(self.transactions.write().await)
        } else {
            Turn::Among(self.transactions.read().await)
        }
    }

    /// Notes a deadlock.
    pub(crate) fn deadlock(&self) -> Deadlock {
        let now = self.now();
        self.lock().deadlock(now)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, turns::Turns> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
