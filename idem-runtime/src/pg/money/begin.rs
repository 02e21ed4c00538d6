//! The beginning of calls: their intents, or what is known of earlier requests.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use uuid::Uuid;

use super::Places;
use crate::decide::money::{Known, State, Unsure};
use crate::pg::session::{Session, bounded};

/// A call that is to begin.
#[derive(Debug)]
pub(crate) struct Asked {
    pub event_id: Uuid,
    pub group: Arc<str>,
    pub operation: String,
    pub key: String,
    pub body_hash: Vec<u8>,
    pub places: Places,
}

impl Asked {
    /// Which call of which event it is.
    pub(crate) fn id(&self) -> (Uuid, &str, &str) {
        (self.event_id, &self.group, &self.operation)
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

/// Writes the intents of calls' first requests, or reads what is known of earlier ones, in one commit. The
/// calls are distinct, and sorted, so that two processes that write the same ones wait for each other in
/// one direction. The answers are in their order.
pub(crate) async fn begin(pool: &PgPool, asked: &[&Asked], key_ttl: Duration) -> Result<Vec<Begun>, sqlx::Error> {
    fn column<'a, T>(asked: &[&'a Asked], of: impl Fn(&'a Asked) -> T) -> Vec<T> {
        asked.iter().map(|asked| of(asked)).collect()
    }
    let query = sqlx::query_as(
        "WITH asked AS ( \
             SELECT asked.*, \
                    coalesce(to_timestamp(origin_millis / 1000.0) < now() - $14 * interval '1 second', true) AS is_old, \
                    (SELECT max(reread_at) FROM consumer_progress AS progress \
                      WHERE progress.consumer_group = asked.consumer_group \
                        AND ((topic = origin_topic AND partition = origin_partition AND reread_below > origin_offset) \
                          OR (topic = record_topic AND partition = record_partition AND reread_below > record_offset))) \
                    AS reread_at \
               FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bigint[], $7::text[], \
                           $8::integer[], $9::bigint[], $10::text[], $11::integer[], $12::bigint[], $13::boolean[]) \
                    WITH ORDINALITY AS asked (event_id, consumer_group, operation, key, body_hash, origin_millis, \
                         origin_topic, origin_partition, origin_offset, record_topic, record_partition, record_offset, \
                         may_be_forgotten, n)), \
         known AS ( \
             SELECT n, generation, attempt, state, resolved_at IS NOT NULL AS resolved, \
                    row.body_hash = asked.body_hash AS same_body, \
                    extract(epoch FROM unsure_since)::float8 AS since, extract(epoch FROM unsure_at)::float8 AS at, \
                    is_old AND reread_at IS NOT NULL AND coalesce(resolved_at <= reread_at, true) AS is_lost \
               FROM asked CROSS JOIN LATERAL ( \
                    SELECT * FROM money_call AS call \
                     WHERE call.event_id = asked.event_id AND call.consumer_group = asked.consumer_group \
                       AND call.operation = asked.operation \
                     ORDER BY generation DESC LIMIT 1) AS row), \
         judged AS (SELECT *, is_old AND (may_be_forgotten OR reread_at IS NOT NULL) AS is_lost FROM asked), \
         inserted AS ( \
             INSERT INTO money_call (event_id, consumer_group, operation, generation, key, body_hash, state, attempt) \
             SELECT event_id, consumer_group, operation, 0, key, body_hash, 'unknown', 1 FROM judged \
              WHERE NOT is_lost AND NOT EXISTS (SELECT FROM known WHERE known.n = judged.n) ORDER BY n \
             ON CONFLICT DO NOTHING RETURNING event_id, consumer_group, operation) \
         SELECT inserted.event_id IS NOT NULL, judged.is_lost, extract(epoch FROM now())::float8, \
                generation, attempt, state, resolved, same_body, since, at, known.is_lost \
           FROM judged LEFT JOIN known USING (n) LEFT JOIN inserted USING (event_id, consumer_group, operation) \
          ORDER BY n",
    )
    .bind(column(asked, |asked| asked.event_id))
    .bind(column(asked, |asked| &*asked.group))
    .bind(column(asked, |asked| &*asked.operation))
    .bind(column(asked, |asked| &*asked.key))
    .bind(column(asked, |asked| &*asked.body_hash))
    .bind(column(asked, |asked| asked.places.origin_time()))
    .bind(column(asked, |asked| &*asked.places.origin.topic))
    .bind(column(asked, |asked| asked.places.origin.partition))
    .bind(column(asked, |asked| asked.places.origin.offset))
    .bind(column(asked, |asked| &*asked.places.record.topic))
    .bind(column(asked, |asked| asked.places.record.partition))
    .bind(column(asked, |asked| asked.places.record.offset))
    .bind(column(asked, |asked| asked.places.may_be_forgotten))
    .bind(key_ttl.as_secs_f64());
    let mut session = Session::acquire(pool).await?;
    let rows = bounded(query.fetch_all(session.connection())).await;
    session.end(&rows);
    Ok(rows?.into_iter().map(begun).collect())
}

fn begun(row: Row) -> Begun {
    let (inserted, is_lost, now, generation, attempt, state, resolved, same_body, since, at, known_lost) = row;
    let (Some(generation), Some(attempt), Some(state)) = (generation, attempt, state) else {
        return match (inserted, is_lost) {
            (true, _) => Begun::First,
            (false, true) => Begun::Lost,
            (false, false) => Begun::Raced,
        };
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
    Begun::Found(Found { known, unsure })
}
