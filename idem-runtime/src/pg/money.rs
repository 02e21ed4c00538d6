//! The record of money calls: `money_call`, and whose calls have which name: `money_handler`.
//!
//! Each function is one statement and its own commit: a request leaves only after its intent is
//! committed, whatever becomes of the event's transaction.

pub(crate) mod open;

use std::time::Duration;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, PgPool, Postgres};
use uuid::Uuid;

use super::dedup::TransactionId;
use super::event_session;
use super::session::{Session, bounded};
use crate::decide::money::{Doubt, Known, State, Unsure};

/// Which call of which event.
#[derive(Debug)]
pub(crate) struct CallId<'a> {
    pub event_id: Uuid,
    pub group: &'a str,
    pub operation: &'a str,
}

/// Where a record lies.
#[derive(Debug, Clone)]
pub(crate) struct Place<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
}

/// The event's place on its origin topic, the place it was read from now, and the origin's time.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    pub origin: Place<'a>,
    pub record: Place<'a>,
    pub origin_millis: Option<i64>,
    /// The group may have processed the event, and forgotten it with all its calls.
    pub may_be_forgotten: bool,
}

impl Places<'_> {
    /// The origin's time, where PostgreSQL can take it as one.
    fn origin_time(&self) -> Option<i64> {
        self.origin_millis.filter(|millis| super::progress::TIMES.contains(millis))
    }
}

/// What the beginning of a call finds.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The first request; its intent is written.
    First,
    /// There was one before.
    Found(Found),
    /// There is none, but there may have been one: the database went back over this event, or has
    /// forgotten it; and it is so old that the provider may have forgotten the key. Nothing was written.
    Lost,
    /// Somebody else began it at this moment.
    Raced,
}

/// A call that was asked for before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub known: Known,
    /// The times of [`Known::unsure`], in seconds since the Unix epoch.
    pub unsure: Option<(f64, Option<f64>)>,
}

