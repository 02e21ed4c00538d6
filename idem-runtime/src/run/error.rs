//! Why a run ended.

use std::fmt;

use rdkafka::error::KafkaError;
use uuid::Uuid;

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program or its settings are wrong; everything that is, at once.
    #[error("{0}")]
    Setup(Problems),
    /// The database refused something that no waiting cures.
    #[error("the database refused: {0}")]
    Database(#[source] sqlx::Error),
    /// A consumer can't go on.
    #[error("the consumer of group `{group}` failed for good: {error}")]
    Consumer {
        /// The group.
        group: String,
        /// librdkafka's error.
        error: KafkaError,
    },
    /// The producer can't go on.
    #[error("the producer failed for good: {0}")]
    Producer(#[source] KafkaError),
    /// A handler ran COMMIT or ROLLBACK itself; or, where events share transactions, SET CONSTRAINTS ALL
    /// IMMEDIATE, which looks like a COMMIT to the guard of the transaction.
    #[error(
        "{handler} ended the transaction itself (COMMIT or ROLLBACK), so the dedup row and its writes are not one any more; \
         or it shares transactions and made all constraints immediate (SET CONSTRAINTS ALL IMMEDIATE; name those that you \
         mean). Remove the statement; the library commits after the handler, and rolls back when it fails"
    )]
    TransactionEnded {
        /// The handler.
        handler: String,
    },
    /// A bug of the library's.
    #[error("the library failed: {0}. Nothing is lost: what is not committed is delivered again")]
    Internal(String),
    /// The group's offsets in Kafka were committed for another database.
    #[error(
        "group `{group}` was last run on another database: Kafka's offsets of topic `{topic}` name the lineage {theirs}, \
         this database is {ours}. Nothing was processed. If this database is the right one now, accept it with \
         IDEM_ACCEPT_DATABASE={ours}"
    )]
    AnotherDatabase {
        /// The group.
        group: String,
        /// A topic with such offsets.
        topic: String,
        /// The lineage of the database in use.
        ours: Uuid,
        /// The lineage that Kafka's offsets name.
        theirs: Uuid,
    },
}

impl RunError {
    /// The one thing that is wrong before the start.
    pub(crate) fn setup(problem: String) -> Self {
        Self::Setup(Problems(vec![problem]))
    }
}

/// Everything that is wrong, one sentence each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} problem{} before the start", self.0.len(), if self.0.len() == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}
