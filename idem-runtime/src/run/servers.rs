//! What a run waits for before it consumes: a database whose schema is up to date, and topics that are there.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::running::Running;
use super::{Problems, RunError};
use crate::decide::sql_error;
use crate::error::Class;
use crate::group::GroupContext;
use crate::handler::Handler;
use crate::health::Obstacle;
use crate::kafka::admin::{self, Need, TopicError};
use crate::money;
use crate::pg::adopt::{self, AdoptError};
use crate::pg::maintenance;
use crate::pg::migrate;
use crate::pg::pooler;
use crate::pg::rights;
use crate::pg::session::Pools;

/// Pause before a server that could not be reached at the start is tried again.
const START_PAUSE: Duration = Duration::from_secs(1);

impl Running {
    /// Waits for the database, brings its schema up to date, and reads its lineage. `None`: asked
    /// to stop.
    pub(crate) async fn database(&self, pools: &Pools, handlers: &[Handler]) -> Result<Option<Uuid>, RunError> {
        let groups = handlers.iter().map(|handler| handler.spec.group.to_owned()).collect();
        loop {
            let ready = async {
                let unusable = |error| match error {
                    AdoptError::Unusable(problems) => Ok(Err(RunError::Setup(Problems(problems)))),
                    AdoptError::Database(error) => Err(error),
                };
                if let Some(problem) = pooler::problem(pools).await? {
                    return Ok(Err(RunError::setup(problem)));
                }
                if let Err(error) = adopt::check(pools, &groups).await {
                    return unusable(error);
                }
                if self.config.migrate {
                    migrate::migrate(&pools.service).await?;
                } else if let Some(problem) = not_migrated(migrate::pending(pools).await?) {
                    return Ok(Err(RunError::setup(problem)));
                }
                if let Some(problem) = rights::problem(pools).await? {
                    return Ok(Err(RunError::setup(problem)));
                }
                if let Err(error) = adopt::claim(pools, &groups).await {
                    return unusable(error);
                }
                adopt::settle_horizons(pools, self.config.clock_skew).await?;
                let ahead = maintenance::days_ahead(self.config.clock_skew);
                if let Err(error) = maintenance::attach_ahead(pools, ahead).await {
                    tracing::warn!(%error, "could not attach day partitions to the dedup table; trying again later");
                }
                let problems = money::start::register(pools, &self.config, handlers).await?;
                if !problems.is_empty() {
                    return Ok(Err(RunError::Setup(Problems(problems))));
                }
                migrate::lineage(&pools.service).await.map(Ok)
            };
            let ready: Result<Result<Uuid, RunError>, sqlx::Error> = tokio::select! {
                ready = ready => ready,
                () = self.stop.requested() => return Ok(None),
            };
            match ready {
                Ok(ready) => return ready.map(Some),
                Err(error) if sql_error::class(&error) == Class::Infrastructure => {
                    tracing::warn!(%error, "the database is not usable; waiting for it");
                    self.health.set(Obstacle::Start, format!("the database is not usable: {error}"));
                }
                Err(error) => {
                    let role = self.config.database.get_username();
                    return Err(match rights::refused(&error, role, self.config.migrate) {
                        Some(problem) => RunError::setup(problem),
                        None => RunError::Database(error),
                    });
                }
            }
            if !self.stop.sleep(START_PAUSE).await {
                return Ok(None);
            }
        }
    }

    /// Waits for the broker, and makes or names missing topics. `None`: asked to stop.
    pub(super) async fn topics(&self, groups: &[Arc<GroupContext>]) -> Result<Option<HashSet<String>>, RunError> {
        let needs: Vec<Need> = groups
            .iter()
            .map(|group| Need {
                group: group.name.to_string(),
                topics: group.topics.keys().copied().collect(),
                tiers: group.all_tiers(),
                concurrency: group.concurrency,
            })
            .collect();
        loop {
            let ready = tokio::select! {
                ready = admin::ensure(&self.config, &needs) => ready,
                () = self.stop.requested() => return Ok(None),
            };
            match ready {
                Ok(existing) => return Ok(Some(existing)),
                Err(TopicError::Missing(problems)) => return Err(RunError::Setup(Problems(problems))),
                Err(error @ TopicError::Unreachable(_)) => {
                    self.health.set(Obstacle::Start, error.to_string());
                    tracing::warn!(%error, "waiting for the broker");
                }
            }
            if !self.stop.sleep(START_PAUSE).await {
                return Ok(None);
            }
        }
    }
}

/// What is wrong with a schema that this program may not bring up to date.
fn not_migrated(pending: Option<Vec<String>>) -> Option<String> {
    const CURE: &str = "run `idem migrate` with the role that owns the tables, or set IDEM_MIGRATE=true";
    match pending {
        None => Some(format!("the database has no idem tables that this role can see: {CURE}")),
        Some(pending) if pending.is_empty() => None,
        Some(pending) => Some(format!("the schema lacks {}: {CURE}", pending.join(", "))),
    }
}