/// Writes the intent of a call's first request, or reads what is known of an earlier one.
pub(crate) async fn begin(
    pool: &PgPool,
    id: &CallId<'_>,
    key: &str,
    body_hash: &[u8],
    places: &Places<'_>,
    key_ttl: Duration,
) -> Result<Begun, sqlx::Error> {
    type Row = (
        bool,
        bool,
        f64,
        Option<i32>,
        Option<i32>,
        Option<String>,
        Option<bool>,
        Option<bool>,
        Option<f64>,
        Option<f64>,
        Option<bool>,
    );
    let query = sqlx::query_as(
        "WITH mark AS ( \
             SELECT coalesce(to_timestamp($6 / 1000.0) < now() - $7 * interval '1 second', true) AS is_old, \
                    max(reread_at) AS at FROM consumer_progress \
              WHERE consumer_group = $2 \
                AND ((topic = $8 AND partition = $9 AND reread_below > $10) \
                  OR (topic = $11 AND partition = $12 AND reread_below > $13))), \
         known AS ( \
             SELECT generation, attempt, state, resolved_at IS NOT NULL AS resolved, body_hash = $5 AS same_body, \
                    extract(epoch FROM unsure_since)::float8 AS since, extract(epoch FROM unsure_at)::float8 AS at, \
                    is_old AND mark.at IS NOT NULL AND coalesce(resolved_at <= mark.at, true) AS is_lost \
               FROM money_call, mark WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 \
              ORDER BY generation DESC LIMIT 1), \
         lost AS (SELECT is_old AND ($14 OR mark.at IS NOT NULL) AS is_lost FROM mark), \
         inserted AS ( \
             INSERT INTO money_call (event_id, consumer_group, operation, generation, key, body_hash, state, attempt) \
             SELECT $1, $2, $3, 0, $4, $5, 'unknown', 1 \
              WHERE NOT EXISTS (SELECT FROM known) AND NOT (SELECT is_lost FROM lost) \
             ON CONFLICT DO NOTHING RETURNING 1) \
         SELECT EXISTS (SELECT FROM inserted), (SELECT is_lost FROM lost), extract(epoch FROM now())::float8, known.* \
           FROM (SELECT 1) AS always LEFT JOIN known ON true",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(key)
    .bind(body_hash)
    .bind(places.origin_time())
    .bind(key_ttl.as_secs_f64())
    .bind(places.origin.topic)
    .bind(places.origin.partition)
    .bind(places.origin.offset)
    .bind(places.record.topic)
    .bind(places.record.partition)
    .bind(places.record.offset)
    .bind(places.may_be_forgotten);
    let mut session = Session::acquire(pool).await?;
    let row = bounded(query.fetch_one(session.connection())).await;
    session.end(&row);
    let (inserted, is_lost, now, generation, attempt, state, resolved, same_body, since, at, known_lost): Row = row?;
    let (Some(generation), Some(attempt), Some(state)) = (generation, attempt, state) else {
        return Ok(match (inserted, is_lost) {
            (true, _) => Begun::First,
            (false, true) => Begun::Lost,
            (false, false) => Begun::Raced,
        });
    };
    let unsure = since.map(|since| (since, at));
    let age = |then: f64| Duration::try_from_secs_f64(now - then).unwrap_or_default();
    let known = Known {
        generation: generation.unsigned_abs(),
        attempt: attempt.unsigned_abs(),
        state: State::parse(&state),
        resolved: resolved == Some(true),
        same_body: same_body == Some(true),
        unsure: unsure.map(|(first, last)| Unsure { first: age(first), last: last.map(age) }),
        is_lost: known_lost == Some(true),
    };
    Ok(Begun::Found(Found { known, unsure }))
}

/// Records a call as unknown whose requests the database may have lost, so that a person finds it: since
/// the event's own time, for want of a better one.
pub(crate) async fn note_lost(
    pool: &PgPool,
    id: &CallId<'_>,
    generation: u32,
    key: &str,
    body_hash: &[u8],
    places: &Places<'_>,
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
#[derive(Debug)]
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

/// Settles a request. Only "applied" holds when a later request has been made: it is true for all
/// requests with the key. `false`: the call was settled otherwise meanwhile.
pub(crate) async fn settle(pool: &PgPool, id: &CallId<'_>, settled: &Settlement) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(
        "UPDATE money_call SET state = $6, status = $7, \
                unsure_since = CASE WHEN $8 THEN to_timestamp($9) ELSE unsure_since END, \
                unsure_at = CASE WHEN $10 THEN to_timestamp($11) ELSE unsure_at END \
          WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 \
            AND resolved_at IS NULL AND ($6 = 'applied' OR (attempt = $5 AND state = 'unknown'))",
    )
    .bind(id.event_id)
    .bind(id.group)
    .bind(id.operation)
    .bind(as_count(settled.generation))
    .bind(as_count(settled.attempt))
    .bind(settled.state.as_str())
    .bind(settled.status.and_then(|status| i16::try_from(status).ok()))
    .bind(settled.doubt == Doubt::Before)
    .bind(settled.unsure_before.map(|(since, _)| since))
    .bind(settled.doubt != Doubt::Request)
    .bind(settled.unsure_before.and_then(|(_, at)| at));
    Ok(execute(pool, query).await? == 1)
}

/// Notes, in the event's own transaction, that its effects belong to these calls, in the states that the
/// handler saw. `false`: one is not in its state any more. Nothing is noted after the handler has ended that
/// transaction, which is found out later.
///
/// What the handler set in it, a role or another `search_path`, is undone first: the calls have to be found.
pub(crate) async fn record(
    tx: &mut PgConnection,
    transaction: TransactionId,
    event_id: Uuid,
    group: &str,
    seen: &[(String, State)],
) -> Result<bool, sqlx::Error> {
    event_session::undo_names(tx).await?;
    let query = sqlx::query_scalar(
        "WITH noted AS ( \
             UPDATE money_call AS row SET recorded_at = coalesce(row.recorded_at, now()) \
               FROM unnest($3::text[], $4::text[]) AS seen(operation, state) \
              WHERE row.event_id = $1 AND row.consumer_group = $2 AND row.operation = seen.operation \
                AND row.state = seen.state AND pg_current_xact_id_if_assigned()::text::bigint = $5 \
              RETURNING 1) \
         SELECT (SELECT count(*) FROM noted) >= cardinality($3) \
             OR pg_current_xact_id_if_assigned()::text::bigint IS DISTINCT FROM $5",
    )
    .bind(event_id)
    .bind(group)
    .bind(seen.iter().map(|(operation, _)| operation.as_str()).collect::<Vec<_>>())
    .bind(seen.iter().map(|(_, state)| state.as_str()).collect::<Vec<_>>())
    .bind(transaction.get());
    query.fetch_one(tx).await
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
