//! From a table in one piece to the partitioned one, while everything runs: the old table becomes the
//! partition `late`, whose bound lies ahead of every id that can come before the swap.
//!
//! Each step can be repeated, and finds what an earlier run has done. A row is in one place at any time,
//! under a unique key, so no id is lost and none is taken twice. Inserts wait for the swap alone, which
//! reads nothing; those of natural keys wait from the constraint on, since their rows move.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use super::{AdoptError, BOUND, check};
use crate::decide::adoption::Form;
use crate::pg::maintenance::{index, is_the_runner};
use crate::pg::session::{Pools, in_transaction, on_own_connection};

const FIRST_NATURAL: &str = "ff000000-0000-0000-0000-000000000000";
const STAGE: &str = "idem_moved_natural";
const KEY: &str = "idem_processed_event_key";
const MOVED_AT_ONCE: i64 = 5_000;
/// Tries for a lock of two seconds each.
const TRIES: u32 = 60;

/// Makes the table partitioned. `false`: it is.
pub(crate) async fn partition(pools: &Pools, days_ahead: i32) -> Result<bool, AdoptError> {
    match check(pools, &Default::default()).await? {
        None => return Err(AdoptError::Unusable(vec!["there is no processed_event: run `idem migrate`".to_owned()])),
        Some(Form::Partitioned) => return Ok(false),
        Some(Form::Flat) => {}
    }
    index::make_sure(pools).await?;
    let plan = in_transaction(pools, BOUND, move |tx| Box::pin(plan(tx, days_ahead))).await?;
    if plan.foreign_rows {
        return Err(AdoptError::Unusable(vec![format!(
            "processed_event has rows whose ids are no UUID v7 of the past, which the library takes for no event: they \
             have no partition. Look at them, and delete them: SELECT * FROM processed_event WHERE event_id >= '{}' AND \
             event_id < '{FIRST_NATURAL}'",
            plan.first_id
        )]));
    }
    let Some(old_key) = plan.primary_key.clone() else {
        return Err(AdoptError::Unusable(vec![
            "the primary key of processed_event is on other columns than event_id and consumer_group: drop it, and \
             ALTER TABLE processed_event ADD PRIMARY KEY (event_id, consumer_group)"
                .to_owned(),
        ]));
    };
    if !plan.key_is_whole {
        make_key(pools).await?;
    }
    let constraint = plan.constraint.clone();
    let check = format!(
        "ALTER TABLE processed_event DROP CONSTRAINT IF EXISTS {constraint}, ADD CONSTRAINT {constraint} \
         CHECK (event_id IS NOT NULL AND event_id < '{}' AND consumer_group IS NOT NULL) NOT VALID",
        plan.first_id
    );
    repeat(pools, vec![check]).await?;
    move_naturals(pools).await?;
    // Reads the table, and holds up nobody.
    repeat(pools, vec![format!("ALTER TABLE processed_event VALIDATE CONSTRAINT {constraint}")]).await?;
    repeat(pools, swap(&plan, &old_key, days_ahead)).await?;
    tracing::info!("processed_event is partitioned now");
    Ok(true)
}

#[derive(Debug, Clone)]
struct Plan {
    /// The first day behind the old table, `YYYY-MM-DD`, and its first id.
    day: String,
    first_id: String,
    constraint: String,
    foreign_rows: bool,
    /// The name of the primary key's constraint. None: it is on other columns.
    primary_key: Option<String>,
    /// Whether the key is (event_id, consumer_group).
    key_is_whole: bool,
}

