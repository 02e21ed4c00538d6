//! A record as the pipeline sees it, and what a group's own topics say of its origin.

use std::sync::Arc;

use rdkafka::Message;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, OwnedHeaders};

use super::{headers, names};
use crate::decide::circuit::EventKey;
use crate::handler::RawHeader;

/// A record, detached from the consumer.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
    pub timestamp_millis: Option<i64>,
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    pub headers: Option<OwnedHeaders>,
}

impl Record {
    /// Copies a message out of librdkafka's buffer. `topic` is the message's, shared by its partition.
    pub(crate) fn detach(message: &BorrowedMessage<'_>, topic: Arc<str>) -> Self {
        Self {
            topic,
            partition: message.partition(),
            offset: message.offset(),
            timestamp_millis: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers: message.headers().map(BorrowedHeaders::detach),
        }
    }

    /// The bytes of key, value and headers.
    pub(crate) fn size(&self) -> usize {
        let bytes = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        bytes(&self.key)
            + bytes(&self.payload)
            + self.headers.as_ref().map_or(0, |headers| headers::size(headers.as_borrowed()))
    }

    /// The headers, names and values as bytes.
    pub(crate) fn raw_headers(&self) -> Vec<RawHeader> {
        self.headers.as_ref().map(|headers| headers::read(headers.as_borrowed())).unwrap_or_default()
    }

    /// The headers for another way through the group: attempts begin anew and nothing is waited for;
    /// origin, first failure and the reason of the dead letter stay.
    pub(crate) fn headers_for_replay(&self, replay: Replay) -> OwnedHeaders {
        let (count, at) = (replay.count.to_string(), replay.at_millis.to_string());
        let mut set: Vec<(&str, &[u8])> =
            vec![(names::ATTEMPT, b"0"), (names::REPLAYED_AT, at.as_bytes()), (names::REPLAY_COUNT, count.as_bytes())];
        if replay.may_be_expired {
            set.push((names::ALLOW_EXPIRED, b"true"));
        }
        let replaced = [names::ATTEMPT, names::DUE_AT, names::REPLAYED_AT, names::REPLAY_COUNT, names::ALLOW_EXPIRED];
        headers::replace(self.headers.as_ref(), &replaced, &set)
    }

    /// The headers with the library's own replaced by these.
    pub(crate) fn headers_with(&self, own: &[(&str, &[u8])]) -> OwnedHeaders {
        headers::replace(self.headers.as_ref(), &names::OWN_HEADERS, own)
    }
}

/// Where an event was first read, and how often it failed since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
    pub timestamp_millis: Option<i64>,
    pub attempt: u32,
    pub due_at_millis: Option<u64>,
    pub first_failed_at_millis: Option<u64>,
    /// `None`: never replayed from the dead letter queue.
    pub replay: Option<Replay>,
}

/// That an event was replayed from the dead letter queue. It stays with the event over retries and
/// the next dead letter, in two headers, however often it goes round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replay {
    /// How often by now.
    pub count: u32,
    /// When last.
    pub at_millis: u64,
    /// Somebody wants it handled although the group may have processed and forgotten it.
    pub may_be_expired: bool,
}

impl Origin {
    /// A record of a main topic: it is its own origin, whatever headers it carries.
    pub(crate) fn of_main(record: &Record) -> Self {
        Self {
            topic: Arc::clone(&record.topic),
            partition: record.partition,
            offset: record.offset,
            timestamp_millis: record.timestamp_millis,
            attempt: 0,
            due_at_millis: None,
            first_failed_at_millis: None,
            replay: None,
        }
    }

    /// Which event it is.
    pub(crate) fn event_key(&self) -> EventKey {
        (Arc::clone(&self.topic), self.partition, self.offset)
    }

