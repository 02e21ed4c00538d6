//! A table `processed_event` that was there before the library.

mod partition;
mod rebuild;

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

pub(crate) use self::partition::partition;
pub(crate) use self::rebuild::rebuild;
use super::session::{Pools, in_transaction};
use crate::decide::adoption::{Column, Form, Found, judge};
use crate::decide::retention;
use crate::pg::maintenance::CLAIM_LOCK;

/// For reading a whole table.
const BOUND: Duration = Duration::from_secs(3_600);

/// Why an existing table can't be used, or not be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdoptError {
    /// Everything that is wrong with it, and what to do.
    #[error("{}", .0.join("; "))]
    Unusable(Vec<String>),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Looks at the table, if there is one, before anything is made.
pub(crate) async fn check(pools: &Pools, groups: &BTreeSet<String>) -> Result<Option<Form>, AdoptError> {
    let found = in_transaction(pools, BOUND, |tx| Box::pin(inspect(tx))).await?;
    match found {
        None => Ok(None),
        Some(found) => judge(&found, groups).map(Some).map_err(AdoptError::Unusable),
    }
}

/// Takes a table whose key serves one group alone for this group: an empty one does not say whose it is, and
/// two groups may start at the same time. The first one is noted, and others are refused. The migrations must have
/// been applied.
pub(crate) async fn claim(pools: &Pools, groups: &BTreeSet<String>) -> Result<(), AdoptError> {
    let groups = groups.clone();
    let refused = in_transaction(pools, BOUND, move |tx| {
        Box::pin(async move {
            sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(CLAIM_LOCK).execute(&mut *tx).await?;
            let Some(found) = inspect(tx).await?.filter(Found::serves_one_group) else { return Ok(None) };
            if let Err(problems) = judge(&found, &groups) {
                return Ok(Some(problems));
            }
            let note = "INSERT INTO group_horizon (consumer_group) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING";
            sqlx::query(note).bind(groups.into_iter().collect::<Vec<String>>()).execute(tx).await?;
            Ok(None)
        })
    });
    refused.await?.map_or(Ok(()), |problems| Err(AdoptError::Unusable(problems)))
}

/// Gives the groups that brought rows their first horizon. The migration noted when their oldest rows were
/// processed.
pub(crate) async fn settle_horizons(pools: &Pools, skew: Duration) -> Result<(), sqlx::Error> {
    let skew = i64::try_from(skew.as_millis()).unwrap_or(i64::MAX / 4);
    in_transaction(pools, BOUND, move |tx| {
        Box::pin(async move {
            let noted: Vec<(String, i64, i64)> = sqlx::query_as(
                "SELECT consumer_group, (extract(epoch FROM ids_before) * 1000)::bigint, \
                        (extract(epoch FROM now()) * 1000)::bigint \
                   FROM group_horizon WHERE raised_at = '-infinity' FOR UPDATE",
            )
            .fetch_all(&mut *tx)
            .await?;
            for (group, oldest, now) in noted {
                sqlx::query(
                    "UPDATE group_horizon SET ids_before = to_timestamp($2 / 1000.0), raised_at = now() \
                      WHERE consumer_group = $1",
                )
                .bind(&group)
                .bind(retention::horizon_of_adopted(oldest, now, skew))
                .execute(&mut *tx)
                .await?;
                tracing::info!(group, "brought rows of its own: older events may have been deleted");
            }
            Ok(())
        })
    })
    .await
}

async fn inspect(connection: &mut PgConnection) -> Result<Option<Found>, sqlx::Error> {
    let table: Option<(String, Option<String>)> = sqlx::query_as(
        "SELECT relkind::text, pg_get_partkeydef(oid) FROM pg_class WHERE oid = to_regclass('processed_event')",
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some((kind, partitioned_by)) = table else { return Ok(None) };
    let columns: Vec<(String, String, bool, bool)> = sqlx::query_as(
        "SELECT attname::text, format_type(atttypid, NULL), attnotnull, atthasdef OR attidentity <> '' \
           FROM pg_attribute \
          WHERE attrelid = to_regclass('processed_event') AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
    )
    .fetch_all(&mut *connection)
    .await?;
    let unique_keys: Vec<Vec<String>> = sqlx::query_scalar(
        "SELECT array_agg(a.attname::text ORDER BY k.place) \
           FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, place) \
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum \
          WHERE i.indrelid = to_regclass('processed_event') AND i.indisunique AND i.indisvalid \
            AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts \
          GROUP BY i.indexrelid",
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut found = Found {
        kind,
        partitioned_by,
        columns: columns
            .into_iter()
            .map(|(name, of_type, is_required, has_default)| Column { name, of_type, is_required, has_default })
            .collect(),
        unique_keys,
        groups: Vec::new(),
    };
    let has_groups = found.columns.iter().any(|column| column.name == "consumer_group");
    if has_groups && found.serves_one_group() {
        found.groups = sqlx::query_scalar(
            "WITH one AS MATERIALIZED (SELECT consumer_group::text AS name FROM processed_event LIMIT 1) \
             SELECT name FROM one WHERE name IS NOT NULL \
             UNION ALL (SELECT consumer_group::text FROM processed_event, one WHERE consumer_group <> name LIMIT 1)",
        )
        .fetch_all(&mut *connection)
        .await?;
        found.groups.extend(known_groups(connection).await?);
    }
    Ok(Some(found))
}

/// The groups that have run on this database, as far as the library's tables are there.
async fn known_groups(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    let mut groups = Vec::new();
    for table in ["consumer_progress", "group_horizon"] {
        let is_there: bool =
            sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(table).fetch_one(&mut *connection).await?;
        if is_there {
            let named = AssertSqlSafe(format!("SELECT DISTINCT consumer_group::text FROM {table}"));
            groups.extend(sqlx::query_scalar::<_, String>(named).fetch_all(&mut *connection).await?);
        }
    }
    Ok(groups)
}
