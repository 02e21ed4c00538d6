//! The outbox: rows that are written with a change, and what the relay does with them.

use std::fmt::Write as _;
use std::sync::Arc;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::event_session;
use crate::decide::relay::{Line, PassedOver, Seen};

/// What the relay listens to.
pub(crate) const CHANNEL: &str = "idem_outbox";

/// An event to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub event_id: Uuid,
    /// Valid for Kafka.
    pub topic: String,
    pub key: String,
    pub payload: Vec<u8>,
    pub headers: Vec<(String, String)>,
    pub occurred_at_millis: i64,
}

impl Row {
    fn headers_json(&self) -> String {
        // Text in arrays is always valid JSON.
        serde_json::to_string(&self.headers).unwrap_or_else(|_| "[]".to_owned())
    }
}

/// The statements that write these rows, each with a semicolon, for the round trip of COMMIT: one that
/// waits for its answer would cost an event's transaction a third of its time.
///
/// Everything that comes from elsewhere is in hexadecimal, so nothing in it can be read as SQL, whatever
/// a handler has set for its session.
pub(crate) fn statements(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let bytes = rows.iter().map(|row| 2 * row.payload.len() + 500).sum();
    let mut sql = String::with_capacity(bytes);
    // What a handler set may hide the library's tables.
    sql.push_str(event_session::UNDO_NAMES);
    for row in rows {
        // Writing to a String can't fail.
        let _ = write!(sql, "SELECT idem_publish('{}', ", row.event_id);
        text(&mut sql, &row.topic);
        sql.push_str(", ");
        text(&mut sql, &row.key);
        sql.push_str(", ");
        hex(&mut sql, &row.payload);
        sql.push_str(", ");
        text(&mut sql, &row.headers_json());
        let _ = write!(sql, "::json, {}); ", row.occurred_at_millis);
    }
    sql
}

fn text(sql: &mut String, text: &str) {
    sql.push_str("convert_from(");
    hex(sql, text.as_bytes());
    sql.push_str(", 'UTF8')");
}

fn hex(sql: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    sql.push_str("decode('");
    for byte in bytes {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push_str("', 'hex')");
}

/// Writes rows in the transaction of the connection, in their order.
pub(crate) async fn insert(tx: &mut PgConnection, rows: &[Row]) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = rows.iter().map(|row| row.event_id).collect();
    let topics: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
    let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    let payloads: Vec<&[u8]> = rows.iter().map(|row| row.payload.as_slice()).collect();
    let headers: Vec<String> = rows.iter().map(Row::headers_json).collect();
    let times: Vec<i64> = rows.iter().map(|row| row.occurred_at_millis).collect();
    sqlx::query(
        "WITH published AS ( \
             INSERT INTO idem_outbox (event_id, topic, key, payload, headers, occurred_at_millis) \
             SELECT id, topic, key, payload, headers::json, millis \
               FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::bigint[]) \
                 AS new (id, topic, key, payload, headers, millis)) \
         SELECT pg_notify('idem_outbox', '') FROM idem_relay WHERE wake_until > now()",
    )
    .bind(ids)
    .bind(topics)
    .bind(keys)
    .bind(payloads)
    .bind(headers)
    .bind(times)
    .execute(tx)
    .await?;
    Ok(())
}

/// A row of the outbox that the relay has read.
#[derive(Debug)]
pub(crate) struct Taken {
    pub seq: i64,
    pub row: Row,
}

/// A visible row, before its payload is read. Mostly nothing is parked, and then it is not asked for each row.
macro_rules! seen {
    ($condition:literal) => {
        concat!(
            "SELECT seq, topic, key, octet_length(payload) + octet_length(key) + octet_length(headers::text), \
                    CASE WHEN (SELECT EXISTS (SELECT FROM idem_outbox_parked)) \
                      THEN EXISTS (SELECT FROM idem_outbox_parked AS parked \
                                    WHERE parked.key = outbox.key AND parked.topic = outbox.topic) \
                      ELSE false END \
               FROM idem_outbox AS outbox ",
            $condition,
            " ORDER BY seq LIMIT $1"
        )
    };
}

