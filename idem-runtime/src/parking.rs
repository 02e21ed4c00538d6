//! `order = "key"`: the parked events of one partition, in the database and in memory.
//!
//! Memory holds keys and offsets only, and changes after the database has: what it says of a key is
//! what the table says, because nobody else changes the rows of an owned partition (`pg/parked.rs`).
//! The lane drives one event of a key at a time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;

use crate::clock;
use crate::decide::parking::{Arrival, Keep, Parked, Place};
use crate::decide::retry;
use crate::group::GroupContext;
use crate::health::Obstacle;
use crate::kafka::record::{Origin, Record};
use crate::pg::parked::{self, Found, New, Owner, Waiting};
use crate::pg::session::on_service;
use crate::pipeline::in_place_backoff;
use crate::stop::Stop;

/// Parked events of one partition. At so many the lane takes no more records, until some are done.
pub(crate) const LIMIT: usize = 100_000;

/// What is parked on one partition that this member owns.
pub(crate) struct Parking {
    group: Arc<GroupContext>,
    owner: Arc<Owner>,
    rows: Mutex<Parked<u64>>,
}

impl Parking {
    /// With the rows that were found when the partition was taken over. `None`: the partition has none
    /// and gets none. Rows that an earlier version of the program left, whose handlers kept the order
    /// of keys, are driven to their end.
    pub(crate) fn new(group: &Arc<GroupContext>, owner: Owner, found: &[Waiting]) -> Option<Self> {
        let is_main = group.topics.contains_key(&*owner.partition.topic);
        if !is_main || (!group.ordered && found.is_empty()) {
            return None;
        }
        // A member whose clock was ahead must not stop a key for as long.
        let tiers = group.all_tiers();
        let latest = clock::unix_millis() + millis(retry::longest_wait(tiers.last().copied().unwrap_or_default()));
        let mut rows = Parked::new(LIMIT);
        for Waiting { offset, key, due_at_millis } in found {
            rows.insert(key_hash(Some(key)), *offset, (*due_at_millis).min(latest));
        }
        let parking = Self { group: Arc::clone(group), owner: Arc::new(owner), rows: Mutex::new(rows) };
        parking.tell(found.len() as f64);
        if parking.is_full() {
            parking.tell_full(true);
        }
        Some(parking)
    }

    /// Whose rows these are.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Where a record that arrives waits when it fails.
    pub(crate) fn place(&self, record: &Record) -> Place {
        if self.group.ordered && record.key.is_some() { Place::Key } else { Place::Topics }
    }

    /// What to do with a record that arrives. One without a key has no order to keep.
    pub(crate) fn arrival(&self, record: &Record) -> Arrival {
        match (self.place(record), record.key.as_deref()) {
            (Place::Key, Some(key)) => self.lock().arrival(key_hash(Some(key)), record.offset),
            _ => Arrival::Handle,
        }
    }

    /// Whether the lane must not take more records.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    /// A key whose head is due; it is the caller's until [`keep`](Self::keep) has changed its row.
    pub(crate) fn take_due(&self) -> Option<u64> {
        self.lock().take_due(clock::unix_millis())
    }

    /// Returns when a head is due.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
    pub(crate) async fn until_due(&self) {
        let due = self.lock().next_due();
        match due {
            Some(due) => tokio::time::sleep(Duration::from_millis(due.saturating_sub(clock::unix_millis()))).await,
            None => std::future::pending().await,
        }
    }

    /// The record of a key that comes next. `None`: there is none, or a stop came first.
    pub(crate) async fn head(&self, key: u64, stop: &Stop) -> Option<Box<(Record, Origin)>> {
        let mut backoff = in_place_backoff();
        loop {
            let offset = self.lock().head(key)?;
            let owner = Arc::clone(&self.owner);
            let read = on_service(&self.group.pools, move |connection| {
                Box::pin(async move { parked::read(connection, &owner, offset).await })
            });
            let reason = match read.await {
                Ok(Found::Row(row)) => {
                    self.go_on();
                    return Some(row);
                }
                Ok(Found::Gone) => {
                    self.change(|rows| rows.remove(key, offset));
                    return None;
                }
                Ok(Found::NotOwner) => self.not_owner(),
                Err(error) => error.to_string(),
            };
            if !self.wait(offset, &reason, backoff.next(), stop).await {
                return None;
            }
        }
    }

    /// Does what is decided for the row of an event, however long it takes. `false`: a stop came first.
    ///
    /// # Cancel safety
    /// Dropped in the middle, the row is changed or not; the next owner finds out.
    pub(crate) async fn keep(&self, record: &Record, origin: &Origin, keep: Keep, stop: &Stop) -> bool {
        let (now, attempt) = (clock::unix_millis(), origin.attempt.saturating_add(1));
        let first_failed = origin.first_failed_at_millis.unwrap_or(now);
        let (key, offset) = (key_hash(record.key.as_deref()), record.offset);
        match keep {
            Keep::Nothing => true,
            Keep::Park(delay) => {
                let due = retry::due_at_millis(now, delay, fastrand::f64());
                self.park(record, attempt, due, Some(first_failed), stop).await
            }
            Keep::Postpone(delay) => {
                let due = retry::due_at_millis(now, delay, fastrand::f64());
                let done = self.persist(offset, stop, move |connection, owner| {
                    Box::pin(
                        async move { parked::postpone(connection, &owner, offset, attempt, due, first_failed).await },
                    )
                });
                done.await && self.change(|rows| rows.postpone(key, offset, due))
            }
            Keep::Remove => {
                let done = self.persist(offset, stop, move |connection, owner| {
                    Box::pin(async move { parked::remove(connection, &owner, offset).await })
                });
                done.await && self.change(|rows| rows.remove(key, offset))
            }
        }
    }

