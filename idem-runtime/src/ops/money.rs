//! Money calls that somebody has to look at, and what is decided of them.

use serde::Serialize;
use uuid::Uuid;

use super::{Ops, OpsError, Timestamp};
use crate::decide::money::{IN_FLIGHT, State};
use crate::pg::money::CallId;
use crate::pg::money::open::{self as rows, Listed, Resolution};

/// Why a call is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Open {
    /// A request left, and whether it was carried out is not known. One that left moments ago may just be
    /// waiting for its answer.
    Unknown,
    /// It was carried out, but the event's effects are not committed.
    Unrecorded,
}

/// A money call. Nothing of its body or its answer is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Call {
    /// Its key, without quotes.
    pub key: String,
    /// The event.
    pub event_id: Uuid,
    /// The group.
    pub group: String,
    /// The name of the call; empty for an unnamed one.
    pub operation: String,
    /// How often it was resolved as failed before.
    pub generation: u32,
    /// `unknown`, `waiting`, `applied`, `refused` or `failed`.
    pub state: String,
    /// Requests with this key that are known of.
    pub attempts: u32,
    /// The provider's last HTTP status.
    pub status: Option<u16>,
    /// When the first request left; of a call that only a database that went back may have lost, without
    /// attempts, the event's time.
    pub first_at: Option<Timestamp>,
    /// When the last request left.
    pub last_at: Option<Timestamp>,
    /// Whether the event's effects are committed with it.
    pub recorded: bool,
    /// When somebody resolved it.
    pub resolved_at: Option<Timestamp>,
    /// What they noted.
    pub note: Option<String>,
}

impl From<Listed> for Call {
    fn from(row: Listed) -> Self {
        Self {
            key: row.key,
            event_id: row.event_id,
            group: row.group,
            operation: row.operation,
            generation: row.generation,
            state: row.state.as_str().to_owned(),
            attempts: row.attempts,
            status: row.status,
            first_at: Timestamp::of_millis(row.created_millis),
            last_at: Timestamp::of_millis(row.attempted_millis),
            recorded: row.is_recorded,
            resolved_at: row.resolved_millis.and_then(Timestamp::of_millis),
            note: row.note,
        }
    }
}

/// The calls that somebody has to look at, the oldest first.
///
/// # Errors
/// When the database is away, or has no tables.
pub async fn list(ops: &Ops, only: Option<Open>) -> Result<Vec<Call>, OpsError> {
    let rows = ops.database("list the money calls", |connection| Box::pin(rows::open(connection))).await?;
    let is_wanted = |row: &Listed| match only {
        None => true,
        Some(Open::Unknown) => row.state == State::Unknown,
        Some(Open::Unrecorded) => row.state == State::Applied,
    };
    Ok(rows.into_iter().filter(is_wanted).map(Call::from).collect())
}

/// What a person found out about a call, at the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// It was carried out: the next attempt at the event gets `Charge::AlreadyProcessed`, and nothing leaves.
    Applied,
    /// It was not carried out, or was undone: the next attempt leaves with another key.
    Failed,
}

/// Resolves the call with this key. The event itself is as it was: replay it if it is a dead letter.
///
/// # Errors
/// When there is no such call, when a request left less than a minute ago, whatever became of it, when the event's effects are
/// committed or another key followed already, or when the database is away.
pub async fn resolve(ops: &Ops, key: &str, decision: Decision, note: &str) -> Result<Call, OpsError> {
    let (wanted, text) = (key.to_owned(), note.to_owned());
    let state = match decision {
        Decision::Applied => State::Applied,
        Decision::Failed => State::Failed,
    };
    let resolved = ops.database("resolve a money call", |connection| {
        Box::pin(async move {
            let calls = rows::of_key(connection, &wanted).await?;
            let [call] = &calls[..] else { return Ok(Err(calls.len())) };
            let id = CallId { event_id: call.event_id, group: &call.group, operation: &call.operation };
            let resolution = rows::resolve(connection, &id, call.generation, state, &text, IN_FLIGHT).await?;
            Ok(Ok((resolution, rows::of_key(connection, &wanted).await?)))
        })
    });
    let key = || key.to_owned();
    match resolved.await? {
        Ok((Resolution::Done, calls)) => {
            calls.into_iter().next().map(Call::from).ok_or_else(|| OpsError::NoCall { key: key() })
        }
        Ok((Resolution::MayBeInFlight, _)) => Err(OpsError::CallOpen {
            key: key(),
            why: "a request left less than a minute ago: wait for its answer, and for its event",
        }),
        Ok((Resolution::Recorded, _)) => Err(OpsError::CallOpen {
            key: key(),
            why: "the event's effects are committed, so no attempt will follow: correct it at the provider",
        }),
        Ok((Resolution::Followed, _)) => Err(OpsError::CallOpen {
            key: key(),
            why: "it was resolved as failed before, and a call with another key followed: resolve that one",
        }),
        Err(0) => Err(OpsError::NoCall { key: key() }),
        Err(_) => Err(OpsError::CallOpen {
            key: key(),
            why: "more than one group made a call with it: give their handlers an `operation`",
        }),
    }
}