/// The lowest rows that are visible and not passed over, in their order, at most so many.
pub(crate) async fn seen(
    connection: &mut PgConnection,
    most: usize,
    but: &PassedOver,
) -> Result<Vec<Seen>, sqlx::Error> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = if but.is_empty() {
        sqlx::query_as(seen!("")).bind(most).fetch_all(connection).await?
    } else {
        // No topic has a space in its name. One text for a line, so that the server can look it up in a hash.
        let topics: Vec<&str> = but.topics.iter().map(|topic| &**topic).collect();
        let lines: Vec<String> = but.lines.iter().map(|line| format!("{} {}", line.topic, line.key)).collect();
        let query = sqlx::query_as(seen!("WHERE topic <> ALL ($2) AND topic || ' ' || key <> ALL ($3)"));
        // Planned anew, as it makes the hash only of values that it knows.
        query.bind(most).bind(topics).bind(lines).persistent(false).fetch_all(connection).await?
    };
    Ok(sorted_out(rows))
}

/// The lowest rows of a topic.
pub(crate) async fn seen_of(connection: &mut PgConnection, topic: &str, most: usize) -> Result<Vec<Seen>, sqlx::Error> {
    let query = sqlx::query_as(seen!("WHERE topic = $2"));
    let rows = query.bind(i64::try_from(most).unwrap_or(i64::MAX)).bind(topic).fetch_all(connection).await?;
    Ok(sorted_out(rows))
}

fn sorted_out(rows: Vec<(i64, String, String, i32, bool)>) -> Vec<Seen> {
    let mut topics: Vec<Arc<str>> = Vec::new();
    let mut shared = |topic: String| match topics.iter().find(|known| ***known == *topic) {
        Some(known) => Arc::clone(known),
        None => {
            topics.push(topic.into());
            Arc::clone(&topics[topics.len() - 1])
        }
    };
    let seen = |(seq, topic, key, bytes, held)| {
        let (line, bytes) = (Line { topic: shared(topic), key }, usize::try_from(bytes).unwrap_or(0));
        Seen { seq, line, bytes, held }
    };
    rows.into_iter().map(seen).collect()
}

/// Reads these rows, which are sorted, and no others: how much they are was counted.
pub(crate) async fn read(connection: &mut PgConnection, seqs: &[i64]) -> Result<Vec<Taken>, sqlx::Error> {
    let (Some(first), Some(last)) = (seqs.first(), seqs.last()) else { return Ok(Vec::new()) };
    type Columns = (i64, Uuid, String, String, Vec<u8>, String, i64);
    // They mostly follow each other, and one range is read faster than single rows out of four partitions. What comes
    // into a gap meanwhile is not asked for.
    let is_a_range = usize::try_from(last - first).is_ok_and(|between| between + 1 == seqs.len());
    let query = if is_a_range {
        sqlx::query_as(
            "SELECT seq, event_id, topic, key, payload, headers::text, occurred_at_millis FROM idem_outbox \
              WHERE seq BETWEEN $1 AND $2",
        )
        .bind(first)
        .bind(last)
    } else {
        sqlx::query_as(
            "SELECT seq, event_id, topic, key, payload, headers::text, occurred_at_millis FROM idem_outbox \
              WHERE seq = ANY($1)",
        )
        .bind(seqs)
    };
    let rows: Vec<Columns> = query.fetch_all(connection).await?;
    let taken = |(seq, event_id, topic, key, payload, headers, occurred_at_millis): Columns| {
        // The library wrote them.
        let headers = serde_json::from_str(&headers).unwrap_or_default();
        Taken { seq, row: Row { event_id, topic, key, payload, headers, occurred_at_millis } }
    };
    Ok(rows.into_iter().map(taken).collect())
}

/// Partitions of the outbox, and which one a row is in: as the migration says.
pub(crate) const SLOTS: i64 = 4;

