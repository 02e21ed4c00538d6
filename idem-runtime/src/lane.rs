//! A lane: the work on one partition.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::decide::key_lanes::KeyLanes;
use crate::decide::offsets::Watermark;
use crate::group::GroupContext;
use crate::kafka::record::Record;
use crate::pipeline::{self, Settled};
use crate::stop::{self, Stop, StopHandle};

/// Records between the poll thread and the lane.
pub(crate) const QUEUE: usize = 512;

/// Handle to a running lane.
pub(crate) struct Lane {
    watermark: Arc<Mutex<Watermark>>,
    stop: StopHandle,
    task: JoinHandle<()>,
}

impl Lane {
    /// Starts a lane at an offset; the sender feeds it.
    pub(crate) fn start(group: Arc<GroupContext>, next_offset: i64) -> (Self, mpsc::Sender<Record>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (handle, stop) = stop::channel();
        let watermark = Arc::new(Mutex::new(Watermark::starting_at(next_offset)));
        let task = tokio::spawn(run(group, receiver, Arc::clone(&watermark), stop));
        (Self { watermark, stop: handle, task }, sender)
    }

    /// The position, and the time of the last finished event in milliseconds since the Unix epoch.
    pub(crate) fn position(&self) -> (i64, Option<i64>) {
        let watermark = lock(&self.watermark);
        (watermark.next_offset(), watermark.event_millis())
    }

    /// Lets what runs finish, within the bound; starts nothing more. What does not finish in time
    /// is rolled back.
    pub(crate) async fn drain(&mut self, bound: Duration) {
        self.stop.stop();
        if tokio::time::timeout(bound, &mut self.task).await.is_err() {
            self.abort().await;
        }
    }

    /// Stops at once; what runs is rolled back.
    pub(crate) async fn abort(&mut self) {
        self.task.abort();
        // A finished or cancelled task answers at once; polling it twice would panic.
        if !self.task.is_finished() {
            let _ = (&mut self.task).await;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A panic inside leaves the watermark as it was: it changes in one step per call.
fn lock(watermark: &Mutex<Watermark>) -> std::sync::MutexGuard<'_, Watermark> {
    watermark.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run(
    group: Arc<GroupContext>,
    mut queue: mpsc::Receiver<Record>,
    watermark: Arc<Mutex<Watermark>>,
    stop: Stop,
) {
    let mut keys = KeyLanes::new(group.concurrency);
    // Enough to find events of other keys behind those of a slow one.
    let look_ahead = if group.concurrency == 1 { 1 } else { group.concurrency * 8 };
    let mut running = FuturesUnordered::new();
    loop {
        while let Some((key, record)) = (!stop.is_requested()).then(|| keys.start()).flatten() {
            let (group, stop) = (&*group, &stop);
            running.push(async move {
                let settled = pipeline::settle(group, &record, stop).await;
                (key, record.offset, settled)
            });
        }
        tokio::select! {
            biased;
            Some((key, offset, settled)) = running.next() => match settled {
                Settled::Finished => {
                    lock(&watermark).finish(offset);
                    keys.finish(key);
                }
                // Its key stays taken: nothing may overtake it.
                Settled::Abandoned => {}
            },
            () = stop.requested(), if running.is_empty() => return,
            record = queue.recv(), if keys.len() < look_ahead && !stop.is_requested() => {
                let Some(record) = record else {
                    // The poll thread let go of the partition: only what runs is left to finish.
                    while let Some((_, offset, settled)) = running.next().await {
                        if settled == Settled::Finished {
                            lock(&watermark).finish(offset);
                        }
                    }
                    return;
                };
                if lock(&watermark).deliver(record.offset, record.timestamp_millis) {
                    keys.push(key_hash(record.key.as_deref()), record);
                }
            }
        }
    }
}

/// Records with equal keys, and all records without one, are one lane. Two keys with the same hash
/// only wait for each other.
fn key_hash(key: Option<&[u8]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
