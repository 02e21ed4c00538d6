//! Moving a record on: to a retry topic, or to the dead letter queue.

use super::names;
use super::producer::{Producer, PublishError};
use super::record::{Origin, Record};
use crate::decide::outcome::Reason;
use crate::telemetry::trace_context::TraceContext;

/// What the headers of the moved record say.
pub(crate) struct Report<'a> {
    /// Where the event was first read.
    pub origin: &'a Origin,
    /// How often it has failed by now.
    pub attempt: u32,
    /// When it first failed, milliseconds since the Unix epoch.
    pub first_failed_at_millis: u64,
    /// Which handler failed.
    pub handler: &'a str,
    /// What failed; bounded, nothing of a payload.
    pub error: &'a str,
    /// Until when it waits, for a retry.
    pub due_at_millis: Option<u64>,
    /// Why it is a dead letter.
    pub reason: Option<Reason>,
    /// The trace that began with the attempt, if the record came without one.
    pub trace: Option<TraceContext>,
}

impl Report<'_> {
    fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            (names::ORIGIN_TOPIC, self.origin.topic.to_string()),
            (names::ORIGIN_PARTITION, self.origin.partition.to_string()),
            (names::ORIGIN_OFFSET, self.origin.offset.to_string()),
            (names::ATTEMPT, self.attempt.to_string()),
            (names::FIRST_FAILED_AT, self.first_failed_at_millis.to_string()),
            (names::HANDLER, self.handler.to_owned()),
            (names::ERROR, self.error.to_owned()),
        ];
        headers.extend(self.origin.timestamp_millis.map(|millis| (names::ORIGIN_TIMESTAMP, millis.to_string())));
        headers.extend(self.due_at_millis.map(|millis| (names::DUE_AT, millis.to_string())));
        if let Some(replay) = self.origin.replay {
            headers.push((names::REPLAYED_AT, replay.at_millis.to_string()));
            headers.push((names::REPLAY_COUNT, replay.count.to_string()));
            // A dead letter begins anew: whoever replays it decides again.
            if replay.may_be_expired && self.reason.is_none() {
                headers.push((names::ALLOW_EXPIRED, "true".to_owned()));
            }
        }
        headers.extend(self.reason.map(|reason| (names::REASON, reason.as_str().to_owned())));
        let trace = self.trace.iter().flat_map(TraceContext::headers);
        headers.extend(trace.map(|(name, value)| (name, value.to_owned())));
        headers
    }
}

/// Publishes the record with its key, value and foreign headers, and the report in place of the
/// library's own headers.
///
/// Its partition is the key's, never the origin's number: the topics may differ in partitions.
pub(crate) async fn publish(
    producer: &Producer,
    topic: &str,
    record: &Record,
    report: &Report<'_>,
) -> Result<(), PublishError> {
    let headers = report.headers();
    let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    producer.publish(topic, record.key.as_deref(), record.payload.as_deref(), record.headers_with(&headers)).await
}

/// Publishes to the dead letter queue. A record that does not fit goes without its value, and one
/// that still does not fit with nothing but the report: its origin says where the whole one is.
pub(crate) async fn dead_letter(
    producer: &Producer,
    topic: &str,
    record: &Record,
    report: &Report<'_>,
) -> Result<(), PublishError> {
    match publish(producer, topic, record, report).await {
        Err(PublishError::TooLarge) => {}
        result => return result,
    }
    tracing::warn!(
        topic,
        origin_topic = &*report.origin.topic,
        origin_partition = report.origin.partition,
        origin_offset = report.origin.offset,
        "the dead letter is too large for its topic and goes there without its value"
    );
    let headers = report.headers();
    let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    match producer.publish(topic, record.key.as_deref(), None, record.headers_with(&headers)).await {
        Err(PublishError::TooLarge) => {
            producer.publish(topic, None, None, super::headers::replace(None, &[], &headers)).await
        }
        result => result,
    }
}
