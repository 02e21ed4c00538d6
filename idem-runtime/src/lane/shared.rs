//! A lane whose events share transactions: one run of events after the other, in order.

use std::collections::VecDeque;

use super::Ledger;
use crate::decide::batch_size::BatchSize;
use crate::group::GroupContext;
use crate::kafka::queue::{self, Queued};
use crate::pipeline::{self, Claim, Settled, gather, shared};
use crate::stop::Stop;

/// Records between the poll thread and the lane, at most: two of the largest batches. Bytes decide
/// before that.
pub(super) const QUEUE: usize = 20_000;
/// The most that a lane looks at for one transaction.
const MOST_TAKEN: usize = 10_000;

/// Works until a stop, or until nobody feeds the queue any more and what was taken off it is done.
pub(super) async fn run(
    group: &GroupContext,
    server: &str,
    mut queue: queue::Receiver,
    mut ledger: Ledger,
    stop: &Stop,
) {
    let mut size = BatchSize::default();
    let mut backlog: VecDeque<Queued> = VecDeque::new();
    // So many from the front of the backlog are settled one by one.
    let mut alone = 0;
    let mut released = ledger.brake.subscribe();
    let mut reserved = ledger.reservation.below.subscribe();
    loop {
        if stop.is_requested() {
            return;
        }
        if ledger.is_braked() {
            tokio::select! {
                () = stop.requested() => {}
                _ = released.changed() => {}
            }
            continue;
        }
        // What is there, and never a wait for more.
        if backlog.len() < size.limit(MOST_TAKEN) {
            let mut taken = Vec::new();
            let room = size.limit(MOST_TAKEN) - backlog.len();
            let more = queue.recv_many(&mut taken, room);
            let count = if backlog.is_empty() {
                tokio::select! {
                    () = stop.requested() => return,
                    count = more => count,
                }
            } else {
                tokio::select! {
                    biased;
                    count = more => count,
                    () = std::future::ready(()) => 1,
                }
            };
            // The poll thread let go of the partition: nothing more is begun.
            if count == 0 {
                return;
            }
            backlog.extend(taken.into_iter().filter(|record| ledger.deliver(record)));
            if backlog.is_empty() {
                continue;
            }
        }
        if alone == 0 {
            let next = gather::next(group, &mut backlog, &size);
            alone = next.alone;
            if let Some(run) = next.run {
                let settled = shared::settle(group, server, run, &mut size, stop).await;
                for offset in settled.finished {
                    ledger.finish(Some(offset), None);
                }
                if settled.abandoned {
                    return stop.requested().await;
                }
                alone += settled.alone.len();
                for record in settled.alone.into_iter().rev() {
                    backlog.push_front(record);
                }
            }
        } else if let Some(record) = backlog.pop_front() {
            // Its handler may be one that makes money calls.
            ledger.claim(group, record.offset);
            if record.offset >= *reserved.borrow_and_update() {
                backlog.push_front(record);
                tokio::select! {
                    () = stop.requested() => {}
                    _ = reserved.changed() => {}
                    _ = released.changed() => {}
                }
                continue;
            }
            alone -= 1;
            match pipeline::settle(group, Claim { server, parking: None }, &record, stop).await {
                Settled::Finished(letter) => ledger.finish(Some(record.offset), letter),
                // Nothing may overtake it.
                Settled::Abandoned => return stop.requested().await,
            }
        }
    }
}
