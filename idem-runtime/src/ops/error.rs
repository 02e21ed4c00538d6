//! Why an operator's question or order failed, and what to do.

use rdkafka::error::KafkaError;

/// What failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The database is away, or refused.
    #[error("the database did not {what}: {source}. Is IDEM_DATABASE_URL right, and the server up?")]
    Database {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: sqlx::Error,
    },
    /// The library's tables are not there.
    #[error(
        "the database has no idem tables: run `idem migrate`, or look whether IDEM_DATABASE_URL names the right one"
    )]
    NoTables,
    /// The broker is away, or refused.
    #[error("Kafka did not {what}: {source}. Is IDEM_KAFKA_BROKERS right, the broker up, and this client allowed to?")]
    Kafka {
        /// What was asked of it.
        what: String,
        /// What it said.
        source: KafkaError,
    },
    /// A topic is missing.
    #[error("topic `{topic}` does not exist: {hint}")]
    NoTopic {
        /// The topic.
        topic: String,
        /// What to do.
        hint: &'static str,
    },
    /// A partition can't be read now.
    #[error("partition {partition} of topic `{topic}` has no leader: wait until the broker that holds it is back")]
    NoLeader {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
    },
    /// There is no such record.
    #[error(
        "topic `{topic}` has no record at partition {partition}, offset {offset}: `idem dlq replay --dry-run` lists them"
    )]
    NoRecord {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The offset.
        offset: i64,
    },
    /// The existing dedup table can't be used, or not be changed.
    #[error("{}", .problems.join("; "))]
    Unusable {
        /// Each of them, and what to do.
        problems: Vec<String>,
    },
    /// The dedup table has no such day.
    #[error("the dedup table has no day `{name}`: `idem partitions` lists what it has")]
    NoPartition {
        /// The partition.
        name: String,
    },
    /// Nobody knows the group.
    #[error("neither Kafka nor the database knows a position of group `{group}`: `idem group list` shows the groups")]
    NoGroup {
        /// The group.
        group: String,
    },
    /// The order is only for a group without members.
    #[error("group `{group}` has running members: stop them first")]
    GroupRunning {
        /// The group.
        group: String,
    },
    /// There is no such money call.
    #[error("no money call has the key `{key}`: `idem money list` shows those that are open")]
    NoCall {
        /// The key.
        key: String,
    },
    /// A money call can't be resolved.
    #[error("the money call with the key `{key}` was not resolved: {why}")]
    CallOpen {
        /// The key.
        key: String,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// There is no such parked event.
    #[error("no event with the number {seq} is parked: `idem outbox list` shows those that are")]
    NotParked {
        /// The number.
        seq: i64,
    },
    /// A replay could not go on.
    #[error(
        "stopped after {replayed} replayed: topic `{topic}` did not take a record ({source}). Run it again when the \
         cause is gone: what has been processed by then is skipped"
    )]
    ReplayStopped {
        /// Records that were acknowledged before.
        replayed: u64,
        /// The replay topic.
        topic: String,
        /// What the producer said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl OpsError {
    pub(crate) fn database(what: &'static str, source: sqlx::Error) -> Self {
        const UNDEFINED_TABLE: &str = "42P01";
        match &source {
            sqlx::Error::Database(db) if db.code().as_deref() == Some(UNDEFINED_TABLE) => Self::NoTables,
            _ => Self::Database { what, source },
        }
    }

    /// For `map_err`: a question to the broker.
    pub(crate) fn kafka(what: impl Into<String>) -> impl FnOnce(KafkaError) -> Self {
        let what = what.into();
        move |source| Self::Kafka { what, source }
    }
}