pub(crate) fn slot(seq: i64) -> i64 {
    (seq >> 16) & (SLOTS - 1)
}

/// Deletes rows that were acknowledged, by number and event: a server that has taken over may give a number again.
pub(crate) async fn delete(connection: &mut PgConnection, rows: &[(i64, Uuid)]) -> Result<(), sqlx::Error> {
    for number in 0..SLOTS {
        let here = rows.iter().copied().filter(|(seq, _)| slot(*seq) == number);
        let (seqs, events): (Vec<i64>, Vec<Uuid>) = here.unzip();
        if !seqs.is_empty() {
            // Each number would be looked for in every partition of the parent.
            let delete = format!("DELETE FROM idem_outbox_{number} WHERE seq = ANY($1) AND event_id = ANY($2)");
            sqlx::query(AssertSqlSafe(delete)).bind(seqs).bind(events).execute(&mut *connection).await?;
        }
    }
    Ok(())
}

/// Gives the room of an empty partition back. `false`: it is not empty, or in use; try again later.
pub(crate) async fn truncate(connection: &mut PgConnection, slot: i64) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT idem_outbox_truncate($1::integer)").bind(slot).fetch_one(connection).await
}

/// The columns that a row takes along when it is parked or released.
macro_rules! columns {
    () => {
        "seq, event_id, topic, key, payload, headers, occurred_at_millis, created_at"
    };
}
/// Parks a row that can't be published.
pub(crate) async fn park(connection: &mut PgConnection, seq: i64, reason: &str) -> Result<(), sqlx::Error> {
    sqlx::query(concat!(
        "WITH gone AS (DELETE FROM idem_outbox WHERE seq = $1 RETURNING *) INSERT INTO idem_outbox_parked (",
        columns!(),
        ", reason) SELECT ",
        columns!(),
        ", $2 FROM gone"
    ))
    .bind(seq)
    .bind(reason)
    .execute(connection)
    .await?;
    Ok(())
}

/// Parks rows behind the parked one of their line, unless that was released meanwhile: its row is
/// locked, so that whoever releases it finds these too.
pub(crate) async fn set_aside(connection: &mut PgConnection, seqs: &[i64]) -> Result<(), sqlx::Error> {
    sqlx::query(concat!(
        "WITH head AS ( \
             SELECT topic, key FROM idem_outbox_parked \
              WHERE reason IS NOT NULL AND (topic, key) IN (SELECT topic, key FROM idem_outbox WHERE seq = ANY($1)) \
                FOR SHARE), \
         gone AS ( \
             DELETE FROM idem_outbox AS waits WHERE seq = ANY($1) \
                AND EXISTS (SELECT FROM head WHERE head.topic = waits.topic AND head.key = waits.key) RETURNING *) \
         INSERT INTO idem_outbox_parked (",
        columns!(),
        ") SELECT ",
        columns!(),
        " FROM gone"
    ))
    .bind(seqs)
    .execute(connection)
    .await?;
    Ok(())
}

/// Has publishers wake the relay for so many seconds; 0: nobody needs to.
pub(crate) async fn wanted_awake(connection: &mut PgConnection, seconds: u32) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE idem_relay SET wake_until = CASE WHEN $1 > 0 THEN now() + make_interval(secs => $1) END")
        .bind(f64::from(seconds))
        .execute(connection)
        .await?;
    Ok(())
}

/// How much waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Backlog {
    /// Not more than [`MOST_COUNTED`], as `parked`.
    pub pending: i64,
    pub parked: i64,
    /// Of the oldest that is pending, in seconds.
    pub oldest_seconds: f64,
}

/// More rows are not counted: that would take as long as there are many.
pub(crate) const MOST_COUNTED: i64 = 100_000;

