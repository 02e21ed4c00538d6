//! Publishing to a group's own topics.

use std::future::Future;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};

use super::client_config;
use crate::config::Config;

/// librdkafka's log lines and errors, through `tracing`. They name brokers and topics, no payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogContext;

impl ClientContext for LogContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "librdkafka");
    }
}

pub(crate) fn log_line(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        // A property of the other kind of client is harmless: users give one list for both.
        _ if facility == "CONFWARN" => tracing::debug!(facility, message, "librdkafka"),
        // Every refused connection is one; the consumer says once that the broker is away.
        _ if facility == "FAIL" => tracing::debug!(facility, message, "librdkafka"),
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
            tracing::warn!(facility, message, "librdkafka");
        }
        _ => tracing::debug!(facility, message, "librdkafka"),
    }
}

/// The idempotent producer of retries and dead letters, shared by every group of the process.
#[derive(Clone)]
pub(crate) struct Producer {
    inner: FutureProducer<LogContext>,
}

/// Why a record was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    /// The topic does not take a record of this size.
    #[error("the record is too large for the topic")]
    TooLarge,
    /// The broker or the topic can't be written to now.
    #[error("not acknowledged: {0}")]
    Unavailable(KafkaError),
    /// The client can't go on.
    #[error("the producer failed for good: {0}")]
    Fatal(KafkaError),
}

impl Producer {
    pub(crate) fn new(config: &Config) -> Result<Self, KafkaError> {
        Ok(Self { inner: client_config::producer(config).create_with_context(LogContext)? })
    }

    /// Publishes, and returns when all in-sync replicas have acknowledged it.
    pub(crate) async fn publish(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: OwnedHeaders,
    ) -> Result<(), PublishError> {
        let sent = self.inner.send(record(topic, key, payload, headers), Duration::from_secs(10)).await;
        sent.map(drop).map_err(|(error, _)| self.refused(error))
    }

    /// Queues a record at once, so that records leave in the order of the calls, and gives its
    /// acknowledgement.
    pub(crate) fn enqueue(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: OwnedHeaders,
    ) -> impl Future<Output = Result<(), PublishError>> + use<> {
        let queued = self.inner.send_result(record(topic, key, payload, headers)).map_err(|(error, _)| error);
        let producer = self.clone();
        async move {
            let answer = match queued {
                Ok(delivery) => delivery.await.map(|answer| answer.map_err(|(error, _)| error)),
                Err(error) => Ok(Err(error)),
            };
            match answer {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(producer.refused(error)),
                // The producer is gone before its record: nobody knows.
                Err(_canceled) => Err(PublishError::Unavailable(KafkaError::Canceled)),
            }
        }
    }

    fn refused(&self, error: KafkaError) -> PublishError {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::MessageSizeTooLarge) => PublishError::TooLarge,
            Some(RDKafkaErrorCode::Fatal) => PublishError::Fatal(error),
            _ => match self.inner.client().fatal_error() {
                Some((code, _)) => PublishError::Fatal(KafkaError::MessageProduction(code)),
                None => PublishError::Unavailable(error),
            },
        }
    }

    /// Waits for what is on its way.
    pub(crate) async fn flush(&self, bound: Duration) {
        let producer = self.inner.clone();
        let _ = super::on_thread(move || producer.flush(bound)).await;
    }
}

fn record<'a>(
    topic: &'a str,
    key: Option<&'a [u8]>,
    payload: Option<&'a [u8]>,
    headers: OwnedHeaders,
) -> FutureRecord<'a, [u8], [u8]> {
    FutureRecord { topic, partition: None, payload, key, timestamp: None, headers: Some(headers) }
}
