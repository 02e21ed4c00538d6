//! What reads foreign bytes, for `fuzz/` and for the tests below: each function takes any bytes, and
//! panics where a promise of the reader's does not hold. No part of the library's interface.

use std::time::Duration;

use serde::Deserialize;

use crate::config::Config;
use crate::decide::position::{Committed, CommittedBy};
use crate::decide::{money_key, retry};
use crate::event::{self, EventId};
use crate::handler::RawHeader;
use crate::kafka::record::{Origin, Record, Replay};
use crate::kafka::{headers, names};
use crate::ops::dlq::Letter;
use crate::telemetry::trace_context::TraceContext;

/// A record's value, as the handlers of a topic read it.
pub fn event(bytes: &[u8]) {
    #[derive(Deserialize)]
    struct Sample {
        event_id: EventId,
        #[serde(default)]
        note: Option<String>,
    }
    if let Ok(sample) = event::decode_json::<Sample>(bytes) {
        assert_eq!(sample.event_id.to_string().parse(), Ok(sample.event_id), "one spelling");
        drop(sample.note);
    }
    for field in [event::TypeField::EventType, event::TypeField::CloudEvents] {
        match event::event_type(bytes, field) {
            Ok(Some(of)) => assert!(bytes.len() >= of.len()),
            Ok(None) => {}
            Err(error) => assert!(error.to_string().len() < 200, "an error quotes nothing"),
        }
    }
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) {
        let canonical = money_key::canonical_json(&value);
        assert!(serde_json::from_str::<serde_json::Value>(&canonical).is_ok(), "canonical JSON is JSON");
    }
}

/// An event's id.
pub fn event_id(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(id) = text.parse::<EventId>() {
        assert!(id.to_string().eq_ignore_ascii_case(&text));
        assert!(id.unix_millis().is_some_and(|millis| millis < 1 << 48));
    }
}

/// The headers of a record on any topic.
pub fn record_headers(bytes: &[u8]) {
    let (record, raw) = record_of(bytes);
    let read = record.raw_headers();
    let to_nul =
        |(name, value): &RawHeader| (name.split(|byte| *byte == 0).next().unwrap_or_default().to_vec(), value.clone());
    assert_eq!(read, raw.iter().map(to_nul).collect::<Vec<_>>(), "every byte is kept, but behind a name's zero");
    if let Some(context) = TraceContext::of(&read) {
        assert_eq!(context.parent.len(), 55);
        assert!(context.state.is_none_or(|state| state.is_ascii() && state.len() <= 512));
    }
    let is_own = |name: &[u8]| names::OWN_HEADERS.iter().any(|own| own.as_bytes() == name);
    let foreign = |headers: &[RawHeader]| -> Vec<RawHeader> {
        headers.iter().filter(|(name, _)| !is_own(name)).cloned().collect()
    };
    let moved = headers::read(record.headers_with(&[(names::ATTEMPT, b"7")]).as_borrowed());
    assert_eq!(foreign(&moved), foreign(&read), "foreign headers move on as they are");
    assert_eq!(moved.iter().filter(|(name, _)| is_own(name)).count(), 1);
    if let Some(origin) = Origin::of_own(&read) {
        let replay = Replay { count: 3, at_millis: 4, may_be_expired: true };
        let replayed = headers::read(record.headers_for_replay(replay).as_borrowed());
        let expected = Origin { attempt: 0, due_at_millis: None, replay: Some(replay), ..origin };
        assert_eq!(Origin::of_own(&replayed), Some(expected), "a replay keeps where it comes from");
    }
}

/// A record of a dead letter queue, as an operator sees it.
pub fn dead_letter(bytes: &[u8]) {
    let (record, _) = record_of(bytes);
    let letter = Letter::of(&record, &record.raw_headers());
    assert!(serde_json::to_string(&letter).is_ok());
    for text in [&letter.reason, &letter.handler, &letter.error].into_iter().flatten() {
        let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        assert!(!text.contains(obeyed), "a terminal obeys control characters");
    }
}

/// The names of topics, `Retry-After`, and the metadata of commits.
pub fn texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(delay) = retry::parse_delay(&text) {
        assert_eq!(retry::delay_name(delay), *text, "one spelling");
        let group = "billing.retry";
        assert_eq!(names::retry_delay(group, &names::retry_topic(group, delay)), Some(delay));
        assert!(retry::due_at_millis(u64::MAX, delay, 1.0) >= retry::due_at_millis(0, delay, 0.0));
        let _ = retry::longest_wait(delay.min(Duration::from_secs(u64::MAX / 2)));
    }
    let _ = names::retry_delay("billing", &text);
    let _ = retry::parse_retry_after(&text, 1_764_446_400_000);
    let committed = Committed::parse(5, &text);
    if let (CommittedBy::Lineage(lineage), read) = (committed.by, committed.read) {
        assert_eq!(Committed::parse(5, &CommittedBy::metadata(lineage, read)), committed);
    }
}

