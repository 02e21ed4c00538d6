//! Rows of the dedup table, made on the server.

use sqlx::{Connection, PgConnection};

use super::TestingError;

/// Puts rows into one UTC day of the dedup table, as if a group had processed so many events evenly over
/// it, each when it was published. Returns the name of the day's partition.
///
/// The schema must be there. A day before the first one has no partition of its own: its rows are in
/// `late`.
///
/// # Errors
/// When the server is away or refuses, or the rows are there already.
pub async fn fill_day(database_url: &str, group: &str, days_ago: u32, rows: u64) -> Result<String, TestingError> {
    let filled = async {
        let mut connection = PgConnection::connect(database_url).await?;
        // A v7: 48 bits of time, the version, 12 and 60 bits that tell rows apart.
        sqlx::query(
            "INSERT INTO processed_event (event_id, consumer_group, processed_at) \
             SELECT (lpad(to_hex(millis), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '8' || \
                     lpad(to_hex(n), 15, '0'))::uuid, $1, to_timestamp(millis / 1000.0) \
               FROM generate_series(0, $3::bigint - 1) AS n, \
                    LATERAL (SELECT ((now() AT TIME ZONE 'UTC')::date - $2::integer - DATE '1970-01-01')::bigint * 86400000 \
                                    + n * 86400000 / $3::bigint AS millis) AS of_day",
        )
        .bind(group)
        .bind(i32::try_from(days_ago).unwrap_or(i32::MAX))
        .bind(i64::try_from(rows).unwrap_or(i64::MAX))
        .execute(&mut connection)
        .await?;
        let name = sqlx::query_scalar("SELECT idem_partition_of((now() AT TIME ZONE 'UTC')::date - $1::integer)")
            .bind(i32::try_from(days_ago).unwrap_or(i32::MAX))
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(name)
    };
    filled.await.map_err(|source| TestingError::Sql { what: "fill a day of the dedup table".to_owned(), source })
}
