//! How far a group is, as the database knows it: `consumer_progress`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sqlx::{PgPool, Postgres, Transaction};

use crate::decide::progress::Row;
use crate::kafka::consumer::Partition;

/// One run of one server, told by when it started. A restart or a failover changes it, and only
/// then can commits be lost that were confirmed before.
pub(crate) type Server = Arc<str>;

const SERVER: &str = "extract(epoch FROM pg_postmaster_start_time())::text";

/// A partition's position to write.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub partition: &'a Partition,
    pub epoch: i64,
    pub server: &'a Server,
    pub expected: i64,
    pub next_offset: i64,
    pub event_millis: Option<i64>,
}

/// Writes positions, each only where the row holds this member's epoch and what it last wrote, on
/// the server run that confirmed the events. Returns the partitions that were written.
pub(crate) async fn compare_and_set(
    pool: &PgPool,
    group: &str,
    writes: &[Write<'_>],
) -> Result<HashSet<Partition>, sqlx::Error> {
    let column = |of: fn(&Write<'_>) -> i64| writes.iter().map(of).collect::<Vec<i64>>();
    let rows: Vec<(String, i32)> = sqlx::query_as(
        "UPDATE consumer_progress AS row \
            SET next_offset = new.next_offset, updated_at = now(), \
                event_time = coalesce(to_timestamp(new.event_millis / 1000.0), row.event_time) \
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
    .bind(writes.iter().map(|write| &**write.server).collect::<Vec<&str>>())
    .bind(column(|write| write.expected))
    .bind(column(|write| write.next_offset))
    .bind(writes.iter().map(|write| write.event_millis).collect::<Vec<Option<i64>>>())
    .fetch_all(pool)
    .await?;
    Ok(rows.into_iter().map(|(topic, number)| Partition { topic: topic.into(), number }).collect())
}

/// All rows of a group, and the server run that says so.
pub(crate) async fn read(pool: &PgPool, group: &str) -> Result<(Server, HashMap<Partition, Row>), sqlx::Error> {
    // The row of a group without positions still names the server.
    type Found = (String, Option<String>, Option<i32>, Option<i64>, Option<i64>);
    // One statement, so that rows and server are sure to belong together.
    let rows: Vec<Found> = sqlx::query_as(
        "SELECT extract(epoch FROM pg_postmaster_start_time())::text, topic, partition, epoch, next_offset \
           FROM (SELECT 1) AS always LEFT JOIN consumer_progress ON consumer_group = $1",
    )
    .bind(group)
    .fetch_all(pool)
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

/// The takeover of partitions, in one transaction: raise the epochs, decide, record.
pub(crate) struct Takeover {
    tx: Transaction<'static, Postgres>,
    group: String,
}

impl Takeover {
    /// Begins, and orders the members of a group that take over at the same time.
    pub(crate) async fn begin(pool: &PgPool, group: &str) -> Result<Self, sqlx::Error> {
        let mut tx = pool.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('idem takeover ' || $1, 0))")
            .bind(group)
            .execute(&mut *tx)
            .await?;
        Ok(Self { tx, group: group.to_owned() })
    }

    /// The server run of this transaction.
    pub(crate) async fn server(&mut self) -> Result<Server, sqlx::Error> {
        let server: String =
            sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT {SERVER}"))).fetch_one(&mut *self.tx).await?;
        Ok(server.into())
    }

    /// The topics that the group has positions of.
    pub(crate) async fn known_topics(&mut self) -> Result<HashSet<String>, sqlx::Error> {
        let topics: Vec<String> =
            sqlx::query_scalar("SELECT DISTINCT topic FROM consumer_progress WHERE consumer_group = $1")
                .bind(&self.group)
                .fetch_all(&mut *self.tx)
                .await?;
        Ok(topics.into_iter().collect())
    }

    /// Raises a partition's epoch, so that its former owner can't move it any more.
    pub(crate) async fn raise_epoch(&mut self, partition: &Partition) -> Result<Option<Row>, sqlx::Error> {
        let row: Option<(i64, i64)> = sqlx::query_as(
            "UPDATE consumer_progress SET epoch = epoch + 1, updated_at = now() \
              WHERE consumer_group = $1 AND topic = $2 AND partition = $3 RETURNING epoch, next_offset",
        )
        .bind(&self.group)
        .bind(&*partition.topic)
        .bind(partition.number)
        .fetch_optional(&mut *self.tx)
        .await?;
        Ok(row.map(|(epoch, next_offset)| Row { epoch, next_offset }))
    }

    /// Records a position that was decided.
    pub(crate) async fn record(
        &mut self,
        partition: &Partition,
        epoch: i64,
        next_offset: i64,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO consumer_progress (consumer_group, topic, partition, epoch, next_offset) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (consumer_group, topic, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_at = now()",
        )
        .bind(&self.group)
        .bind(&*partition.topic)
        .bind(partition.number)
        .bind(epoch)
        .bind(next_offset)
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    /// Makes the takeover visible.
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        self.tx.commit().await
    }
}
