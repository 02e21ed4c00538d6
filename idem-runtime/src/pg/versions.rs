//! The versions that a handler has applied: `aggregate_version`.
//!
//! Each handler has versions of its own, known by what it takes: the topic and the event type. Two handlers may number
//! different things, and what one of them has applied must not make the other's event go.

use std::collections::{BTreeSet, HashMap};

use sqlx::PgConnection;

use crate::decide::versions;
use crate::event::EventVersion;
use crate::spec::HandlerSpec;

/// Notes the version, unless the handler has applied it or a later one. `false`: it has. Locks the
/// aggregate's row until the transaction ends.
pub(crate) async fn advance(
    tx: &mut PgConnection,
    handler: &HandlerSpec,
    EventVersion { aggregate, version }: &EventVersion,
) -> Result<bool, sqlx::Error> {
    let advanced = sqlx::query(
        "INSERT INTO aggregate_version AS known (consumer_group, topic, event_type, aggregate, version) \
         VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (consumer_group, topic, event_type, aggregate) DO UPDATE SET version = excluded.version \
          WHERE known.version < excluded.version",
    )
    .bind(handler.group)
    .bind(handler.topic)
    .bind(handler.event_type.unwrap_or_default())
    .bind(aggregate)
    .bind(version)
    .execute(tx)
    .await?;
    Ok(advanced.rows_affected() == 1)
}

/// The same for events that share a transaction, in their order: which of them are stale.
pub(crate) async fn advance_many(
    tx: &mut PgConnection,
    handler: &HandlerSpec,
    events: &[Option<&EventVersion>],
) -> Result<Vec<bool>, sqlx::Error> {
    // Sorted, so that two members lock the rows in one order.
    let aggregates: BTreeSet<&str> = events.iter().flatten().map(|event| event.aggregate.as_str()).collect();
    let aggregates: Vec<&str> = aggregates.into_iter().collect();
    if aggregates.is_empty() {
        return Ok(vec![false; events.len()]);
    }
    // An update that changes nothing locks and returns what was there; a new row has no version yet.
    let before: Vec<(String, Option<i64>)> = sqlx::query_as(
        "INSERT INTO aggregate_version AS known (consumer_group, topic, event_type, aggregate) \
         SELECT $1, $2, $3, aggregate FROM unnest($4::text[]) AS aggregate \
         ON CONFLICT (consumer_group, topic, event_type, aggregate) DO UPDATE SET version = known.version \
         RETURNING aggregate, version",
    )
    .bind(handler.group)
    .bind(handler.topic)
    .bind(handler.event_type.unwrap_or_default())
    .bind(&aggregates)
    .fetch_all(&mut *tx)
    .await?;
    let before: HashMap<String, i64> =
        before.into_iter().filter_map(|(aggregate, version)| Some((aggregate, version?))).collect();
    let mut applied = before.clone();
    let stale = versions::stale(&mut applied, events);
    let (aggregates, versions): (Vec<&str>, Vec<i64>) = applied
        .iter()
        .filter(|(aggregate, version)| before.get(*aggregate) != Some(version))
        .map(|(aggregate, version)| (aggregate.as_str(), *version))
        .unzip();
    sqlx::query(
        "UPDATE aggregate_version AS known SET version = new.version \
           FROM unnest($4::text[], $5::bigint[]) AS new (aggregate, version) \
          WHERE known.consumer_group = $1 AND known.topic = $2 AND known.event_type = $3 \
            AND known.aggregate = new.aggregate",
    )
    .bind(handler.group)
    .bind(handler.topic)
    .bind(handler.event_type.unwrap_or_default())
    .bind(aggregates)
    .bind(versions)
    .execute(tx)
    .await?;
    Ok(stale)
}
