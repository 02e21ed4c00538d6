//! Recording where the lanes are, and finding out that the database or the ownership changed.

use std::collections::HashMap;

use super::GroupContext;
use super::coordinator::Owned;
use crate::decide::progress::{self, Belief, Verdict};
use crate::kafka::consumer::Partition;
use crate::pg::progress::{self as rows, Write};
use crate::pg::session::on_service;

/// Writes positions by compare-and-set, and notes what the database now holds for certain.
///
/// # Cancel safety
/// Dropped in the middle, the partitions keep what was attempted, and the next comparison clears it up.
pub(super) async fn write(group: &GroupContext, partitions: Vec<(&Partition, &mut Owned)>) -> Result<(), sqlx::Error> {
    let mut moved = Vec::new();
    for (partition, owned) in partitions {
        let (next_offset, event_millis) = owned.lane.position();
        if next_offset != owned.written && owned.attempted.is_none() {
            moved.push((partition, owned, next_offset, event_millis));
        }
    }
    if moved.is_empty() {
        return Ok(());
    }
    let mut writes = Vec::with_capacity(moved.len());
    for (partition, owned, next_offset, event_millis) in &mut moved {
        owned.attempted = Some(*next_offset);
        writes.push(Write {
            partition: (*partition).clone(),
            epoch: owned.epoch,
            server: owned.server.clone(),
            expected: owned.written,
            next_offset: *next_offset,
            // A retry's own time says nothing of the events behind it.
            event_millis: event_millis.filter(|_| !group.is_own_topic(&partition.topic)),
        });
    }
    let name = group.name.clone();
    let confirmed = on_service(&group.pools, move |connection| {
        Box::pin(async move { rows::compare_and_set(connection, &name, &writes).await })
    })
    .await?;
    for (partition, owned, next_offset, _) in moved {
        if confirmed.contains(partition) {
            owned.written = next_offset;
            owned.attempted = None;
        }
    }
    Ok(())
}

/// Reads the rows and judges them. Returns what is not as this member left it.
pub(super) async fn compare(
    group: &GroupContext,
    owned: &mut HashMap<Partition, Owned>,
) -> Result<Vec<(Partition, Verdict)>, sqlx::Error> {
    if owned.is_empty() {
        return Ok(Vec::new());
    }
    let name = group.name.clone();
    let read = on_service(&group.pools, move |connection| Box::pin(async move { rows::read(connection, &name).await }));
    let (server, rows) = read.await?;
    let mut changed = Vec::new();
    for (partition, owned) in owned {
        let belief = Belief { epoch: owned.epoch, written: owned.written, attempted: owned.attempted };
        match progress::judge(belief, rows.get(partition).copied(), server == owned.server) {
            Verdict::Unchanged { written } => {
                owned.written = written;
                owned.attempted = None;
            }
            verdict => changed.push((partition.clone(), verdict)),
        }
    }
    Ok(changed)
}
