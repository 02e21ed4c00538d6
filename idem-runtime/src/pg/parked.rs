//! Events that wait in the order of their keys: `parked_event`.
//!
//! Only the owner of a partition changes its rows: every change holds the partition's row of
//! `consumer_progress` with this member's epoch until it is committed. Taking a partition over raises
//! the epoch, so it waits for a change in progress and sees it, and a former owner changes nothing.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::PgConnection;

use super::progress::Server;
use crate::handler::RawHeader;
use crate::kafka::consumer::Partition;
use crate::kafka::headers;
use crate::kafka::record::{Origin, Record};

/// Who changes rows, and of which partition.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub group: Arc<str>,
    pub partition: Partition,
    pub epoch: i64,
    pub server: Server,
}

/// A statement of an owner, whose five first parameters are of [`Owner`].
macro_rules! of_owner {
    ($lock:literal, $rest:literal) => {
        concat!(
            "WITH owner AS (SELECT 1 FROM consumer_progress \
               WHERE consumer_group = $1 AND topic = $2 AND partition = $3 AND epoch = $4 \
                 AND extract(epoch FROM pg_postmaster_start_time())::text = $5 ",
            $lock,
            ") ",
            $rest
        )
    };
}

macro_rules! bind_owner {
    ($query:expr, $owner:expr) => {
        $query
            .bind(&*$owner.group)
            .bind(&*$owner.partition.topic)
            .bind($owner.partition.number)
            .bind($owner.epoch)
            .bind(&*$owner.server)
    };
}

/// A new row.
#[derive(Debug)]
pub(crate) struct New {
    pub offset: i64,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<RawHeader>,
    pub timestamp_millis: Option<i64>,
    pub attempt: u32,
    pub due_at_millis: u64,
    pub first_failed_at_millis: Option<u64>,
}

/// Inserts a row; one that is there stays as it is. `false`: another member owns the partition, or
/// this is another run of the server.
pub(crate) async fn park(connection: &mut PgConnection, owner: &Owner, row: &New) -> Result<bool, sqlx::Error> {
    let query = sqlx::query_scalar(of_owner!(
        "FOR SHARE",
        ", parked AS ( \
             INSERT INTO parked_event (consumer_group, topic, partition, record_offset, key, value, header_names, \
                    header_values, timestamp_millis, attempt, due_at, first_failed_at) \
             SELECT $1, $2, $3, $6, $7, $8, $9, $10, $11, $12, \
                    to_timestamp($13 / 1000.0), to_timestamp($14 / 1000.0) FROM owner \
             ON CONFLICT DO NOTHING) \
         SELECT EXISTS (SELECT FROM owner)"
    ));
    bind_owner!(query, owner)
        .bind(row.offset)
        .bind(&*row.key)
        .bind(row.value.as_deref())
        .bind(row.headers.iter().map(|(name, _)| &**name).collect::<Vec<&[u8]>>())
        .bind(row.headers.iter().map(|(_, value)| value.as_deref()).collect::<Vec<Option<&[u8]>>>())
        .bind(row.timestamp_millis)
        .bind(as_count(row.attempt))
        .bind(as_millis(row.due_at_millis))
        .bind(row.first_failed_at_millis.map(as_millis))
        .fetch_one(connection)
        .await
}

/// Lets a row wait until another time. `false`: as for [`park`].
pub(crate) async fn postpone(
    connection: &mut PgConnection,
    owner: &Owner,
    offset: i64,
    attempt: u32,
    due_at_millis: u64,
    first_failed_at_millis: u64,
) -> Result<bool, sqlx::Error> {
    let query = sqlx::query_scalar(of_owner!(
        "FOR SHARE",
        ", postponed AS ( \
             UPDATE parked_event SET attempt = $7, due_at = to_timestamp($8 / 1000.0), \
                    first_failed_at = to_timestamp($9 / 1000.0) \
              WHERE consumer_group = $1 AND topic = $2 AND partition = $3 AND record_offset = $6 \
                AND EXISTS (SELECT FROM owner)) \
         SELECT EXISTS (SELECT FROM owner)"
    ));
    bind_owner!(query, owner)
        .bind(offset)
        .bind(as_count(attempt))
        .bind(as_millis(due_at_millis))
        .bind(as_millis(first_failed_at_millis))
        .fetch_one(connection)
        .await
}

