//! What the database role of a service may do: the schema lists what it needs (`idem_rights`).

use sqlx::PgConnection;

use super::session::{Pools, on_service};

/// SQLSTATE of a right that the role does not have.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// What the role lacks, and who gives it. `None`: nothing.
///
/// # Errors
/// When the database is away, or has no such list.
pub(crate) async fn problem(pools: &Pools) -> Result<Option<String>, sqlx::Error> {
    let (role, lacking): (String, Vec<String>) = on_service(pools, |connection| {
        Box::pin(async move {
            sqlx::query_as(
                "SELECT current_user::text, coalesce(array_agg(privilege || ' on ' || name ORDER BY name, privilege), '{}') \
                   FROM idem_rights() \
                  WHERE NOT coalesce(CASE kind \
                            WHEN 'TABLE' THEN has_table_privilege(to_regclass(name), privilege) \
                            WHEN 'SEQUENCE' THEN has_sequence_privilege(to_regclass(name), privilege) \
                            ELSE has_function_privilege(to_regprocedure(name), privilege) END, false)",
            )
            .fetch_one(connection)
            .await
        })
    })
    .await?;
    Ok((!lacking.is_empty()).then(|| format!("the database role `{role}` lacks {}: {}", lacking.join(", "), cure(&role))))
}

/// What to do about a right that is missing before anything could be asked. `None`: the error is another one.
pub(crate) fn refused(error: &sqlx::Error, role: &str, migrates: bool) -> Option<String> {
    let sqlx::Error::Database(refused) = error else { return None };
    if refused.code().as_deref() != Some(INSUFFICIENT_PRIVILEGE) {
        return None;
    }
    // Names objects of the library's own schema.
    let said = refused.message();
    Some(if migrates {
        format!(
            "the database role `{role}` may not change the schema ({said}): set IDEM_MIGRATE=false, and {}",
            cure(role)
        )
    } else {
        format!("the database role `{role}` lacks a right ({said}): {}", cure(role))
    })
}

fn cure(role: &str) -> String {
    format!("run `idem migrate --grant {role}` with the role that owns the tables")
}

/// Gives a role what a service needs. Only the owner of the tables can.
///
/// # Errors
/// When there is no such role, or this one does not own the tables.
pub(crate) async fn grant(connection: &mut PgConnection, role: &str) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT idem_grant(quote_ident($1)::regrole)").bind(role).execute(connection).await.map(drop)
}
