//! What an operator asks and does, as functions: the `idem` command prints what they return.
//!
//! They work beside running consumers and join no group. Nothing of a payload or a key is in what
//! they return, unless it was asked for.
//!
//! ```no_run
//! use idem_runtime::ops::{self, Ops, dlq, replay};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let ops = Ops::new(idem_runtime::Config::from_env()?);
//! for group in dlq::list(&ops, "billing", &dlq::Filter::default(), &mut ops::silent).await?.groups {
//!     println!("{} dead letters: {:?}", group.letters, group.reason);
//! }
//! let fixed = replay::Options { filter: dlq::Filter::reason("permanent"), ..Default::default() };
//! println!("{} replayed", replay::replay(&ops, "billing", &fixed, &mut ops::silent).await?.replayed);
//! # Ok(())
//! # }
//! ```

mod dedup;
pub mod dlq;
mod error;
pub mod forget;
pub mod groups;
pub mod money;
pub mod offsets;
pub mod outbox;
pub mod partitions;
pub mod replay;
pub mod settings;
pub mod status;
mod text;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;

pub use dedup::DedupState;
pub use error::OpsError;
pub use text::{Bytes, Timestamp};

use crate::config::Config;
use crate::kafka::observer::Observer;
use crate::pg::session::{Pools, on_service};

/// Where the servers are. Connects to nothing until it is asked something.
pub struct Ops {
    config: Arc<Config>,
    pools: Pools,
}

impl Ops {
    /// For the servers of these settings. To be called inside a tokio runtime.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let pools = Pools::new(&config.database, &config.client_id, 1, Duration::from_secs(60));
        Self { config: Arc::new(config), pools }
    }

    fn observer(&self, group: &str) -> Observer {
        Observer::new(&self.config, group)
    }

    /// Asks the database, within a bound.
    async fn database<T>(
        &self,
        what: &'static str,
        ask: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
    ) -> Result<T, OpsError> {
        on_service(&self.pools, ask).await.map_err(|error| OpsError::database(what, error))
    }
}

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ops").field("config", &self.config).finish_non_exhaustive()
    }
}

/// How far the reading of a topic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Offsets passed.
    pub read: u64,
    /// Offsets to pass: the end that was seen at the beginning.
    pub total: u64,
}

/// Who is told of the progress.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);

/// An [`OnProgress`] that tells nobody.
pub fn silent(_: Progress) {}
