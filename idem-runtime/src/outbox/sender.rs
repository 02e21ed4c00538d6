//! The relay's producer.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::future_producer::Delivery;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _, PurgeConfig};

use super::check;
use crate::config::Config;
use crate::kafka::client_config;
use crate::kafka::placed::is_placed;
use crate::kafka::producer::LogContext;
use crate::pg::outbox::Row;

/// Idempotent, with acks from all in-sync replicas. What it can't deliver within its timeout it gives up.
pub(super) struct Sender {
    together: FutureProducer<LogContext>,
    /// Sends each record in a batch of its own; made when it is first needed.
    alone: OnceLock<FutureProducer<LogContext>>,
    config: ClientConfig,
}

/// How a row was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    /// In a batch with others.
    Others,
    Nobody,
}

/// Why a row was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SendError {
    /// The broker refused it, or another record of its batch: only alone it shows which.
    Refused(RDKafkaErrorCode),
    /// The broker or the topic can't be written to now.
    NotNow(KafkaError),
    /// No broker has said where it is: nobody knows whether it is in the topic.
    Unplaced,
    /// The client can't go on.
    Fatal(KafkaError),
}

impl Sender {
    pub(super) fn new(config: &Config, timeout: Duration) -> Result<Self, KafkaError> {
        let mut config = client_config::producer(config);
        config.set("message.timeout.ms", timeout.as_millis().to_string());
        let together = config.create_with_context(LogContext)?;
        config.set("batch.num.messages", "1");
        Ok(Self { together, alone: OnceLock::new(), config })
    }

    /// Queues a row at once, so that rows leave in the order of the calls, and gives its acknowledgement.
    pub(super) fn send(
        &self,
        row: &Row,
        with: With,
    ) -> Result<impl Future<Output = Result<Delivery, SendError>> + use<>, SendError> {
        let producer = match with {
            With::Others => &self.together,
            With::Nobody => self.alone()?,
        };
        let record: FutureRecord<'_, str, [u8]> = FutureRecord {
            topic: &row.topic,
            partition: None,
            payload: Some(&row.payload),
            key: Some(&row.key),
            timestamp: Some(row.occurred_at_millis),
            headers: Some(headers(row)),
        };
        let queued = producer.send_result(record).map_err(|(error, _)| sort(error, producer))?;
        let producer = producer.clone();
        Ok(async move {
            match queued.await {
                Ok(Ok(delivery)) if is_placed(&delivery) => Ok(delivery),
                Ok(Ok(_)) => Err(SendError::Unplaced),
                Ok(Err((error, _))) => Err(sort(error, &producer)),
                Err(_canceled) => Err(SendError::NotNow(KafkaError::Canceled)),
            }
        })
    }

    /// Throws away what was queued and is not on its way. What is can still be acknowledged.
    pub(super) fn purge_queued(&self) {
        self.throw_away(PurgeConfig::default().queue());
    }

    /// Throws away what was queued, and does not wait for what is on its way.
    pub(super) fn purge(&self) {
        self.throw_away(PurgeConfig::default().queue().inflight());
    }

    fn throw_away(&self, what: PurgeConfig) {
        for producer in [Some(&self.together), self.alone.get()].into_iter().flatten() {
            producer.purge(what);
        }
    }

    fn alone(&self) -> Result<&FutureProducer<LogContext>, SendError> {
        if self.alone.get().is_none() {
            let made = self.config.create_with_context(LogContext).map_err(SendError::Fatal)?;
            let _ = self.alone.set(made);
        }
        self.alone.get().ok_or(SendError::NotNow(KafkaError::Canceled))
    }
}

fn headers(row: &Row) -> OwnedHeaders {
    let id = row.event_id.hyphenated().to_string();
    let headers = OwnedHeaders::new_with_capacity(row.headers.len() + 1);
    let headers = headers.insert(Header { key: check::EVENT_ID, value: Some(&id) });
    row.headers.iter().fold(headers, |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
}

fn sort(error: KafkaError, producer: &FutureProducer<LogContext>) -> SendError {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(
            code @ (Code::MessageSizeTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::PolicyViolation
            | Code::InvalidTopic),
        ) => SendError::Refused(code),
        Some(Code::Fatal) => SendError::Fatal(error),
        _ => match producer.client().fatal_error() {
            Some((code, _)) => SendError::Fatal(KafkaError::MessageProduction(code)),
            None => SendError::NotNow(error),
        },
    }
}
