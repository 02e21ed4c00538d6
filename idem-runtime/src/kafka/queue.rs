//! The queue between the poll thread and a lane, bounded by records and by bytes.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::record::Record;
use crate::decide::memory;

/// What a record costs besides its bytes: itself, its entry in the watermark, the allocator's own.
const OVERHEAD: usize = 256;

/// What the queues of a process hold together. Other parts of `IDEM_MEMORY` are librdkafka's.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: usize,
    used: AtomicUsize,
}

impl Memory {
    /// Room for this many bytes.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }
}

/// What one queue and the records taken off it hold.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<Memory>,
    used: AtomicUsize,
}

impl Share {
    /// Bytes in the queue, or taken off it and not finished.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// A queue of at most so many records.
pub(crate) fn channel(memory: &Arc<Memory>, records: usize) -> (Sender, Receiver) {
    let share = Arc::new(Share { memory: Arc::clone(memory), used: AtomicUsize::new(0) });
    let (sender, receiver) = mpsc::channel(records);
    (Sender { sender, share }, receiver)
}

/// The lane's end.
pub(crate) type Receiver = mpsc::Receiver<Queued>;

/// The poll thread's end.
pub(crate) struct Sender {
    sender: mpsc::Sender<Queued>,
    share: Arc<Share>,
}

impl Sender {
    /// Puts a record into the queue. Only one thread does so; another group's may, at the worst, take
    /// the last room at the same moment.
    pub(crate) fn try_send(&self, record: Record) -> Result<(), TrySendError<Record>> {
        let Share { memory, used } = &*self.share;
        let size = record.size() + OVERHEAD;
        let (lane, all) = (used.load(Ordering::Relaxed), memory.used.load(Ordering::Relaxed));
        if !memory::has_room(lane, all, size, memory.limit) {
            return Err(TrySendError::Full(record));
        }
        used.fetch_add(size, Ordering::Relaxed);
        memory.used.fetch_add(size, Ordering::Relaxed);
        let queued = Queued { record, _charge: Charge { size, share: Arc::clone(&self.share) } };
        self.sender.try_send(queued).map_err(|refused| match refused {
            TrySendError::Full(queued) => TrySendError::Full(queued.record),
            TrySendError::Closed(queued) => TrySendError::Closed(queued.record),
        })
    }

    /// Whether half of what it held when it was full is gone, so that a partition is not paused and
    /// resumed for every record. `full`: the bytes it held.
    pub(crate) fn is_half_empty(&self, full: usize) -> bool {
        self.sender.capacity() >= self.sender.max_capacity() / 2 && self.share.used() <= full / 2
    }

    /// What it holds.
    pub(crate) fn share(&self) -> &Arc<Share> {
        &self.share
    }
}

/// A record that counts as long as it is kept.
#[derive(Debug)]
pub(crate) struct Queued {
    record: Record,
    _charge: Charge,
}

impl Deref for Queued {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

#[derive(Debug)]
struct Charge {
    size: usize,
    share: Arc<Share>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.share.used.fetch_sub(self.size, Ordering::Relaxed);
        self.share.memory.used.fetch_sub(self.size, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: usize) -> Record {
        Record {
            topic: "orders".into(),
            partition: 0,
            offset: 0,
            timestamp_millis: None,
            key: None,
            payload: Some(vec![0; bytes]),
            headers: None,
        }
    }

    #[test]
    fn records_count_until_they_are_dropped() {
        let memory = Memory::new(4 * 1024 * 1024);
        let (sender, mut receiver) = channel(&memory, 10_000);
        let mut sent = 0;
        while sender.try_send(record(10_000)).is_ok() {
            sent += 1;
        }
        let full = sender.share().used();
        assert!(full <= 1024 * 1024 && full + 2 * 10_256 > 1024 * 1024, "a quarter of the memory, not {full}");
        let (other, _other_receiver) = channel(&memory, 10);
        assert!(other.try_send(record(10_000)).is_ok(), "there is room for others");

        let taken: Vec<Queued> = (0..sent).map(|_| receiver.try_recv().unwrap()).collect();
        assert!(sender.try_send(record(10_000)).is_err() && !sender.is_half_empty(full), "they are still kept");
        drop(taken);
        assert_eq!(sender.share().used(), 0);
        assert!(sender.is_half_empty(full));
        assert!(sender.try_send(record(100_000_000)).is_ok(), "one record may be larger than the memory");
    }

    #[test]
    fn a_refused_record_does_not_count() {
        let memory = Memory::new(4 * 1024 * 1024);
        let (sender, receiver) = channel(&memory, 1);
        assert!(sender.try_send(record(1)).is_ok());
        let used = sender.share().used();
        assert!(matches!(sender.try_send(record(1)), Err(TrySendError::Full(_))));
        assert_eq!(sender.share().used(), used);
        drop(receiver);
        assert!(matches!(sender.try_send(record(1)), Err(TrySendError::Closed(_))));
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }
}