async fn plan(tx: &mut PgConnection, days_ahead: i32) -> Result<Plan, sqlx::Error> {
    let (day, first_id): (String, String) = sqlx::query_as(
        "SELECT day::text, idem_first_id_of(day)::text FROM (SELECT (now() AT TIME ZONE 'UTC')::date + $1 AS day) AS ahead",
    )
    .bind(days_ahead)
    .fetch_one(&mut *tx)
    .await?;
    let foreign_rows = sqlx::query_scalar(AssertSqlSafe(format!(
        "SELECT EXISTS (SELECT FROM processed_event WHERE event_id >= '{first_id}' AND event_id < '{FIRST_NATURAL}')"
    )))
    .fetch_one(&mut *tx)
    .await?;
    let key: Option<(String, Vec<String>)> = sqlx::query_as(
        "SELECT conname::text, array_agg(a.attname::text ORDER BY k.place) \
           FROM pg_constraint c CROSS JOIN unnest(c.conkey) WITH ORDINALITY AS k(attnum, place) \
           JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum \
          WHERE c.conrelid = 'processed_event'::regclass AND c.contype = 'p' GROUP BY conname",
    )
    .fetch_optional(tx)
    .await?;
    let (primary_key, key_is_whole) = match key {
        Some((name, columns)) if columns[..] == ["event_id", "consumer_group"] => (Some(name), true),
        Some((name, columns))
            if columns.iter().all(|column| matches!(column.as_str(), "event_id" | "consumer_group")) =>
        {
            (Some(name), false)
        }
        Some(_) => (None, false),
        // A unique index without a constraint: the new key takes its place.
        None => (Some(String::new()), false),
    };
    let constraint = "idem_partition_bound".to_owned();
    Ok(Plan { day, first_id, constraint, foreign_rows, primary_key, key_is_whole })
}

/// The key that a partition needs, made beside the old one. It waits for every transaction that is open, and holds
/// up nobody meanwhile.
async fn make_key(pools: &Pools) -> Result<(), sqlx::Error> {
    on_own_connection(pools, |connection| {
        Box::pin(async move {
            let statements = format!(
                "SET statement_timeout = 0|SET lock_timeout = 0|DROP INDEX CONCURRENTLY IF EXISTS {KEY}|\
                 CREATE UNIQUE INDEX CONCURRENTLY {KEY} ON processed_event (event_id, consumer_group)"
            );
            for statement in statements.split('|') {
                sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut *connection).await?;
            }
            Ok(())
        })
    })
    .await
}