/// Counts what waits.
pub(crate) async fn backlog(connection: &mut PgConnection) -> Result<Backlog, sqlx::Error> {
    let (pending, parked, oldest_seconds) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM (SELECT FROM idem_outbox LIMIT $1) AS counted), \
                (SELECT count(*) FROM (SELECT FROM idem_outbox_parked LIMIT $1) AS counted), \
                coalesce(extract(epoch FROM clock_timestamp() - \
                    (SELECT created_at FROM idem_outbox WHERE seq = (SELECT min(seq) FROM idem_outbox))), 0)::float8",
    )
    .bind(MOST_COUNTED)
    .fetch_one(connection)
    .await?;
    Ok(Backlog { pending, parked, oldest_seconds })
}

/// A parked row that holds back its line.
#[derive(Debug)]
pub(crate) struct ParkedRow {
    pub seq: i64,
    pub event_id: Uuid,
    pub topic: String,
    pub reason: String,
    pub bytes: i64,
    pub created_millis: i64,
    pub parked_millis: i64,
    /// Rows that wait behind it.
    pub behind: i64,
}

/// The rows that can't be published.
pub(crate) async fn parked(connection: &mut PgConnection) -> Result<Vec<ParkedRow>, sqlx::Error> {
    type Columns = (i64, Uuid, String, String, i64, i64, i64, i64);
    let rows: Vec<Columns> = sqlx::query_as(
        "SELECT seq, event_id, topic, reason, octet_length(payload)::bigint, \
                (extract(epoch FROM created_at) * 1000)::bigint, (extract(epoch FROM parked_at) * 1000)::bigint, \
                (SELECT count(*) FROM idem_outbox_parked AS other \
                  WHERE other.key = head.key AND other.topic = head.topic AND other.reason IS NULL) \
           FROM idem_outbox_parked AS head WHERE reason IS NOT NULL ORDER BY seq",
    )
    .fetch_all(connection)
    .await?;
    let row = |(seq, event_id, topic, reason, bytes, created_millis, parked_millis, behind): Columns| ParkedRow {
        seq,
        event_id,
        topic,
        reason,
        bytes,
        created_millis,
        parked_millis,
        behind,
    };
    Ok(rows.into_iter().map(row).collect())
}

/// What becomes of a parked row; those behind it are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    Send,
    Drop,
}

/// Puts a line back into the outbox, with its old numbers. Returns how many rows; `None`: no such row holds
/// back a line.
pub(crate) async fn release(connection: &mut PgConnection, seq: i64, how: Release) -> Result<Option<u64>, sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    // The relay locks it too while it puts rows behind it; what it put there is found by the next statement.
    let head =
        sqlx::query_as("SELECT topic, key FROM idem_outbox_parked WHERE seq = $1 AND reason IS NOT NULL FOR UPDATE");
    let head: Option<(String, String)> = head.bind(seq).fetch_optional(&mut *tx).await?;
    let Some((topic, key)) = head else { return Ok(None) };
    if how == Release::Drop {
        sqlx::query("DELETE FROM idem_outbox_parked WHERE seq = $1").bind(seq).execute(&mut *tx).await?;
    }
    let moved = sqlx::query(concat!(
        "WITH line AS (DELETE FROM idem_outbox_parked WHERE topic = $1 AND key = $2 RETURNING *) INSERT INTO idem_outbox (",
        columns!(),
        ") SELECT ",
        columns!(),
        " FROM line ORDER BY seq"
    ));
    let moved = moved.bind(topic).bind(key).execute(&mut *tx).await?.rows_affected();
    sqlx::query("SELECT pg_notify('idem_outbox', '')").execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(Some(moved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_row_is_read_as_sql() {
        let row = Row {
            event_id: Uuid::nil(),
            topic: "t".to_owned(),
            key: "'; DROP TABLE x; --".to_owned(),
            payload: b"{}'\\".to_vec(),
            headers: vec![("a'".to_owned(), "\\'".to_owned())],
            occurred_at_millis: -1,
        };
        let sql = statements(&[row]);
        assert!(!sql.contains("DROP") && !sql.contains('\\') && sql.contains("decode('7b7d275c', 'hex')"), "{sql}");
        assert_eq!(statements(&[]), "");
    }
}