    /// A record of one of the group's own topics. `None`: it does not say where it comes from, so
    /// the library did not write it.
    pub(crate) fn of_own(headers: &[RawHeader]) -> Option<Self> {
        let text = |name: &str| -> Option<&str> {
            let (_, value) = headers.iter().find(|(n, _)| n == name.as_bytes())?;
            std::str::from_utf8(value.as_deref()?).ok()
        };
        Some(Self {
            topic: text(names::ORIGIN_TOPIC)?.into(),
            partition: text(names::ORIGIN_PARTITION)?.parse().ok()?,
            offset: text(names::ORIGIN_OFFSET)?.parse().ok()?,
            timestamp_millis: text(names::ORIGIN_TIMESTAMP).and_then(|millis| millis.parse().ok()),
            attempt: text(names::ATTEMPT)?.parse().ok()?,
            due_at_millis: text(names::DUE_AT).and_then(|millis| millis.parse().ok()),
            first_failed_at_millis: text(names::FIRST_FAILED_AT).and_then(|millis| millis.parse().ok()),
            replay: text(names::REPLAY_COUNT)
                .and_then(|count| count.parse().ok())
                .zip(text(names::REPLAYED_AT).and_then(|millis| millis.parse().ok()))
                .map(|(count, at_millis)| {
                    let may_be_expired = text(names::ALLOW_EXPIRED) == Some("true");
                    Replay { count, at_millis, may_be_expired }
                }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &[u8]) -> RawHeader {
        (name.as_bytes().to_vec(), Some(value.to_vec()))
    }

    #[test]
    fn an_origin_is_read_from_own_headers_only_when_whole() {
        let mut headers = vec![
            header(names::ORIGIN_TOPIC, b"orders"),
            header(names::ORIGIN_PARTITION, b"5"),
            header(names::ORIGIN_OFFSET, b"42"),
            header(names::ATTEMPT, b"2"),
            header(names::DUE_AT, b"1000"),
        ];
        let origin = Origin::of_own(&headers).unwrap();
        assert_eq!((&*origin.topic, origin.partition, origin.offset, origin.attempt), ("orders", 5, 42, 2));
        assert_eq!((origin.due_at_millis, origin.timestamp_millis), (Some(1000), None));
        headers[3] = header(names::ATTEMPT, b"-1");
        assert_eq!(Origin::of_own(&headers), None);
        headers.remove(3);
        assert_eq!(Origin::of_own(&headers), None);
        assert_eq!(Origin::of_own(&[header(names::ORIGIN_TOPIC, b"\xff")]), None);
    }

    #[test]
    fn a_replay_begins_attempts_anew_and_stays_as_long_however_often_it_happens() {
        let foreign = (b"\xff\xfe".to_vec(), Some(b"\x00\x01".to_vec()));
        let raw = [
            foreign.clone(),
            header(names::ORIGIN_TOPIC, b"orders"),
            header(names::ORIGIN_PARTITION, b"5"),
            header(names::ORIGIN_OFFSET, b"42"),
            header(names::ATTEMPT, b"4"),
            header(names::DUE_AT, b"1000"),
            header(names::FIRST_FAILED_AT, b"900"),
            header(names::REASON, b"exhausted"),
        ];
        let mut record = Record {
            topic: "g.dlq".into(),
            partition: 0,
            offset: 0,
            timestamp_millis: None,
            key: None,
            payload: None,
            headers: Some(headers::from_raw(&raw)),
        };
        let mut sizes = Vec::new();
        for count in 1..=9 {
            record.headers =
                Some(record.headers_for_replay(Replay { count, at_millis: 2_000, may_be_expired: count < 5 }));
            let now = record.raw_headers();
            assert!(now.contains(&foreign));
            sizes.push(now.len());
            let origin = Origin::of_own(&now).unwrap();
            assert_eq!((origin.attempt, origin.due_at_millis, origin.first_failed_at_millis), (0, None, Some(900)));
            assert_eq!(origin.replay, Some(Replay { count, at_millis: 2_000, may_be_expired: count < 5 }));
        }
        assert_eq!(sizes, [10, 10, 10, 10, 9, 9, 9, 9, 9]);
    }
}