    /// Parks a record behind the rows of its key. `false`: a stop came first.
    pub(crate) async fn follow(&self, record: &Record, stop: &Stop) -> bool {
        self.park(record, 0, clock::unix_millis(), None, stop).await
    }

    async fn park(&self, record: &Record, attempt: u32, due: u64, first_failed: Option<u64>, stop: &Stop) -> bool {
        let Some(key) = &record.key else { return true };
        let row = Arc::new(New {
            offset: record.offset,
            key: key.clone(),
            value: record.payload.clone(),
            headers: record.raw_headers(),
            timestamp_millis: record.timestamp_millis,
            attempt,
            due_at_millis: due,
            first_failed_at_millis: first_failed,
        });
        let done = self.persist(record.offset, stop, |connection, owner| {
            let row = Arc::clone(&row);
            Box::pin(async move { parked::park(connection, &owner, &row).await })
        });
        done.await && self.change(|rows| rows.insert(key_hash(Some(key)), record.offset, due))
    }

    /// Repeats a statement, which may be repeated, until the database has confirmed it.
    async fn persist<W>(&self, offset: i64, stop: &Stop, statement: W) -> bool
    where
        W: for<'c> Fn(&'c mut PgConnection, Arc<Owner>) -> BoxFuture<'c, Result<bool, sqlx::Error>>,
    {
        let mut backoff = in_place_backoff();
        loop {
            let owner = Arc::clone(&self.owner);
            let reason = match on_service(&self.group.pools, |connection| statement(connection, owner)).await {
                Ok(true) => {
                    self.go_on();
                    return true;
                }
                Ok(false) => self.not_owner(),
                Err(error) => error.to_string(),
            };
            if !self.wait(offset, &reason, backoff.next(), stop).await {
                return false;
            }
        }
    }

    /// The coordinator finds out whether it was a rebalance or a failover, and ends this lane.
    fn not_owner(&self) -> String {
        self.group.doubt.notify_one();
        "the partition has another owner, or the database server is another one".to_owned()
    }

    async fn wait(&self, offset: i64, reason: &str, pause: Option<Duration>, stop: &Stop) -> bool {
        let (group, topic, partition) = (&self.group.name, &self.owner.partition.topic, self.owner.partition.number);
        let text = format!("group {group}: {topic}/{partition} waits at offset {offset}: its row: {reason}");
        tracing::debug!(group = &**group, topic = &**topic, partition, offset, reason, "can't change a parked event");
        self.group.health.set(self.waiting(), text);
        stop.sleep(pause.unwrap_or(Duration::from_secs(5))).await
    }

    fn go_on(&self) {
        self.group.health.clear(&self.waiting());
    }

    fn waiting(&self) -> Obstacle {
        Obstacle::Waiting(Arc::clone(&self.group.name), self.owner.partition.clone())
    }

    /// Changes what memory holds, after the database. Always `true`.
    fn change(&self, change: impl FnOnce(&mut Parked<u64>)) -> bool {
        let mut rows = self.lock();
        let (before, was_full) = (rows.len(), rows.is_full());
        change(&mut rows);
        let (after, is_full) = (rows.len(), rows.is_full());
        drop(rows);
        self.tell(after as f64 - before as f64);
        if was_full != is_full {
            self.tell_full(is_full);
        }
        true
    }

    fn tell(&self, more: f64) {
        metrics::gauge!("idem_parked_events", "group" => self.group.name.to_string()).increment(more);
    }

    fn tell_full(&self, full: bool) {
        let (group, topic, partition) = (&self.group.name, &self.owner.partition.topic, self.owner.partition.number);
        let obstacle = Obstacle::Parked(Arc::clone(group), self.owner.partition.clone());
        if full {
            tracing::error!(group = &**group, topic = &**topic, partition, "too many parked events: the lane waits");
            let text = format!("group {group}: {topic}/{partition} takes no more records, {LIMIT} events are parked");
            self.group.health.set(obstacle, text);
        } else {
            tracing::info!(group = &**group, topic = &**topic, partition, "not too many parked events any more");
            self.group.health.clear(&obstacle);
        }
    }

    /// A panic inside leaves the rows as they were or as they are to be.
    fn lock(&self) -> MutexGuard<'_, Parked<u64>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        self.tell(-(self.lock().len() as f64));
        if self.is_full() {
            self.tell_full(false);
        }
    }
}

/// Records with equal keys, and all records without one, are one lane. Two keys with the same hash
/// only wait for each other.
pub(crate) fn key_hash(key: Option<&[u8]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
