//! Letting go of what the database keeps for a group that is not coming back.

use rdkafka::error::KafkaError;
use serde::Serialize;
use sqlx::{Connection, PgConnection};

use super::groups::refused;
use super::{Ops, OpsError};
use crate::kafka::consumer::Partition;

/// What [`forget`] let go of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// The group.
    pub group: String,
    /// Positions of partitions that were deleted. They held back the emptying of the dedup table.
    pub positions: u64,
    /// Parked events that were deleted: they will not be handled.
    pub parked: u64,
    /// Brakes that were deleted.
    pub brakes: u64,
    /// Names of money calls that other groups may have now. What is known of the calls stays.
    pub money_names: u64,
}

/// Forgets a group without members: its positions, parked events, brakes and names of money calls. Its days of the dedup table
/// are not kept for it any more.
///
/// Its horizon stays, and so do its rows in the window: should the group run again after all, it begins
/// as a group whose positions were lost, and what it may have processed before is a duplicate or
/// `expired`, never processed a second time in silence.
///
/// # Errors
/// When the group has members, nobody knows it, or a server is away.
pub async fn forget(ops: &Ops, group: &str) -> Result<Forgotten, OpsError> {
    refuse_while_running(ops, group).await?;
    let name = group.to_owned();
    let [positions, parked, brakes, money_names] = ops
        .database("forget the group", move |connection| Box::pin(async move { delete(connection, &name).await }))
        .await?;
    if positions + parked + brakes + money_names == 0 {
        return Err(OpsError::NoGroup { group: group.to_owned() });
    }
    Ok(Forgotten { group: group.to_owned(), positions, parked, brakes, money_names })
}

/// What each table keeps for the group; one line for each.
async fn delete(connection: &mut PgConnection, group: &str) -> Result<[u64; 4], sqlx::Error> {
    let mut tx = connection.begin().await?;
    let mut deleted = [0; 4];
    for (deleted, statement) in deleted.iter_mut().zip([
        "DELETE FROM consumer_progress WHERE consumer_group = $1",
        "DELETE FROM parked_event WHERE consumer_group = $1",
        "DELETE FROM lane_brake WHERE consumer_group = $1",
        "DELETE FROM money_handler WHERE consumer_group = $1",
    ]) {
        *deleted = sqlx::query(statement).bind(group).execute(&mut *tx).await?.rows_affected();
    }
    tx.commit().await?;
    Ok(deleted)
}

/// The broker takes a commit from outside only while a group has no members: its own offsets are
/// committed to it once more.
async fn refuse_while_running(ops: &Ops, group: &str) -> Result<(), OpsError> {
    let observer = ops.observer(group);
    let cluster = observer.partitions().await.map_err(OpsError::kafka("list its topics"))?;
    let asked = cluster.into_keys().filter(|partition| !partition.topic.starts_with("__")).collect();
    let committed = observer.committed(asked).await.map_err(OpsError::kafka("tell the group's offsets"))?;
    if committed.is_empty() {
        return Ok(());
    }
    let same =
        committed.into_iter().map(|(partition, (offset, metadata)): (Partition, _)| (partition, offset, metadata));
    observer.commit(same.collect()).await.map_err(|error: KafkaError| refused(group, error))
}
