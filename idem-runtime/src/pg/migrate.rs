//! The library's own migrations, with bookkeeping of their own.

use std::borrow::Cow;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{PgConnection, PgPool, SqlSafeStr};
use uuid::Uuid;

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

/// The migrations of this program: version and name.
pub(crate) fn all() -> impl Iterator<Item = (i64, &'static str)> {
    MIGRATIONS.iter().map(|&(version, name, _)| (version, name))
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

/// Whether every table the library needs is there.
pub(crate) async fn schema_is_present(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT bool_and(to_regclass(name) IS NOT NULL) \
         FROM unnest(ARRAY['idem_lineage', 'processed_event', 'consumer_progress', 'lane_brake', 'parked_event', \
                           'money_call', 'money_handler', 'group_horizon', 'transaction_guard', \
                           'idem_outbox', 'idem_relay', 'aggregate_version']) AS name",
    )
    .fetch_one(pool)
    .await
}

/// The identity of this database, which a restored copy shares.
pub(crate) async fn lineage(pool: &PgPool) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar("SELECT id FROM idem_lineage").fetch_one(pool).await
}
