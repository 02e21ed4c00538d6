//! How far a group is, as the database knows it: `consumer_progress`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::maintenance::kind;
use super::parked::{self, Waiting};
use crate::decide::caught_up::Recorded;
use crate::decide::progress::Row;
use crate::decide::retention;
use crate::kafka::consumer::Partition;
use crate::kafka::names;

/// One run of one server, told by when it started. A restart or a failover changes it, and only
/// then can commits be lost that were confirmed before.
pub(crate) type Server = Arc<str>;

/// A partition's position to write.
#[derive(Debug)]
pub(crate) struct Write {
    pub partition: Partition,
    pub epoch: i64,
    pub server: Server,
    pub expected: i64,
    pub next_offset: i64,
    pub event_millis: Option<i64>,
}

/// Milliseconds that PostgreSQL can take as a time: 1970 to 9999. A producer may stamp anything.
pub(crate) const TIMES: std::ops::RangeInclusive<i64> = 0..=253_402_300_799_000;

/// Writes positions, each only where the row holds this member's epoch and what it last wrote, on
/// the server run that confirmed the events. Returns the partitions that were written. A producer may stamp
/// its events with times to come; nothing was read later than now.
pub(crate) async fn compare_and_set(
    connection: &mut PgConnection,
    group: &str,
    writes: &[Write],
) -> Result<HashSet<Partition>, sqlx::Error> {
    let column = |of: fn(&Write) -> i64| writes.iter().map(of).collect::<Vec<i64>>();
    let event_millis = |write: &Write| write.event_millis.filter(|millis| TIMES.contains(millis));
    let rows: Vec<(String, i32)> = sqlx::query_as(
        "UPDATE consumer_progress AS row \
            SET next_offset = new.next_offset, updated_at = now(), \
                event_time = CASE WHEN new.event_millis IS NULL THEN row.event_time \
                                  ELSE least(to_timestamp(new.event_millis / 1000.0), now()) END \
           FROM unnest($2::text[], $3::int[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) \
                AS new(topic, partition, epoch, server, expected, next_offset, event_millis) \
          WHERE row.consumer_group = $1 AND row.topic = new.topic AND row.partition = new.partition \
            AND row.epoch = new.epoch AND row.next_offset = new.expected \
            AND extract(epoch FROM pg_postmaster_start_time())::text = new.server \
          RETURNING row.topic, row.partition",
    )
    .bind(group)
    .bind(writes.iter().map(|write| &*write.partition.topic).collect::<Vec<&str>>())
    .bind(writes.iter().map(|write| write.partition.number).collect::<Vec<i32>>())
    .bind(column(|write| write.epoch))
    .bind(writes.iter().map(|write| &*write.server).collect::<Vec<&str>>())
    .bind(column(|write| write.expected))
    .bind(column(|write| write.next_offset))
    .bind(writes.iter().map(event_millis).collect::<Vec<Option<i64>>>())
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|(topic, number)| Partition { topic: topic.into(), number }).collect())
}

/// Which run of the server a connection leads to.
pub(crate) async fn server(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    let server: String =
        sqlx::query_scalar("SELECT extract(epoch FROM pg_postmaster_start_time())::text").fetch_one(connection).await?;
    Ok(server.into())
}

/// All rows of a group, and the server run that says so.
pub(crate) async fn read(
    connection: &mut PgConnection,
    group: &str,
) -> Result<(Server, HashMap<Partition, Row>), sqlx::Error> {
    // The row of a group without positions still names the server.
    type Found = (String, Option<String>, Option<i32>, Option<i64>, Option<i64>);
    // One statement, so that rows and server are sure to belong together.
    let rows: Vec<Found> = sqlx::query_as(
        "SELECT extract(epoch FROM pg_postmaster_start_time())::text, topic, partition, epoch, next_offset \
           FROM (SELECT 1) AS always LEFT JOIN consumer_progress ON consumer_group = $1",
    )
    .bind(group)
    .fetch_all(connection)
    .await?;
    let server = rows.first().map(|(server, ..)| server.as_str()).unwrap_or_default().into();
    let rows = rows
        .into_iter()
        .filter_map(|(_, topic, number, epoch, next_offset)| {
            Some((
                Partition { topic: topic?.into(), number: number? },
                Row { epoch: epoch?, next_offset: next_offset? },
            ))
        })
        .collect();
    Ok((server, rows))
}

