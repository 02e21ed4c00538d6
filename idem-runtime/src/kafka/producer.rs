//! Publishing to a group's own topics.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Message, OwnedHeaders, OwnedMessage};
use rdkafka::producer::future_producer::Delivery;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};

use super::client_config;
use super::placed::is_placed;
use super::refusal::told;
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

/// Longest wait for a place in the producer's queue.
const QUEUE_WAIT: Duration = Duration::from_secs(10);

/// The idempotent producer of retries and dead letters, shared by every group of the process.
#[derive(Clone)]
pub(crate) struct Producer {
    inner: FutureProducer<LogContext>,
    /// Sends each record in a batch of its own; made when it is first needed.
    single: Arc<OnceLock<FutureProducer<LogContext>>>,
    single_config: ClientConfig,
}

/// Why a record was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    /// The topic does not take a record of this size.
    #[error("the record is too large for the topic")]
    TooLarge,
    /// The broker or the topic can't be written to now.
    #[error("not acknowledged: {}", told(.0))]
    Unavailable(KafkaError),
    /// Nobody knows whether it is in the topic.
    #[error("not acknowledged: no broker has said where the record is")]
    Unplaced,
    /// The client can't go on.
    #[error("the producer failed for good: {0}")]
    Fatal(KafkaError),
}

impl Producer {
    pub(crate) fn new(config: &Config) -> Result<Self, KafkaError> {
        let config = client_config::producer(config);
        let inner = config.create_with_context(LogContext)?;
        let mut single_config = config;
        single_config.set("batch.num.messages", "1");
        Ok(Self { inner, single: Arc::default(), single_config })
    }

    /// Publishes, and returns when all in-sync replicas have acknowledged it.
    pub(crate) async fn publish(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: OwnedHeaders,
    ) -> Result<(), PublishError> {
        match self.inner.send(record(topic, key, payload, headers), QUEUE_WAIT).await {
            Ok(delivery) => placed(&delivery),
            Err((error, record)) => self.after(error, record).await,
        }
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
            match queued {
                Err(error) => Err(producer.refused(error)),
                Ok(delivery) => match delivery.await {
                    Ok(Ok(delivery)) => placed(&delivery),
                    Ok(Err((error, record))) => producer.after(error, record).await,
                    // The producer is gone before its record: nobody knows.
                    Err(_canceled) => Err(PublishError::Unavailable(KafkaError::Canceled)),
                },
            }
        }
    }

    /// The broker refuses a batch that is larger than the topic takes, also where each of its records
    /// would fit, and librdkafka does not split it: only alone a record shows that it is too large.
    async fn after(&self, error: KafkaError, refused: OwnedMessage) -> Result<(), PublishError> {
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::MessageSizeTooLarge) {
            return Err(self.refused(error));
        }
        let single = self.single().map_err(PublishError::Unavailable)?;
        let headers = refused.headers().cloned().unwrap_or_default();
        let sent = single.send(record(refused.topic(), refused.key(), refused.payload(), headers), QUEUE_WAIT);
        placed(&sent.await.map_err(|(error, _)| self.refused(error))?)
    }

    fn single(&self) -> Result<&FutureProducer<LogContext>, KafkaError> {
        if self.single.get().is_none() {
            // Another task that is faster has made as good a one.
            let _ = self.single.set(self.single_config.create_with_context(LogContext)?);
        }
        self.single.get().ok_or(KafkaError::Canceled)
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

fn placed(delivery: &Delivery) -> Result<(), PublishError> {
    if is_placed(delivery) { Ok(()) } else { Err(PublishError::Unplaced) }
}

fn record<'a>(
    topic: &'a str,
    key: Option<&'a [u8]>,
    payload: Option<&'a [u8]>,
    headers: OwnedHeaders,
) -> FutureRecord<'a, [u8], [u8]> {
    FutureRecord { topic, partition: None, payload, key, timestamp: None, headers: Some(headers) }
}
