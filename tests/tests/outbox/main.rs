//! Events leave with the change that they tell of: once it is committed, in the order of their key, under the
//! same id however often.

mod away;
mod chain;
mod desk;
mod partitions;
mod placed;
mod publish;
mod relay;
mod restore;
mod trouble;
mod versions;

use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