/// How far a group has read in time.
#[derive(Debug)]
pub(crate) struct Times {
    /// By the database's clock, milliseconds since the Unix epoch.
    pub now: i64,
    pub positions: Vec<Recorded>,
}

/// Reads how far a group has read.
pub(crate) async fn times(connection: &mut PgConnection, group: &str) -> Result<Times, sqlx::Error> {
    type Row = (i64, Option<String>, Option<i64>, Option<i64>);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT (extract(epoch FROM now()) * 1000)::bigint, topic, (extract(epoch FROM event_time) * 1000)::bigint, \
                (extract(epoch FROM caught_up_at) * 1000)::bigint \
           FROM (SELECT 1) AS always LEFT JOIN consumer_progress ON consumer_group = $1",
    )
    .bind(group)
    .fetch_all(connection)
    .await?;
    let now = rows.first().map(|(now, ..)| *now).unwrap_or_default();
    let recorded = |(_, topic, event, caught_up): Row| {
        let topic = topic?;
        let position = retention::Position { topic: kind(group, &topic), event, caught_up };
        Some(Recorded::new(names::retry_delay(group, &topic), position))
    };
    Ok(Times { now, positions: rows.into_iter().filter_map(recorded).collect() })
}

/// That a partition had been read to its end.
#[derive(Debug)]
pub(crate) struct CaughtUp {
    pub partition: Partition,
    pub epoch: i64,
    pub server: Server,
    /// Everything was read, if the recorded position is as far as this.
    pub read_to: i64,
    /// For a retry topic: no event that comes into it is older.
    pub floor_millis: Option<i64>,
}

/// Notes at which time partitions had been read to their ends: those whose recorded position is as far.
pub(crate) async fn note_caught_up(
    connection: &mut PgConnection,
    group: &str,
    at_millis: i64,
    notes: &[CaughtUp],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE consumer_progress AS row \
            SET caught_up_at = greatest(row.caught_up_at, to_timestamp($2 / 1000.0)), updated_at = now(), \
                event_time = coalesce(to_timestamp(new.floor / 1000.0), row.event_time) \
           FROM unnest($3::text[], $4::int[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[]) \
                AS new(topic, partition, epoch, server, read_to, floor) \
          WHERE row.consumer_group = $1 AND row.topic = new.topic AND row.partition = new.partition \
            AND row.epoch = new.epoch AND row.next_offset >= new.read_to \
            AND extract(epoch FROM pg_postmaster_start_time())::text = new.server",
    )
    .bind(group)
    .bind(at_millis)
    .bind(notes.iter().map(|note| &*note.partition.topic).collect::<Vec<&str>>())
    .bind(notes.iter().map(|note| note.partition.number).collect::<Vec<i32>>())
    .bind(notes.iter().map(|note| note.epoch).collect::<Vec<i64>>())
    .bind(notes.iter().map(|note| &*note.server).collect::<Vec<&str>>())
    .bind(notes.iter().map(|note| note.read_to).collect::<Vec<i64>>())
    .bind(notes.iter().map(|note| note.floor_millis).collect::<Vec<Option<i64>>>())
    .execute(connection)
    .await
    .map(drop)
}

/// What a takeover finds.
#[derive(Debug)]
pub(crate) struct Found {
    /// The run of the server that says so.
    pub server: Server,
    /// The identity of the database, now.
    pub lineage: Uuid,
    /// The topics that the group had positions of.
    pub known_topics: HashSet<String>,
    /// The rows, with their epochs raised.
    pub rows: HashMap<Partition, Row>,
}

/// A position to record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub epoch: i64,
    pub next_offset: i64,
    /// Events below it were read before, and then the database went back.
    pub reread_below: Option<i64>,
}

/// What a takeover decides.
#[derive(Debug)]
pub(crate) struct Decided {
    /// Where this member's partitions start.
    pub own: Vec<(Partition, Position)>,
    /// What is to be remembered for partitions that another member starts.
    pub others: Vec<(Partition, Position)>,
}

