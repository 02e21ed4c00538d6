//! Why the demonstration could not be given.

use std::process::ExitStatus;

use idem_runtime::RunError;
use idem_runtime::testing::TestingError;
use rdkafka::error::KafkaError;

#[derive(Debug, thiserror::Error)]
pub enum QuickstartError {
    #[error(transparent)]
    Servers(#[from] TestingError),
    #[error("the handlers stopped: {0}")]
    Run(#[from] RunError),
    #[error("the database refused to {what}: {source}")]
    Database { what: &'static str, source: sqlx::Error },
    #[error("Kafka refused to {what}: {source}")]
    Kafka { what: String, source: KafkaError },
    #[error("the consumer process ended by itself ({0}); what it said is above")]
    ConsumerEnded(ExitStatus),
    #[error("cannot find this program's own file: {0}")]
    OwnProgram(std::io::Error),
    #[error("the consumer process has no output to read")]
    NoOutput,
    #[error("cannot wait for Ctrl-C: {0}")]
    CtrlC(std::io::Error),
}

impl QuickstartError {
    /// For `map_err`: a statement that failed.
    pub fn database(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { what, source }
    }

    /// For `map_err`: a request to the broker that failed.
    pub fn kafka(what: impl Into<String>) -> impl FnOnce(KafkaError) -> Self {
        let what = what.into();
        move |source| Self::Kafka { what, source }
    }
}
