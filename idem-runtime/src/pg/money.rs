//! The record of money calls: `money_call`, and whose calls have which name: `money_handler`.
//!
//! Each function here is one statement and its own commit: a request leaves only after its intent is
//! committed, whatever becomes of the event's transaction.

pub(crate) mod begin;
pub(crate) mod open;
pub(crate) mod record;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, PgPool, Postgres};
use uuid::Uuid;

use super::session::{Session, bounded};
use crate::decide::money::{Doubt, Known, State};

/// Which call of which event.
#[derive(Debug)]
pub(crate) struct CallId<'a> {
    pub event_id: Uuid,
    pub group: &'a str,
    pub operation: &'a str,
}

/// Where a record lies.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
}

/// The event's place on its origin topic, the place it was read from now, and the origin's time.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub origin: Place,
    pub record: Place,
    pub origin_millis: Option<i64>,
    /// The group may have processed the event, and forgotten it with all its calls.
    pub may_be_forgotten: bool,
}

impl Places {
    /// The origin's time, where PostgreSQL can take it as one.
    fn origin_time(&self) -> Option<i64> {
        self.origin_millis.filter(|millis| super::progress::TIMES.contains(millis))
    }
}

/// Records a call as unknown whose requests the database may have lost, so that a person finds it: since
/// the event's own time, for want of a better one.
pub(crate) async fn note_lost(
    pool: &PgPool,
    id: &CallId<'_>,
    generation: u32,
    key: &str,
    body_hash: &[u8],
    places: &Places,
) -> Result<(), sqlx::Error> {
    let query = sqlx::query(
        "INSERT INTO money_call AS row (event_id, consumer_group, operation, generation, key, body_hash, state, attempt, \
                                        created_at, attempted_at, unsure_since, unsure_at) \
         SELECT $1, $2, $3, $4, $5, $6, 'unknown', 0, origin, origin, origin, NULL \
           FROM (SELECT to_timestamp(coalesce($7 / 1000.0, 0)) AS origin) AS times \
         ON CONFLICT (event_id, consumer_group, operation, generation) DO UPDATE \
            SET state = 'unknown', unsure_since = least(row.unsure_since, excluded.unsure_since) \
          WHERE row.state IN ('unknown', 'waiting', 'refused') AND row.resolved_at IS NULL",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(as_count(generation))
    .bind(key)
    .bind(body_hash)
    .bind(places.origin_time());
    execute(pool, query).await.map(drop)
}

/// Writes the intent of one more request with the same key. `false`: somebody else did, or the call
/// is not what it was.
pub(crate) async fn again(pool: &PgPool, id: &CallId<'_>, known: &Known) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(
        "UPDATE money_call SET state = 'unknown', attempt = attempt + 1, attempted_at = now(), \
                unsure_since = coalesce(unsure_since, now()), unsure_at = now() \
          WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 AND attempt = $5 \
            AND state = $6 AND resolved_at IS NULL",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(as_count(known.generation))
    .bind(as_count(known.attempt))
    .bind(known.state.as_str());
    Ok(execute(pool, query).await? == 1)
}

/// Writes the intent of the first request of another generation, unless somebody else did, or decided
/// otherwise of the generation before: then `false`.
pub(crate) async fn next_generation(
    pool: &PgPool,
    id: &CallId<'_>,
    generation: u32,
    key: &str,
    body_hash: &[u8],
) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(
        "INSERT INTO money_call (event_id, consumer_group, operation, generation, key, body_hash, state, attempt) \
         SELECT event_id, consumer_group, operation, $4, $5, $6, 'unknown', 1 FROM money_call \
          WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 - 1 AND state = 'failed' \
            FOR UPDATE \
         ON CONFLICT DO NOTHING",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(as_count(generation))
    .bind(key)
    .bind(body_hash);
    Ok(execute(pool, query).await? == 1)
}

/// Executes a statement as a transaction of its own. Returns how many rows it changed.
async fn execute(pool: &PgPool, query: Query<'_, Postgres, PgArguments>) -> Result<u64, sqlx::Error> {
    let mut session = Session::acquire(pool).await?;
    let done = bounded(query.execute(session.connection())).await;
    session.end(&done);
    Ok(done?.rows_affected())
}

/// What an answer leaves behind.
#[derive(Debug, Clone)]
pub(crate) struct Settlement {
    pub generation: u32,
    /// The request that was answered.
    pub attempt: u32,
    pub state: State,
    pub status: Option<u16>,
    pub doubt: Doubt,
    /// What was in doubt before the request.
    pub unsure_before: Option<(f64, Option<f64>)>,
}

impl Settlement {
    fn status(&self) -> Option<i16> {
        self.status.and_then(|status| i16::try_from(status).ok())
    }
}

/// Settles a request. Only "applied" holds when a later request has been made: it is true for all
/// requests with the key. `false`: the call was settled otherwise meanwhile.
pub(crate) async fn settle(pool: &PgPool, id: &CallId<'_>, settled: &Settlement) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(
        "UPDATE money_call SET state = $6, status = $7, \
                unsure_since = CASE WHEN $8 THEN to_timestamp($9) ELSE unsure_since END, \
                unsure_at = CASE WHEN $10 THEN to_timestamp($11) ELSE unsure_at END \
          WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 \
            AND (($6 = 'applied' AND state = 'applied') \
                 OR (resolved_at IS NULL AND ($6 = 'applied' OR (attempt = $5 AND state = 'unknown'))))",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(as_count(settled.generation))
    .bind(as_count(settled.attempt))
    .bind(settled.state.as_str())
    .bind(settled.status())
    .bind(settled.doubt == Doubt::Before)
    .bind(settled.unsure_before.map(|(since, _)| since))
    .bind(settled.doubt != Doubt::Request)
    .bind(settled.unsure_before.and_then(|(_, at)| at));
    Ok(execute(pool, query).await? == 1)
}

/// Registers the calls of a handler. Returns the group that has their name already, if another does.
pub(crate) async fn register(
    connection: &mut PgConnection,
    topic: &str,
    operation: &str,
    group: &str,
    handler: &str,
) -> Result<Option<String>, sqlx::Error> {
    let owner: String = sqlx::query_scalar(
        "INSERT INTO money_handler AS row (topic, operation, consumer_group, handler) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (topic, operation) DO UPDATE \
            SET handler = CASE WHEN row.consumer_group = excluded.consumer_group THEN excluded.handler ELSE row.handler END \
         RETURNING consumer_group",
    )
    .bind(topic)
    .bind(operation)
    .bind(group)
    .bind(handler)
    .fetch_one(connection)
    .await?;
    Ok((owner != group).then_some(owner))
}

/// How long the server lets a handler's session be inside a transaction, as `(setting, limit)`. The
/// library asks for its own, but a connection pooler between may not pass that on, and a role may have
/// more of them.
pub(crate) async fn session_limits(
    connection: &mut PgConnection,
) -> Result<Vec<(String, Option<Duration>)>, sqlx::Error> {
    let settings: Vec<(String, String)> = sqlx::query_as(
        "SELECT name, setting FROM pg_settings \
          WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout') ORDER BY name",
    )
    .fetch_all(connection)
    .await?;
    let limit = |(name, millis): (String, String)| {
        let millis = millis.parse().ok().filter(|millis| *millis > 0);
        (format!("the server's {name}"), millis.map(Duration::from_millis))
    };
    Ok(settings.into_iter().map(limit).collect())
}

/// Deletes at most `limit` calls that were last asked for longer ago than the window: those whose event
/// is committed, those that surely did nothing, and resolved ones that another key followed. What a person
/// decided decides the event's next attempt, however late it comes, so it stays until that is committed; and
/// so does what is open. Returns how many went.
pub(crate) async fn delete_aged(
    connection: &mut PgConnection,
    window: Duration,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    // The key begins with the event's time, or is without one: the index leads to what may be old.
    let done = sqlx::query(
        "DELETE FROM money_call WHERE (event_id, consumer_group, operation, generation) IN ( \
             SELECT event_id, consumer_group, operation, generation FROM money_call AS aged \
              WHERE (event_id < idem_first_id_of(((now() - $1 * interval '1 second') AT TIME ZONE 'UTC')::date + 1) \
                     OR event_id >= 'ff000000-0000-0000-0000-000000000000') \
                AND attempted_at < now() - $1 * interval '1 second' \
                AND (recorded_at IS NOT NULL OR (state IN ('waiting', 'refused') AND resolved_at IS NULL) \
                     OR (state = 'failed' AND EXISTS ( \
                         SELECT FROM money_call AS later \
                          WHERE later.event_id = aged.event_id AND later.consumer_group = aged.consumer_group \
                            AND later.operation = aged.operation AND later.generation > aged.generation))) \
              LIMIT $2)",
    )
    .bind(window.as_secs_f64())
    .bind(limit)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// How often aged calls are looked for.
const AGING_INTERVAL: Duration = Duration::from_secs(600);
const AGING_CHUNK: i64 = 1_000;

/// Deletes aged calls for as long as the process runs.
pub(crate) async fn keep_aging(pool: PgPool, window: Duration) {
    loop {
        loop {
            let Ok(mut session) = Session::acquire(&pool).await else { break };
            let deleted = bounded(delete_aged(session.connection(), window, AGING_CHUNK)).await;
            session.end(&deleted);
            match deleted {
                Ok(deleted) if deleted >= AGING_CHUNK.unsigned_abs() => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "could not delete aged money calls; trying again later");
                    break;
                }
            }
        }
        tokio::time::sleep(AGING_INTERVAL).await;
    }
}

fn as_count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
