//! Calls that are open, and what a person decides of them.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{CallId, as_count};
use crate::decide::money::State;

/// A call, as an operator sees it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub key: String,
    pub event_id: Uuid,
    pub group: String,
    pub operation: String,
    pub generation: u32,
    pub state: State,
    pub attempts: u32,
    pub status: Option<u16>,
    pub created_millis: i64,
    pub attempted_millis: i64,
    pub is_recorded: bool,
    pub resolved_millis: Option<i64>,
    pub note: Option<String>,
}

type ListedRow =
    (String, Uuid, String, String, i32, String, i32, Option<i16>, i64, i64, bool, Option<i64>, Option<String>);

macro_rules! listed {
    ($rest:literal) => {
        concat!(
            "SELECT key, event_id, consumer_group, operation, generation, state, attempt, status, \
                    (extract(epoch FROM created_at) * 1000)::bigint, (extract(epoch FROM attempted_at) * 1000)::bigint, \
                    recorded_at IS NOT NULL, (extract(epoch FROM resolved_at) * 1000)::bigint, resolved_note \
               FROM money_call ",
            $rest
        )
    };
}

impl From<ListedRow> for Listed {
    fn from(row: ListedRow) -> Self {
        let (key, event_id, group, operation, generation, state, attempts, status, created, attempted, ..) = row;
        let (.., is_recorded, resolved_millis, note) = row;
        Self {
            key,
            event_id,
            group,
            operation,
            generation: generation.unsigned_abs(),
            state: State::parse(&state),
            attempts: attempts.unsigned_abs(),
            status: status.map(i16::unsigned_abs),
            created_millis: created,
            attempted_millis: attempted,
            is_recorded,
            resolved_millis,
            note,
        }
    }
}

/// The calls that somebody has to look at: unknown ones, and applied ones without the event's effects.
pub(crate) async fn open(connection: &mut PgConnection) -> Result<Vec<Listed>, sqlx::Error> {
    let query = sqlx::query_as::<_, ListedRow>(listed!(
        "WHERE state = 'unknown' OR (state = 'applied' AND recorded_at IS NULL AND resolved_at IS NULL) \
         ORDER BY created_at"
    ));
    Ok(query.fetch_all(connection).await?.into_iter().map(Listed::from).collect())
}

/// The calls with a key: one, unless groups on different topics got the same event.
pub(crate) async fn of_key(connection: &mut PgConnection, key: &str) -> Result<Vec<Listed>, sqlx::Error> {
    let query = sqlx::query_as::<_, ListedRow>(listed!("WHERE key = $1 ORDER BY consumer_group"));
    Ok(query.bind(key).fetch_all(connection).await?.into_iter().map(Listed::from).collect())
}

/// What came of an order to resolve a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    Done,
    /// A request left so recently that its answer, or the event's transaction, may be under way.
    MayBeInFlight,
    /// The event's effects are committed with it, and it may have gone by its age since.
    Recorded,
    /// It was resolved as failed before, and a call with another key followed.
    Followed,
}

/// Resolves a call. `failed`: the next attempt has another key.
pub(crate) async fn resolve(
    connection: &mut PgConnection,
    id: &CallId<'_>,
    generation: u32,
    state: State,
    note: &str,
    in_flight: Duration,
) -> Result<Resolution, sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
    // The row is locked, so that no request begins meanwhile, and no event's transaction notes it.
    let locked: Option<(bool, bool)> = sqlx::query_as(
        "SELECT attempted_at > now() - $5 * interval '1 second', recorded_at IS NOT NULL FROM money_call \
          WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 FOR UPDATE",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(as_count(generation))
    .bind(in_flight.as_secs_f64())
    .fetch_optional(&mut *tx)
    .await?;
    let refusal = match locked {
        None | Some((_, true)) => Some(Resolution::Recorded),
        Some((true, false)) => Some(Resolution::MayBeInFlight),
        Some((false, false)) => None,
    };
    if let Some(refusal) = refusal {
        tx.rollback().await?;
        return Ok(refusal);
    }
    // Asked after the lock was given: what held it may have been the next key's intent.
    let done = sqlx::query(
        "UPDATE money_call SET state = $5, resolved_at = now(), resolved_note = $6 \
          WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 \
            AND NOT EXISTS (SELECT FROM money_call AS later WHERE later.event_id = $1 AND later.consumer_group = $2 \
                               AND later.operation = $3 AND later.generation > $4)",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(as_count(generation))
    .bind(state.as_str())
    .bind(note)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(if done.rows_affected() == 1 { Resolution::Done } else { Resolution::Followed })
}
