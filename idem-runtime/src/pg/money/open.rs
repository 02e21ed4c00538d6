//! Calls that are open, and what a person decides of them.

use std::time::Duration;

use sqlx::PgConnection;
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
    /// A request left so recently that its answer may be under way.
    MayBeInFlight,
    /// The event's effects are committed with it.
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
    // The row is locked, so that no request begins meanwhile.
    let (done, recorded, followed): (bool, bool, bool) = sqlx::query_as(
        "WITH row AS ( \
             SELECT attempted_at > now() - $7 * interval '1 second' AND state = 'unknown' AS in_flight, \
                    recorded_at IS NOT NULL AS recorded, \
                    EXISTS (SELECT FROM money_call AS later WHERE later.event_id = $1 AND later.consumer_group = $2 \
                               AND later.operation = $3 AND later.generation > $4) AS followed \
               FROM money_call WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 \
                FOR UPDATE), \
         resolved AS ( \
             UPDATE money_call SET state = $5, resolved_at = now(), resolved_note = $6 \
              WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 \
                AND EXISTS (SELECT FROM row WHERE NOT in_flight AND NOT recorded AND NOT followed) RETURNING 1) \
         SELECT EXISTS (SELECT FROM resolved), coalesce((SELECT recorded FROM row), false), \
                coalesce((SELECT followed FROM row), false)",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(as_count(generation))
    .bind(state.as_str())
    .bind(note)
    .bind(in_flight.as_secs_f64())
    .fetch_one(connection)
    .await?;
    Ok(match (done, recorded, followed) {
        (true, ..) => Resolution::Done,
        (false, true, _) => Resolution::Recorded,
        (false, false, true) => Resolution::Followed,
        (false, false, false) => Resolution::MayBeInFlight,
    })
}
