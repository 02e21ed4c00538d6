//! The library's own migrations, with bookkeeping of their own.

use std::borrow::Cow;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{PgConnection, PgPool, SqlSafeStr};
use uuid::Uuid;

use super::session::{Pools, on_service};

/// Never the user's `_sqlx_migrations`.
const BOOKKEEPING: &str = "idem_migration";

const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "create core", include_str!("../../migrations/0001_create_core.sql")),
    (2, "create lane brake", include_str!("../../migrations/0002_create_lane_brake.sql")),
    (3, "create parked event", include_str!("../../migrations/0003_create_parked_event.sql")),
    (4, "create money", include_str!("../../migrations/0004_create_money.sql")),
    (5, "create group horizon", include_str!("../../migrations/0005_create_group_horizon.sql")),
    (6, "create transaction guard", include_str!("../../migrations/0006_create_transaction_guard.sql")),
    (7, "add outbox", include_str!("../../migrations/0007_add_outbox.sql")),
    (8, "restrict services", include_str!("../../migrations/0008_restrict_services.sql")),
];

/// Brings the schema up to date. Several processes may do this at once: an advisory lock orders them.
pub(crate) async fn migrate(pool: &PgPool) -> Result<(), sqlx::Error> {
    let migrations = MIGRATIONS
        .iter()
        .map(|&(version, name, sql)| {
            Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, sql.into_sql_str(), false)
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.dangerous_set_table_name(BOOKKEEPING);
    // An older program beside a newer one, during an upgrade: migrations only add.
    migrator.set_ignore_missing(true);
    migrator.run(pool).await.map_err(|error| match error {
        sqlx::migrate::MigrateError::Execute(error) | sqlx::migrate::MigrateError::ExecuteMigration(error, _) => error,
        other => sqlx::Error::Migrate(Box::new(other)),
    })
}

/// The migrations that were applied: version, name, and when in milliseconds since the Unix epoch.
pub(crate) async fn applied(connection: &mut PgConnection) -> Result<Vec<(i64, String, i64)>, sqlx::Error> {
    // The name is that of `BOOKKEEPING`.
    sqlx::query_as(
        "SELECT version, description, (extract(epoch FROM installed_on) * 1000)::bigint \
           FROM idem_migration WHERE success ORDER BY version",
    )
    .fetch_all(connection)
    .await
}

/// The names of this program's migrations that were not applied. `None`: there are no tables of the library's.
pub(crate) async fn pending(pools: &Pools) -> Result<Option<Vec<String>>, sqlx::Error> {
    on_service(pools, |connection| {
        Box::pin(async move {
            let is_there: bool = sqlx::query_scalar("SELECT to_regclass('idem_migration') IS NOT NULL")
                .fetch_one(&mut *connection)
                .await?;
            Ok(if is_there { Some(missing(&applied(connection).await?)) } else { None })
        })
    })
    .await
}

/// The names of this program's migrations that are not among the applied ones.
pub(crate) fn missing(applied: &[(i64, String, i64)]) -> Vec<String> {
    let is_applied = |version: i64| applied.iter().any(|(found, ..)| *found == version);
    let missing = MIGRATIONS.iter().filter(|(version, ..)| !is_applied(*version));
    missing.map(|(version, name, _)| format!("{version:04} {name}")).collect()
}

/// The identity of this database, which a restored copy shares.
pub(crate) async fn lineage(pool: &PgPool) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar("SELECT id FROM idem_lineage").fetch_one(pool).await
}
