//! Everything that talks to PostgreSQL.

pub(crate) mod adopt;
pub(crate) mod brakes;
pub(crate) mod commit;
pub(crate) mod dedup;
pub(crate) mod dedup_many;
pub(crate) mod event_session;
pub(crate) mod maintenance;
pub(crate) mod migrate;
pub(crate) mod money;
pub(crate) mod outbox;
pub(crate) mod parked;
pub(crate) mod pooler;
pub(crate) mod progress;
pub(crate) mod rights;
pub(crate) mod session;
pub(crate) mod versions;
