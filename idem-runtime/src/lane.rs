//! A lane: the work on one partition.

mod shared;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::decide::brake::Brake;
use crate::decide::key_lanes::KeyLanes;
use crate::decide::offsets::Watermark;
use crate::decide::outcome::Reason;
use crate::decide::reservation;
use crate::group::GroupContext;
use crate::kafka::consumer::Partition;
use crate::kafka::queue::{self, Queued, Share};
use crate::parking::{Parking, key_hash};
use crate::pg::progress::Server;
use crate::pipeline::{self, Claim, Settled};
use crate::probe;
use crate::stop::{self, Stop, StopHandle};

/// Records between the poll thread and the lane; how many bytes is decided in `decide/memory.rs`.
const QUEUE: usize = 512;

/// Handle to a running lane.
pub(crate) struct Lane {
    watermark: Arc<Mutex<Watermark>>,
    queued: Arc<Share>,
    brake: Arc<watch::Sender<Option<Reason>>>,
    reservation: Reservation,
    stop: StopHandle,
    ended: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

/// How far a lane may begin events. `decide/reservation.rs` says why.
#[derive(Clone)]
pub(crate) struct Reservation {
    below: Arc<watch::Sender<i64>>,
    /// One past the last event that it has begun, or would begin if it might.
    claimed_below: Arc<AtomicI64>,
    /// Offsets that are reserved ahead; zero where nothing needs to be.
    ahead: i64,
}

impl Reservation {
    fn new(ahead: i64, next_offset: i64) -> Self {
        let below = if ahead == 0 { i64::MAX } else { i64::MIN };
        let claimed_below = Arc::new(AtomicI64::new(next_offset));
        Self { below: Arc::new(watch::Sender::new(below)), claimed_below, ahead }
    }

    /// The lane begins an event, or would. `true`: more is to be reserved.
    fn claim(&self, offset: i64) -> bool {
        if self.ahead == 0 {
            return false;
        }
        self.claimed_below.fetch_max(offset + 1, Ordering::AcqRel);
        self.is_short()
    }

    /// Lets the lane begin events below this offset: whoever takes the partition over can know of them.
    pub(crate) fn raise(&self, offset: i64) {
        self.below.send_if_modified(|below| {
            let is_more = offset > *below;
            *below = offset.max(*below);
            is_more
        });
    }

    /// So many offsets are to be reserved ahead.
    pub(crate) fn ahead(&self) -> i64 {
        self.ahead
    }

    /// Whether most of what is reserved is begun.
    pub(crate) fn is_short(&self) -> bool {
        reservation::is_short(*self.below.borrow(), self.claimed_below(), self.ahead)
    }

    fn claimed_below(&self) -> i64 {
        self.claimed_below.load(Ordering::Acquire)
    }
}

/// Whether a lane works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneState {
    Running,
    /// Nobody feeds it any more, and what it had is finished.
    Ended,
    /// It panicked, which is a bug of the library's.
    Crashed,
}

/// Longest wait for an aborted task: a handler that blocks its thread can't be stopped, and whatever
/// it finishes late moves nothing.
const ABORT_BOUND: Duration = Duration::from_secs(1);

impl Lane {
    /// Starts a lane at an offset; the sender feeds it. `server` is the run of the database server
    /// that the offset was read from: only what it confirms is done. `parking`: where events wait that
    /// keep the order of their keys.
    pub(crate) fn start(
        group: Arc<GroupContext>,
        partition: &Partition,
        next_offset: i64,
        server: Server,
        parking: Option<Parking>,
    ) -> (Self, queue::Sender) {
        let brake = Arc::new(watch::Sender::new(None));
        // Rows that are left of `order = "key"` are driven one at a time.
        let shares = group.shares(&partition.topic) && parking.is_none();
        let reservation = Reservation::new(group.reserve(&partition.topic), next_offset);
        let (sender, receiver) = queue::channel(&group.memory, if shares { shared::QUEUE } else { QUEUE });
        let (handle, stop) = stop::channel();
        let watermark = Arc::new(Mutex::new(Watermark::starting_at(next_offset)));
        let ended = Arc::new(AtomicBool::new(false));
        let ledger = Ledger {
            watermark: Arc::clone(&watermark),
            letters: Brake::new(group.config.dlq_brake),
            brake: Arc::clone(&brake),
            reservation: reservation.clone(),
        };
        let at_end = Arc::clone(&ended);
        let task = tokio::spawn(probe::inherit(async move {
            if shares {
                shared::run(&group, &server, receiver, ledger, &stop).await;
            } else {
                run(&group, &server, parking.as_ref(), receiver, ledger, &stop).await;
            }
            at_end.store(true, Ordering::Release);
        }));
        (Self { watermark, queued: Arc::clone(sender.share()), brake, reservation, stop: handle, ended, task }, sender)
    }

