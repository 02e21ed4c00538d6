//! What the database role of a service may do: the schema lists what it needs (`idem_rights`).

use sqlx::PgConnection;

use super::session::{Pools, on_service};

/// SQLSTATE of a right that the role does not have.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// Of many rights that are missing, so many are named.
const NAMED: usize = 5;

/// What the role lacks, and who gives it. `None`: nothing.
///
/// # Errors
/// When the database is away, or has no such list.
pub(crate) async fn problem(pools: &Pools) -> Result<Option<String>, sqlx::Error> {
    let (role, lacking): (String, Vec<String>) = on_service(pools, |connection| {
        Box::pin(async move {
            sqlx::query_as("SELECT current_user::text, array(SELECT idem_lacking(current_user))")
                .fetch_one(connection)
                .await
        })
    })
    .await?;
    Ok((!lacking.is_empty()).then(|| {
        let (named, others) = lacking.split_at(lacking.len().min(NAMED));
        let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        format!("the database role `{role}` lacks {}{others}: {}", named.join(", "), cure(&role))
    }))
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
