//! Events of the outbox that wait, and those that can't be published.

use serde::Serialize;
use uuid::Uuid;

use super::{Ops, OpsError, Timestamp};
use crate::pg::outbox::{self as rows, Release};

/// What waits in the outbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outbox {
    /// Rows that are to be sent; at most 100,000 are counted.
    pub pending: i64,
    /// How long the oldest of them has waited, in seconds.
    pub oldest_seconds: f64,
    /// Whether some process relays, or did until it ended without a goodbye.
    pub relayed: bool,
    /// Events that can't be published, by their numbers.
    pub parked: Vec<Parked>,
}

/// An event that can't be published. Nothing of its payload is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parked {
    /// Its number, for `release`.
    pub seq: i64,
    /// The event.
    pub event_id: Uuid,
    /// The topic it was to go to.
    pub topic: String,
    /// The error code of Kafka, such as `MessageSizeTooLarge`.
    pub reason: String,
    /// Bytes of the payload.
    pub bytes: i64,
    /// When it was published.
    pub created_at: Option<Timestamp>,
    /// When it was parked.
    pub parked_at: Option<Timestamp>,
    /// Later events of its key that wait behind it.
    pub behind: i64,
}

/// What waits, and what is parked.
///
/// # Errors
/// When the database is away, or has no tables.
pub async fn list(ops: &Ops) -> Result<Outbox, OpsError> {
    let (backlog, relayed, parked) = ops
        .database("list the outbox", |connection| {
            Box::pin(async move {
                let backlog = rows::backlog(&mut *connection).await?;
                let relayed = sqlx::query_scalar("SELECT holder IS NOT NULL FROM idem_relay");
                let relayed: bool = relayed.fetch_one(&mut *connection).await?;
                Ok((backlog, relayed, rows::parked(connection).await?))
            })
        })
        .await?;
    let parked = parked.into_iter().map(|row| Parked {
        seq: row.seq,
        event_id: row.event_id,
        topic: row.topic,
        reason: row.reason,
        bytes: row.bytes,
        created_at: Timestamp::of_millis(row.created_millis),
        parked_at: Timestamp::of_millis(row.parked_millis),
        behind: row.behind,
    });
    Ok(Outbox { pending: backlog.pending, oldest_seconds: backlog.oldest_seconds, relayed, parked: parked.collect() })
}

/// What became of parked events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Released {
    /// Rows that are to be sent again, in their old order.
    pub released: u64,
    /// Events that were dropped.
    pub dropped: u64,
}

/// Lets a parked event and those behind it be sent; or with `drop` only those behind it: the event itself is
/// deleted, and nobody will hear of it.
///
/// # Errors
/// When no event with this number is parked, or the database is away.
pub async fn release(ops: &Ops, seq: i64, drop: bool) -> Result<Released, OpsError> {
    let how = if drop { Release::Drop } else { Release::Send };
    let released = ops.database("release a parked event", |connection| Box::pin(rows::release(connection, seq, how)));
    match released.await? {
        Some(released) => Ok(Released { released, dropped: u64::from(drop) }),
        None => Err(OpsError::NotParked { seq }),
    }
}
