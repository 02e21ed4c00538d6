//! The dedup table as the catalog shows it.

use sqlx::PgConnection;

const DAY_MILLIS: i64 = 86_400_000;

/// What a part of the dedup table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ids older than the first day.
    Late,
    /// The ids of one UTC day, told in days since the Unix epoch.
    Day(i64),
    /// The ids of natural keys.
    Natural,
    /// Everything: an adopted table.
    Flat,
}

/// One partition of the dedup table, or all of an adopted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// As SQL names it: qualified and quoted where that is needed.
    pub sql_name: String,
    pub name: String,
    pub kind: Kind,
    /// Of the rows alone. Zero: it was emptied, or never used.
    pub heap_bytes: i64,
    /// With indexes.
    pub bytes: i64,
    pub estimated_rows: i64,
}

impl Part {
    /// The times of its ids end before this, milliseconds since the Unix epoch.
    pub(crate) fn end_millis(&self) -> Option<i64> {
        match self.kind {
            Kind::Day(day) => Some((day + 1) * DAY_MILLIS),
            Kind::Late | Kind::Natural | Kind::Flat => None,
        }
    }

    /// The first time of its ids.
    pub(crate) fn start_millis(&self) -> Option<i64> {
        match self.kind {
            Kind::Day(day) => Some(day * DAY_MILLIS),
            Kind::Late | Kind::Natural | Kind::Flat => None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap_bytes == 0
    }

    /// Whether its rows are deleted by their age, and not all at once.
    pub(crate) fn goes_row_by_row(&self) -> bool {
        !matches!(self.kind, Kind::Day(_))
    }
}

/// The dedup table, and the database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    /// Milliseconds since the Unix epoch.
    pub now: i64,
    /// In the order of their ids.
    pub parts: Vec<Part>,
}

/// Reads the catalog.
pub(crate) async fn parts(connection: &mut PgConnection) -> Result<Table, sqlx::Error> {
    type Row = (String, String, Option<i64>, i64, i64, i64);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT c.oid::regclass::text, c.relname::text, \
                (to_date(substring(c.relname FROM '^processed_event_([0-9]{8})$'), 'YYYYMMDD') - DATE '1970-01-01')::bigint, \
                pg_relation_size(c.oid), pg_total_relation_size(c.oid), greatest(c.reltuples, 0)::bigint \
           FROM pg_class c \
          WHERE c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'processed_event'::regclass) \
             OR (c.oid = 'processed_event'::regclass AND c.relkind = 'r') \
          ORDER BY c.relname",
    )
    .fetch_all(&mut *connection)
    .await?;
    let now =
        sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000)::bigint").fetch_one(&mut *connection).await?;
    let kind = |name: &str, day: Option<i64>| match (day, name) {
        (Some(day), _) => Some(Kind::Day(day)),
        (None, "processed_event_late") => Some(Kind::Late),
        (None, "processed_event_natural") => Some(Kind::Natural),
        (None, "processed_event") => Some(Kind::Flat),
        // Somebody's own; what is in it stays.
        (None, _) => None,
    };
    let part = |(sql_name, name, day, heap_bytes, bytes, estimated_rows): Row| {
        let kind = kind(&name, day)?;
        Some(Part { sql_name, name, kind, heap_bytes, bytes, estimated_rows })
    };
    let mut parts: Vec<Part> = rows.into_iter().filter_map(part).collect();
    parts.sort_by_key(|part| match part.kind {
        Kind::Flat | Kind::Late => i64::MIN,
        Kind::Day(day) => day,
        Kind::Natural => i64::MAX,
    });
    Ok(Table { now, parts })
}