/// Moves the rows of natural keys out, which the new bound excludes. A redelivery of one of them is refused
/// by the constraint, and waits.
async fn move_naturals(pools: &Pools) -> Result<(), sqlx::Error> {
    repeat(
        pools,
        vec![format!(
            "CREATE TABLE IF NOT EXISTS {STAGE} (LIKE processed_event INCLUDING DEFAULTS, \
                 PRIMARY KEY (event_id, consumer_group), CONSTRAINT idem_natural CHECK (event_id >= '{FIRST_NATURAL}'))"
        )],
    )
    .await?;
    loop {
        let moved: i64 = in_transaction(pools, BOUND, |tx| {
            Box::pin(async move {
                sqlx::query_scalar(AssertSqlSafe(format!(
                    "WITH gone AS (DELETE FROM processed_event WHERE ctid = ANY (ARRAY( \
                             SELECT ctid FROM processed_event WHERE event_id >= '{FIRST_NATURAL}' LIMIT {MOVED_AT_ONCE})) \
                         RETURNING *), \
                     moved AS (INSERT INTO {STAGE} SELECT * FROM gone RETURNING 1) \
                     SELECT count(*) FROM moved"
                )))
                .fetch_one(tx)
                .await
            })
        })
        .await?;
        if moved == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The statements of the swap. Nothing in it reads the table.
fn swap(plan: &Plan, old_key: &str, days_ahead: i32) -> Vec<String> {
    let Plan { day, first_id, constraint, key_is_whole, .. } = plan;
    let old_key = old_key.replace('"', "\"\"");
    let mut statements = vec!["LOCK TABLE processed_event IN ACCESS EXCLUSIVE MODE".to_owned()];
    if *key_is_whole {
        statements
            .push(format!("ALTER TABLE processed_event RENAME CONSTRAINT \"{old_key}\" TO processed_event_late_pkey"));
    } else {
        if !old_key.is_empty() {
            statements.push(format!("ALTER TABLE processed_event DROP CONSTRAINT \"{old_key}\""));
        }
        statements.push(format!(
            "ALTER TABLE processed_event ADD CONSTRAINT processed_event_late_pkey PRIMARY KEY USING INDEX {KEY}"
        ));
    }
    statements.extend([
        // A key on the id alone would reach over groups.
        "DO $$ DECLARE found record; BEGIN \
           FOR found IN SELECT i.indexrelid::regclass AS index, c.conname FROM pg_index i \
                          LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.conrelid = i.indrelid \
                         WHERE i.indrelid = 'processed_event'::regclass AND i.indisunique AND NOT i.indisprimary \
                           AND i.indnkeyatts = 1 AND i.indkey[0] = (SELECT attnum FROM pg_attribute \
                                WHERE attrelid = i.indrelid AND attname = 'event_id') LOOP \
             IF found.conname IS NULL THEN EXECUTE format('DROP INDEX %s', found.index); \
             ELSE EXECUTE format('ALTER TABLE processed_event DROP CONSTRAINT %I', found.conname); END IF; \
           END LOOP; END $$"
            .to_owned(),
        "ALTER TABLE processed_event RENAME TO processed_event_late".to_owned(),
        "CREATE TABLE processed_event (LIKE processed_event_late INCLUDING DEFAULTS, \
             PRIMARY KEY (event_id, consumer_group)) PARTITION BY RANGE (event_id)"
            .to_owned(),
        // Whoever could use the old table can use the new one.
        "DO $$ DECLARE one record; BEGIN \
           FOR one IN SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS who, \
                             privilege_type AS what \
                        FROM pg_class, aclexplode(relacl) WHERE oid = 'processed_event_late'::regclass LOOP \
             EXECUTE format('GRANT %s ON processed_event TO %s', one.what, one.who); \
           END LOOP; \
           EXECUTE (SELECT format('ALTER TABLE processed_event OWNER TO %I', pg_get_userbyid(relowner)) \
                      FROM pg_class WHERE oid = 'processed_event_late'::regclass); END $$"
            .to_owned(),
        format!(
            "ALTER TABLE processed_event ATTACH PARTITION processed_event_late FOR VALUES FROM (MINVALUE) TO ('{first_id}')"
        ),
        format!("ALTER TABLE processed_event_late DROP CONSTRAINT {constraint}"),
        format!("ALTER TABLE {STAGE} RENAME TO processed_event_natural"),
        format!(
            "ALTER TABLE processed_event ATTACH PARTITION processed_event_natural \
             FOR VALUES FROM ('{FIRST_NATURAL}') TO (MAXVALUE)"
        ),
        "ALTER TABLE processed_event_natural DROP CONSTRAINT idem_natural".to_owned(),
        "CREATE INDEX processed_event_natural_processed_at ON processed_event_natural (processed_at)".to_owned(),
        format!(
            "DO $$ BEGIN EXECUTE format('CREATE TABLE %I PARTITION OF processed_event FOR VALUES FROM (%L) TO (%L)', \
                 idem_partition_of('{day}'), idem_first_id_of('{day}'), idem_first_id_of(DATE '{day}' + 1)); END $$"
        ),
        format!("SELECT idem_attach_days({})", days_ahead + 7),
        "SELECT idem_share_rights()".to_owned(),
    ]);
    statements
}

/// Runs statements as one transaction of the one runner, until its locks are to be had.
async fn repeat(pools: &Pools, statements: Vec<String>) -> Result<(), sqlx::Error> {
    let mut tries = 0;
    loop {
        let statements = statements.clone();
        let ran = in_transaction(pools, BOUND, move |tx| {
            Box::pin(async move {
                if !is_the_runner(tx).await? {
                    return Ok(false);
                }
                for statement in statements {
                    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *tx).await?;
                }
                Ok(true)
            })
        })
        .await;
        tries += 1;
        let was_locked = |error: &sqlx::Error| {
            let code = error.as_database_error().and_then(|db| db.code());
            matches!(code.as_deref(), Some("55P03" | "40P01"))
        };
        match ran {
            Ok(true) => return Ok(()),
            Ok(false) if tries < TRIES => {}
            Ok(false) => return Err(sqlx::Error::PoolTimedOut),
            Err(error) if was_locked(&error) && tries < TRIES => {
                tracing::info!(%error, "waiting for a quiet moment");
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
