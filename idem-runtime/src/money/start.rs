//! What is looked at before the first event, where a handler makes money calls.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection;

use super::Provider;
use crate::config::Config;
use crate::decide::money::check_timeouts;
use crate::handler::Handler;
use crate::pg::money as rows;
use crate::pg::session::{Pools, Session, bounded};
use crate::registry::money_name;
use crate::run::RunError;

/// What the settings alone say to be wrong.
pub(crate) fn problems(config: &Config, handlers: &[Handler]) -> Vec<String> {
    let limits: Vec<(String, Option<Duration>)> = with_money(handlers)
        .map(|handler| (format!("the `timeout` of {}", handler.spec.name), Some(handler.spec.timeout)))
        .collect();
    check_timeouts(("IDEM_MONEY_TIMEOUT", config.money_timeout), &limits)
}

/// Registers the names of money calls, and asks for the server's own limits. Returns what is wrong.
///
/// # Errors
/// When the database is away, or refuses.
pub(crate) async fn register(pools: &Pools, config: &Config, handlers: &[Handler]) -> Result<Vec<String>, sqlx::Error> {
    if with_money(handlers).next().is_none() {
        return Ok(Vec::new());
    }
    let mut session = Session::acquire(pools.handlers.pool()).await?;
    let found = bounded(async {
        let mut problems = Vec::new();
        let mut tx = session.connection().begin_with("BEGIN READ WRITE").await?;
        for handler in with_money(handlers) {
            let spec = &handler.spec;
            let operation = spec.money.and_then(|money| money.operation).unwrap_or_default();
            let other = rows::register(&mut tx, spec.topic, operation, spec.group, spec.name).await?;
            problems.extend(other.map(|other| {
                format!(
                    "{} of group `{}` makes money calls on topic `{}` {}, and so does group `{other}`: their keys would \
                     be the same; give this one another `operation = \"..\"`, or, if group `{other}` is gone for good, \
                     `idem group forget {other}`",
                    spec.name,
                    spec.group,
                    spec.topic,
                    money_name(operation)
                )
            }));
        }
        // A program that does not start takes no names.
        if problems.is_empty() { tx.commit().await? } else { tx.rollback().await? }
        let limits = rows::session_limits(session.connection()).await?;
        problems.extend(check_timeouts(("IDEM_MONEY_TIMEOUT", config.money_timeout), &limits));
        Ok(problems)
    })
    .await;
    session.end(&found);
    found
}

/// Where money calls go; none where no handler makes any.
pub(crate) fn provider<'a>(
    config: &Config,
    pools: &Pools,
    handlers: impl IntoIterator<Item = &'a Handler>,
) -> Result<Option<Arc<Provider>>, RunError> {
    if !handlers.into_iter().any(|handler| handler.spec.money.is_some()) {
        return Ok(None);
    }
    let provider = Provider::new(config, pools);
    provider.map(|provider| Some(Arc::new(provider))).map_err(RunError::setup)
}

fn with_money(handlers: &[Handler]) -> impl Iterator<Item = &Handler> {
    handlers.iter().filter(|handler| handler.spec.money.is_some())
}