/// Settings: lines of which the first byte chooses the variable.
pub fn settings(bytes: &[u8]) {
    let vars = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let (which, value) = line.split_first()?;
        let variable = SETTINGS[usize::from(*which) % SETTINGS.len()];
        Some((variable, String::from_utf8_lossy(value).replace('\0', "")))
    });
    match Config::from_vars(vars) {
        Ok(config) => drop(format!("{config:?}")),
        Err(errors) => assert!(!errors.0.is_empty() && errors.to_string().lines().count() > errors.0.len()),
    }
}

/// Not those of librdkafka, which reads files that they name.
const SETTINGS: [&str; 20] = [
    "IDEM_DATABASE_URL",
    "IDEM_KAFKA_BROKERS",
    "IDEM_POOL_SIZE",
    "IDEM_AUTO_OFFSET_RESET",
    "IDEM_UNMATCHED",
    "IDEM_RETRY",
    "IDEM_DEDUP_WINDOW",
    "IDEM_DEDUP_CLOCK_SKEW",
    "IDEM_DEDUP_MAX_HOLD",
    "IDEM_MONEY_BASE_URL",
    "IDEM_MONEY_TIMEOUT",
    "IDEM_MONEY_KEY_TTL",
    "IDEM_MONEY_KEY_FORMAT",
    "IDEM_MIGRATE",
    "IDEM_SHUTDOWN_GRACE",
    "IDEM_MEMORY",
    "IDEM_DLQ_BRAKE",
    "IDEM_ACCEPT_DATABASE",
    "IDEM_CLIENT_ID",
    "IDEM_STRICT",
];

/// A record made of bytes, and its headers: for each two sizes, a name and a value. A size of 255 is no
/// value; a name from 200 up is one of the library's own.
fn record_of(mut bytes: &[u8]) -> (Record, Vec<RawHeader>) {
    let mut raw = Vec::new();
    while let [name, value, rest @ ..] = bytes {
        let (name, value) = (usize::from(*name), usize::from(*value));
        let (name, rest) = match name.checked_sub(200) {
            Some(own) => (names::OWN_HEADERS[own % names::OWN_HEADERS.len()].as_bytes(), rest),
            None => rest.split_at(name.min(rest.len())),
        };
        let (value, rest) = if value == 255 { (None, rest) } else { split(rest, value) };
        raw.push((name.to_vec(), value));
        bytes = rest;
    }
    let headers = (!raw.is_empty()).then(|| headers::from_raw(&raw));
    let record = Record {
        topic: "billing.dlq".into(),
        partition: 0,
        offset: 1,
        timestamp_millis: bytes.first().map(|byte| i64::MIN >> (byte % 64)),
        key: None,
        payload: Some(bytes.to_vec()),
        headers,
    };
    (record, raw)
}

fn split(bytes: &[u8], at: usize) -> (Option<Vec<u8>>, &[u8]) {
    let (value, rest) = bytes.split_at(at.min(bytes.len()));
    (Some(value.to_vec()), rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const READERS: [fn(&[u8]); 6] = [event, event_id, record_headers, dead_letter, texts, settings];

    /// Bytes that look like what the readers expect, more or less.
    fn almost() -> impl Strategy<Value = Vec<u8>> {
        let id = "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-fA-F]{12}";
        let number = "-?[0-9]{1,20}(ms|s|m|h|d|MiB)?";
        let date = "(Mon|Sun), [0-9]{2} (Nov|Xyz) [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT";
        let json = r#"[ \n]?\{"event_id": ?("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}"|1|null),"(note|event_type)":("\\u0000x"|-0.0|1e400|\[\{\}\])\}?"#;
        let metadata = "idem1:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(:-?[0-9]{1,20}){0,3}";
        let texts = prop_oneof![id, number, date, json, metadata].prop_map(String::into_bytes);
        // Own headers with numbers in them.
        let own = prop::collection::vec((200_u8..=255, "-?[0-9]{0,20}|orders|true|\\x1b"), 0..14).prop_map(|headers| {
            headers
                .into_iter()
                .flat_map(|(name, value)| [&[name, value.len() as u8], value.as_bytes()].concat())
                .collect()
        });
        let settings = prop::collection::vec((0_u8..20, "[ -~]{0,12}|[0-9]{1,20}[a-z]{0,3}"), 0..8).prop_map(|lines| {
            lines.into_iter().flat_map(|(which, value)| [&[which], value.as_bytes(), b"\n"].concat()).collect()
        });
        prop_oneof![3 => texts, 2 => own, 1 => settings, 1 => prop::collection::vec(any::<u8>(), 0..200)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_break_a_reader(bytes in almost()) {
            READERS.iter().for_each(|read| read(&bytes));
        }
    }
}