/// Deletes a row. `false`: as for [`park`].
pub(crate) async fn remove(connection: &mut PgConnection, owner: &Owner, offset: i64) -> Result<bool, sqlx::Error> {
    let query = sqlx::query_scalar(of_owner!(
        "FOR SHARE",
        ", removed AS ( \
             DELETE FROM parked_event \
              WHERE consumer_group = $1 AND topic = $2 AND partition = $3 AND record_offset = $6 \
                AND EXISTS (SELECT FROM owner)) \
         SELECT EXISTS (SELECT FROM owner)"
    ));
    bind_owner!(query, owner).bind(offset).fetch_one(connection).await
}

/// What the owner finds at an offset.
#[derive(Debug)]
pub(crate) enum Found {
    /// The record, and its origin with what happened to it since.
    Row(Box<(Record, Origin)>),
    /// No row.
    Gone,
    /// Another member owns the partition, or this is another run of the server.
    NotOwner,
}

/// Reads a row with its value.
pub(crate) async fn read(connection: &mut PgConnection, owner: &Owner, offset: i64) -> Result<Found, sqlx::Error> {
    // All but the first are absent together.
    type Row = (
        bool,
        Option<Vec<u8>>,
        Option<Vec<u8>>,
        Option<Vec<Vec<u8>>>,
        Option<Vec<Option<Vec<u8>>>>,
        Option<i64>,
        Option<i32>,
        Option<i64>,
    );
    let query = sqlx::query_as(of_owner!(
        "",
        "SELECT EXISTS (SELECT FROM owner), key, value, header_names, header_values, timestamp_millis, attempt, \
                (extract(epoch FROM first_failed_at) * 1000)::bigint \
           FROM (SELECT 1) AS always LEFT JOIN parked_event \
             ON consumer_group = $1 AND topic = $2 AND partition = $3 AND record_offset = $6"
    ));
    let row: Row = bind_owner!(query, owner).bind(offset).fetch_one(connection).await?;
    let (true, key, payload, names, values, timestamp_millis, attempt, first_failed_at) = row else {
        return Ok(Found::NotOwner);
    };
    let (Some(key), Some(names), Some(values), Some(attempt)) = (key, names, values, attempt) else {
        return Ok(Found::Gone);
    };
    let raw: Vec<RawHeader> = names.into_iter().zip(values).collect();
    let record = Record {
        topic: Arc::clone(&owner.partition.topic),
        partition: owner.partition.number,
        offset,
        timestamp_millis,
        key: Some(key),
        payload,
        headers: (!raw.is_empty()).then(|| headers::from_raw(&raw)),
    };
    let origin = Origin {
        attempt: attempt.try_into().unwrap_or_default(),
        first_failed_at_millis: first_failed_at.and_then(|millis| millis.try_into().ok()),
        ..Origin::of_main(&record)
    };
    Ok(Found::Row(Box::new((record, origin))))
}

/// A row as its owner remembers it.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub offset: i64,
    pub key: Vec<u8>,
    pub due_at_millis: u64,
}

/// Every row of partitions, without values.
pub(crate) async fn load(
    connection: &mut PgConnection,
    group: &str,
    partitions: &[Partition],
) -> Result<HashMap<Partition, Vec<Waiting>>, sqlx::Error> {
    let rows: Vec<(String, i32, i64, Vec<u8>, i64)> = sqlx::query_as(
        "SELECT row.topic, row.partition, row.record_offset, row.key, (extract(epoch FROM row.due_at) * 1000)::bigint \
           FROM parked_event AS row \
           JOIN unnest($2::text[], $3::int[]) AS taken(topic, partition) USING (topic, partition) \
          WHERE row.consumer_group = $1",
    )
    .bind(group)
    .bind(partitions.iter().map(|partition| &*partition.topic).collect::<Vec<&str>>())
    .bind(partitions.iter().map(|partition| partition.number).collect::<Vec<i32>>())
    .fetch_all(connection)
    .await?;
    let mut by_partition: HashMap<Partition, Vec<Waiting>> = HashMap::new();
    for (topic, number, offset, key, due_at) in rows {
        let row = Waiting { offset, key, due_at_millis: due_at.try_into().unwrap_or_default() };
        by_partition.entry(Partition { topic: topic.into(), number }).or_default().push(row);
    }
    Ok(by_partition)
}

fn as_count(attempt: u32) -> i32 {
    i32::try_from(attempt).unwrap_or(i32::MAX)
}

fn as_millis(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}