    /// The position, and the time of the last finished event in milliseconds since the Unix epoch.
    pub(crate) fn position(&self) -> (i64, Option<i64>) {
        let watermark = lock(&self.watermark);
        (watermark.next_offset(), watermark.event_millis())
    }

    /// One past the last event that it has begun; where nothing is reserved, that it took from its queue.
    pub(crate) fn begun_below(&self) -> i64 {
        match self.reservation.ahead {
            0 => lock(&self.watermark).delivered_below(),
            _ => self.reservation.claimed_below(),
        }
    }

    /// How far it may begin events.
    pub(crate) fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// Bytes that wait for it in memory.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued.used()
    }

    /// Why its brake is engaged, if it is.
    pub(crate) fn brake(&self) -> Option<Reason> {
        *self.brake.borrow()
    }

    /// Engages the brake, or lets the lane go on.
    pub(crate) fn set_brake(&self, reason: Option<Reason>) {
        self.brake.send_replace(reason);
    }

    /// Whether it still works.
    pub(crate) fn state(&self) -> LaneState {
        match (self.ended.load(Ordering::Acquire), self.task.is_finished()) {
            (true, _) => LaneState::Ended,
            (false, true) => LaneState::Crashed,
            (false, false) => LaneState::Running,
        }
    }

    /// Whether it has nothing to do: neither in its queue nor in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.state() != LaneState::Running || (self.queued.used() == 0 && lock(&self.watermark).is_idle())
    }

    /// Lets what runs finish, within the bound; of what waits below something finished it begins what it can within
    /// `closing`, and nothing else. What does not finish in time is rolled back.
    pub(crate) async fn drain(&mut self, bound: Duration, closing: Duration) {
        self.stop.stop_after(closing);
        if tokio::time::timeout(bound, &mut self.task).await.is_err() {
            self.abort().await;
        }
    }

    /// Stops at once; what runs is rolled back.
    pub(crate) async fn abort(&mut self) {
        self.task.abort();
        // A task that has ended must not be polled again.
        if !self.task.is_finished() && tokio::time::timeout(ABORT_BOUND, &mut self.task).await.is_err() {
            tracing::warn!(
                "a handler blocks its thread and can't be stopped; its connection is closed when it returns"
            );
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

/// What a lane notes of its records: how far it is, and whether everything becomes a dead letter.
struct Ledger {
    watermark: Arc<Mutex<Watermark>>,
    letters: Brake,
    brake: Arc<watch::Sender<Option<Reason>>>,
    reservation: Reservation,
}

impl Ledger {
    /// Notes a record that came. `false`: it came before.
    #[must_use]
    fn deliver(&self, record: &Queued) -> bool {
        lock(&self.watermark).deliver(record.offset, record.timestamp_millis)
    }

    /// Notes that a record is done with; a dead letter says its reason. `None`: it was a parked row.
    fn finish(&mut self, offset: Option<i64>, letter: Option<Reason>) {
        if let Some(offset) = offset {
            lock(&self.watermark).finish(offset);
        }
        if let Some(reason) = self.letters.note(letter) {
            self.brake.send_replace(Some(reason));
        }
    }

    fn finished_below(&self) -> i64 {
        lock(&self.watermark).finished_below()
    }

    /// Notes that an event is begun, or would be, and asks for more when little is reserved.
    fn claim(&self, group: &GroupContext, offset: i64) {
        if self.reservation.claim(offset) {
            group.short.notify_one();
        }
    }

    fn is_braked(&self) -> bool {
        self.brake.borrow().is_some()
    }
}

async fn run(
    group: &GroupContext,
    server: &str,
    parking: Option<&Parking>,
    mut queue: queue::Receiver,
    mut ledger: Ledger,
    stop: &Stop,
) {
    let mut released = ledger.brake.subscribe();
    let mut reserved = ledger.reservation.below.subscribe();
    let mut keys = KeyLanes::new(group.concurrency);
    let look_ahead = group.look_ahead();
    let mut running = FuturesUnordered::new();
    // Parked events among `keys`; few, so that they and new records take turns.
    let mut parked = 0;
    let mut fed = true;
    // The lowest offset that was given up: nothing above it counts before a restart.
    let mut given_up = i64::MAX;
    loop {
        let ending = !fed || stop.is_requested();
        let braked = ledger.is_braked();
        while let Some(key) = (!ending && !braked && parked < group.concurrency).then(|| parking?.take_due()).flatten()
        {
            keys.push(key, Work::Parked);
            parked += 1;
        }
        // In the end only what lies below something finished is begun, because that would come again otherwise, and only
        // while there is time for it to finish too.
        let begun_below = match ending {
            false => *reserved.borrow_and_update(),
            true if stop.leaves_time() => ledger.finished_below().min(given_up),
            true => i64::MIN,
        };
        let may_start = |work: &Work| match work {
            Work::Record(record) => record.offset < begun_below,
            // Its predecessor's reservation says nothing of rows, so its own comes first.
            Work::Parked => !ending && begun_below > i64::MIN,
        };
        while let Some((key, work)) = (!braked).then(|| keys.start(may_start)).flatten() {
            if let Some(offset) = work.offset() {
                ledger.claim(group, offset);
            }
            running.push(async move {
                match (work, parking) {
                    (Work::Record(record), _) => {
                        let settled = pipeline::settle(group, Claim { server, parking }, &record, stop).await;
                        (key, Some(record.offset), settled)
                    }
                    (Work::Parked, Some(parking)) => {
                        (key, None, pipeline::settle_parked(group, server, parking, key, stop).await)
                    }
                    (Work::Parked, None) => (key, None, Settled::Finished(None)),
                }
            });
        }
        // What is left of these waits for the reservation.
        if !ending
            && !braked
            && let Some(offset) = keys.startable().find_map(Work::offset)
        {
            ledger.claim(group, offset);
        }
        if ending && running.is_empty() {
            return;
        }
        let may_take = !ending && parking.is_none_or(|parking| !parking.is_full());
        tokio::select! {
            biased;
            Some((key, offset, settled)) = running.next() => match settled {
                Settled::Finished(letter) => {
                    if offset.is_none() {
                        parked -= 1;
                    }
                    keys.finish(key);
                    ledger.finish(offset, letter);
                }
                // Its key stays taken: nothing may overtake it.
                Settled::Abandoned => given_up = given_up.min(offset.unwrap_or(i64::MAX)),
            },
            () = stop.requested(), if !ending => {}
            Ok(()) = released.changed() => {}
            Ok(()) = reserved.changed() => {}
            () = until_due(parking), if parked < group.concurrency && !ending && !braked => {}
            record = queue.recv(), if keys.len() - parked < look_ahead && may_take => match record {
                Some(record) => {
                    if ledger.deliver(&record) {
                        keys.push(key_hash(record.key.as_deref()), Work::Record(record));
                    }
                }
                // The poll thread let go of the partition.
                None => fed = false,
            }
        }
    }
}

/// What a lane works on.
enum Work {
    Record(Queued),
    /// The parked event of the key that comes next.
    Parked,
}

impl Work {
    fn offset(&self) -> Option<i64> {
        if let Self::Record(record) = self { Some(record.offset) } else { None }
    }
}

/// Returns when a parked event is due.
async fn until_due(parking: Option<&Parking>) {
    match parking {
        Some(parking) => parking.until_due().await,
        None => std::future::pending().await,
    }
}