/// What was taken over.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The run of the server that says so.
    pub server: Server,
    /// This member's positions.
    pub positions: Vec<(Partition, Position)>,
    /// The parked events of its partitions.
    pub parked: HashMap<Partition, Vec<Waiting>>,
}

/// Raises the epochs of partitions, so that their former owners can't move them any more, asks
/// where each starts, and records that, in one transaction. Returns this member's positions and the
/// server run they are from, and the partitions' parked events. A `decide` that gives `None` changes nothing.
pub(crate) async fn take_over(
    connection: &mut PgConnection,
    group: &str,
    partitions: &[Partition],
    decide: impl FnOnce(&Found) -> Option<Decided> + Send,
) -> Result<Taken, sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    // Members of a group that take over at the same time come one after another.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('idem takeover ' || $1, 0))")
        .bind(group)
        .execute(&mut *tx)
        .await?;
    let (server, lineage): (String, Uuid) =
        sqlx::query_as("SELECT extract(epoch FROM pg_postmaster_start_time())::text, id FROM idem_lineage")
            .fetch_one(&mut *tx)
            .await?;
    let known_topics: Vec<String> =
        sqlx::query_scalar("SELECT DISTINCT topic FROM consumer_progress WHERE consumer_group = $1")
            .bind(group)
            .fetch_all(&mut *tx)
            .await?;
    let rows: Vec<(String, i32, i64, i64)> = sqlx::query_as(
        "UPDATE consumer_progress AS row SET epoch = row.epoch + 1, updated_at = now() \
           FROM unnest($2::text[], $3::int[]) AS taken(topic, partition) \
          WHERE row.consumer_group = $1 AND row.topic = taken.topic AND row.partition = taken.partition \
          RETURNING row.topic, row.partition, row.epoch, row.next_offset",
    )
    .bind(group)
    .bind(partitions.iter().map(|partition| &*partition.topic).collect::<Vec<&str>>())
    .bind(partitions.iter().map(|partition| partition.number).collect::<Vec<i32>>())
    .fetch_all(&mut *tx)
    .await?;
    let server: Server = server.into();
    let found = Found {
        server: Arc::clone(&server),
        lineage,
        known_topics: known_topics.into_iter().collect(),
        rows: rows
            .into_iter()
            .map(|(topic, number, epoch, next_offset)| {
                (Partition { topic: topic.into(), number }, Row { epoch, next_offset })
            })
            .collect(),
    };
    let Some(Decided { own, others }) = decide(&found) else {
        tx.rollback().await?;
        return Ok(Taken { server, positions: Vec::new(), parked: HashMap::new() });
    };
    let record: Vec<&(Partition, Position)> = own.iter().chain(&others).collect();
    sqlx::query(
        "INSERT INTO consumer_progress AS row \
             (consumer_group, topic, partition, epoch, next_offset, reread_below, reread_at) \
         SELECT $1, new.*, CASE WHEN new.reread_below IS NOT NULL THEN now() END \
           FROM unnest($2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[]) \
                AS new(topic, partition, epoch, next_offset, reread_below) \
         ON CONFLICT (consumer_group, topic, partition) DO UPDATE \
            SET next_offset = excluded.next_offset, updated_at = now(), event_time = NULL, caught_up_at = NULL, \
                reread_below = greatest(row.reread_below, excluded.reread_below), \
                reread_at = coalesce(excluded.reread_at, row.reread_at) \
          WHERE row.next_offset <> excluded.next_offset OR excluded.reread_below IS NOT NULL",
    )
    .bind(group)
    .bind(record.iter().map(|(partition, _)| &*partition.topic).collect::<Vec<&str>>())
    .bind(record.iter().map(|(partition, _)| partition.number).collect::<Vec<i32>>())
    .bind(record.iter().map(|(_, position)| position.epoch).collect::<Vec<i64>>())
    .bind(record.iter().map(|(_, position)| position.next_offset).collect::<Vec<i64>>())
    .bind(record.iter().map(|(_, position)| position.reread_below).collect::<Vec<Option<i64>>>())
    .execute(&mut *tx)
    .await?;
    // After the epochs were raised: what the former owners were about to park is here now.
    let parked = parked::load(&mut tx, group, partitions).await?;
    tx.commit().await?;
    Ok(Taken { server, positions: own, parked })
}
