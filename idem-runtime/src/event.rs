//! Events and the identifier that makes a redelivery recognisable.

use std::any::Any;
use std::cell::Cell;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use uuid::{Uuid, Variant};

/// The identifier of an event: a UUID v7 ([RFC 9562, section 5.7](https://www.rfc-editor.org/rfc/rfc9562#section-5.7)).
///
/// Its first 48 bits are the event's creation time in milliseconds since the Unix epoch; the dedup
/// table is partitioned by it, which is why no other version is accepted. In JSON it is a string
/// in the canonical hyphenated form, in either case; nothing else is accepted (no braces, no URN,
/// no form without hyphens), so that one event has exactly one spelling.
///
/// The one exception is never read from a payload: the id that `#[event(key(..))]` makes of other
/// fields is a UUID v8 whose first byte is `0xff`, which no time of a v7 reaches.
///
/// ```
/// use idem_runtime::EventId;
///
/// let id: EventId = "0198c5f4-7a00-7000-8000-000000000001".parse().unwrap();
/// assert_eq!(id.unix_millis(), Some(0x0198_c5f4_7a00));
/// assert!("6f1d2c6e-3c0a-4b43-9e5d-0f6f6a1b2c3d".parse::<EventId>().is_err()); // v4
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(Uuid);

impl EventId {
    /// A fresh identifier with the current time, for the producing side.
    ///
    /// Monotonic within a process: two calls never give the same or a descending value.
    #[must_use]
    pub fn now() -> Self {
        Self(Uuid::now_v7())
    }

    /// The identifier as a UUID, for binding to a query.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }

    /// The creation time in milliseconds since the Unix epoch; a natural key has none.
    #[must_use]
    pub fn unix_millis(self) -> Option<u64> {
        (self.0.get_version_num() == 7).then(|| (self.0.as_u128() >> 80) as u64)
    }

    /// The id of a natural key: the first bytes of the SHA-256 of its canonical form, as a UUID v8.
    pub(crate) fn natural(canonical: &[u8]) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&Sha256::digest(canonical)[..16]);
        bytes[0] = 0xff;
        Self(Uuid::new_v8(bytes))
    }
}

impl TryFrom<Uuid> for EventId {
    type Error = EventIdError;

    fn try_from(id: Uuid) -> Result<Self, EventIdError> {
        if id.is_nil() {
            Err(EventIdError::Nil)
        } else if id.is_max() {
            Err(EventIdError::Max)
        } else if id.get_variant() != Variant::RFC4122 {
            Err(EventIdError::Variant)
        } else if id.get_version_num() != 7 {
            Err(EventIdError::Version(id.get_version_num() as u8))
        } else {
            Ok(Self(id))
        }
    }
}

impl std::str::FromStr for EventId {
    type Err = EventIdError;

    fn from_str(text: &str) -> Result<Self, EventIdError> {
        // `Uuid::parse_str` also takes braces, a URN and the form without hyphens; only the
        // canonical form has 36 characters.
        if text.len() != 36 {
            return Err(EventIdError::Form);
        }
        Uuid::parse_str(text).map_err(|_| EventIdError::Form)?.try_into()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventId({self})")
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.hyphenated().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = EventId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a UUID v7 in the canonical hyphenated form")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<EventId, E> {
                text.parse().map_err(|error: EventIdError| {
                    ID_ERROR.set(Some(error));
                    E::custom(error)
                })
            }
        }
        // serde calls this for a missing field too, with a deserializer that only fails.
        deserializer.deserialize_str(Visitor).inspect_err(|_| {
            if ID_ERROR.get().is_none() {
                ID_ERROR.set(Some(EventIdError::Missing));
            }
        })
    }
}

thread_local! {
    /// Why the id of the record being decoded on this thread was refused. serde's errors carry only
    /// text, and a decision is never taken by text.
    static ID_ERROR: Cell<Option<EventIdError>> = const { Cell::new(None) };
}

/// Why a value is no [`EventId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventIdError {
    /// The field is missing, or is not a string.
    #[error("the event id is missing or is no string")]
    Missing,
    /// Not the canonical hyphenated form.
    #[error("the event id is no UUID in the canonical hyphenated form")]
    Form,
    /// The nil UUID.
    #[error("the event id is the nil UUID")]
    Nil,
    /// The max UUID.
    #[error("the event id is the max UUID")]
    Max,
    /// A UUID of another variant than RFC 9562.
    #[error("the event id is no UUID of the RFC 9562 variant")]
    Variant,
    /// A UUID of another version.
    #[error("the event id is a UUID v{0}, which carries no creation time: use v7")]
    Version(u8),
}

/// A payload that a handler takes, with the identifier that makes it recognisable.
///
/// Derive it: `#[derive(serde::Deserialize, Event)]`, with a field `event_id: EventId`, a field marked
/// `#[event(id)]`, or a natural key `#[event(key(order_id, kind))]`.
///
/// ```
/// use idem_runtime::prelude::*;
///
/// #[derive(serde::Deserialize, Event)]
/// struct OrderConfirmed { event_id: EventId, order_id: i64 }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "derive it: `#[derive(serde::Deserialize, Event)]`, with a field `event_id: EventId`",
    note = "an event carries the id that a redelivery is recognised by",
    note = "several events at once are a `Vec` of them, with `batch` in the attribute"
)]
pub trait Event: Sized + Send + 'static {
    /// Whether it has a version, as a type.
    #[doc(hidden)]
    type Versions;

    /// Where its payload says what kind of event it is.
    #[doc(hidden)]
    const TYPE_FIELD: TypeField = TypeField::EventType;

    /// The identifier of this event.
    fn event_id(&self) -> EventId;

    /// Reads the event from a record's value.
    ///
    /// # Errors
    /// When the value is no such event. The error never holds a part of the value.
    #[doc(hidden)]
    fn decode(payload: &[u8]) -> Result<Self, DecodeError>;

    /// The schema of its payload, if it has one.
    #[doc(hidden)]
    fn schema() -> Option<PayloadSchema> {
        None
    }

    /// What `#[event(version)]` and `#[event(aggregate)]` say.
    #[doc(hidden)]
    fn version(&self) -> Option<EventVersion> {
        None
    }
}

/// Where a payload says what kind of event it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeField {
    /// In `event_type`.
    EventType,
    /// In `type`, as [CloudEvents](https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md#type) have it.
    CloudEvents,
}

/// The schema of an event's payload.
#[cfg(feature = "schemars")]
#[derive(Clone, Copy)]
pub struct PayloadSchema {
    pub(crate) of: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

/// The schema of an event's payload. There is none without the cargo feature `schemars`.
#[cfg(not(feature = "schemars"))]
#[derive(Clone, Copy)]
pub enum PayloadSchema {}

#[cfg(feature = "schemars")]
impl schemars::JsonSchema for EventId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "EventId".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "uuid", "description": "a UUID v7" })
    }
}

/// Which state of what an event tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventVersion {
    /// What has the version, as canonical text.
    pub aggregate: String,
    /// Grows with each change.
    pub version: i64,
}

impl EventVersion {
    /// Called by generated code.
    #[must_use]
    pub const fn new(aggregate: String, version: i64) -> Self {
        Self { aggregate, version }
    }
}

/// An event whose type has been erased, on its way from decoding to the handler.
pub struct DecodedEvent {
    pub(crate) id: EventId,
    pub(crate) version: Option<EventVersion>,
    pub(crate) event: Box<dyn Any + Send>,
}

/// Why a record's value is not the handler's event. Holds positions and classes, never the value:
/// serde's own texts quote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No JSON, or JSON of another shape.
    #[error("not the handler's event: {class} at line {line}, column {column}")]
    Unparsable {
        /// What kind of mistake it is.
        class: &'static str,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// The event id is missing or unsuitable.
    #[error(transparent)]
    BadId(#[from] EventIdError),
}

/// Decodes JSON for `#[derive(Event)]`.
pub(crate) fn decode_json<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, DecodeError> {
    begins_an_object(payload)?;
    ID_ERROR.set(None);
    serde_json::from_slice(payload).map_err(|error| match (error.classify(), ID_ERROR.take()) {
        (serde_json::error::Category::Data, Some(id)) => DecodeError::BadId(id),
        (category, _) => DecodeError::Unparsable {
            class: match category {
                serde_json::error::Category::Io => "unreadable input",
                serde_json::error::Category::Syntax => "invalid JSON",
                serde_json::error::Category::Data => "JSON of another shape",
                serde_json::error::Category::Eof => "JSON that ends too early",
            },
            line: error.line(),
            column: error.column(),
        },
    })
}

/// serde's derive reads a struct from an array as well, by position: no producer means that.
fn begins_an_object(payload: &[u8]) -> Result<(), DecodeError> {
    match payload.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n')) {
        Some(at) if payload[at] != b'{' => {
            let before = &payload[..at];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            let column = 1 + before.iter().rev().take_while(|byte| **byte != b'\n').count();
            Err(DecodeError::Unparsable { class: "no JSON object", line, column })
        }
        // serde says the rest, an empty payload included.
        _ => Ok(()),
    }
}

/// What kind of event the payload says it is, for handlers that share a topic.
pub(crate) fn event_type(payload: &[u8], field: TypeField) -> Result<Option<String>, DecodeError> {
    #[derive(serde::Deserialize)]
    struct Own {
        event_type: Option<String>,
    }
    #[derive(serde::Deserialize)]
    struct Cloud {
        r#type: Option<String>,
    }
    match field {
        TypeField::EventType => decode_json::<Own>(payload).map(|own| own.event_type),
        TypeField::CloudEvents => decode_json::<Cloud>(payload).map(|cloud| cloud.r#type),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Sample {
        event_id: EventId,
        #[allow(unused, reason = "read by serde only")]
        amount: i64,
    }

    fn decode(json: &str) -> Result<Sample, DecodeError> {
        decode_json(json.as_bytes())
    }

    const V7: &str = "0198c5f4-7a00-7000-8000-000000000001";

    #[test]
    fn one_event_has_one_canonical_key() {
        let lower = decode(&format!(r#"{{"event_id":"{V7}","amount":1}}"#)).unwrap();
        let upper = decode(&format!(r#"{{"event_id":"{}","amount":1}}"#, V7.to_uppercase())).unwrap();
        assert_eq!(lower.event_id, upper.event_id);
        assert_eq!(lower.event_id.to_string(), V7);
    }

    #[test]
    fn every_other_identifier_is_named() {
        let cases = [
            ("00000000-0000-0000-0000-000000000000", EventIdError::Nil),
            ("ffffffff-ffff-ffff-ffff-ffffffffffff", EventIdError::Max),
            ("6f1d2c6e-3c0a-4b43-9e5d-0f6f6a1b2c3d", EventIdError::Version(4)),
            ("2c1d4f7e-7d0f-11ee-b962-0242ac120002", EventIdError::Version(1)),
            ("0198c5f4-7a00-7000-c000-000000000001", EventIdError::Variant),
            ("{0198c5f4-7a00-7000-8000-000000000001}", EventIdError::Form),
            ("urn:uuid:0198c5f4-7a00-7000-8000-000000000001", EventIdError::Form),
            ("0198c5f47a0070008000000000000001", EventIdError::Form),
            ("0198c5f4-7a00-7000-8000-00000000000g", EventIdError::Form),
            ("0198c5f47a00-7000-8000-000000000001--", EventIdError::Form),
            ("", EventIdError::Form),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<EventId>(), Err(expected), "{text}");
            let json = format!(r#"{{"event_id":"{text}","amount":1}}"#);
            assert_eq!(decode(&json).unwrap_err(), DecodeError::BadId(expected), "{text}");
        }
    }

    #[test]
    fn a_missing_or_wrongly_typed_id_is_a_bad_id() {
        for json in [r#"{"amount":1}"#, r#"{"event_id":7,"amount":1}"#, r#"{"event_id":null,"amount":1}"#] {
            assert_eq!(decode(json).unwrap_err(), DecodeError::BadId(EventIdError::Missing), "{json}");
        }
    }

    #[test]
    fn only_an_object_is_an_event() {
        for (json, line, column) in [
            (format!(r#"["{V7}",1]"#), 1, 1),
            (format!("\n  [\"{V7}\",1]"), 2, 3),
            ("null".to_owned(), 1, 1),
            ("\u{feff}{}".to_owned(), 1, 1),
        ] {
            let expected = DecodeError::Unparsable { class: "no JSON object", line, column };
            assert_eq!(decode(&json).unwrap_err(), expected, "{json}");
        }
        assert!(decode(&format!("\r\n\t {{\"event_id\":\"{V7}\",\"amount\":1}}")).is_ok());
    }

    #[test]
    fn each_kind_of_envelope_says_its_type_in_a_field_of_its_own() {
        let payload = br#"{"event_type":"paid","type":7}"#;
        assert_eq!(event_type(payload, TypeField::EventType).unwrap().as_deref(), Some("paid"));
        assert!(event_type(payload, TypeField::CloudEvents).is_err());
        let payload = br#"{"event_type":7,"type":"paid"}"#;
        assert_eq!(event_type(payload, TypeField::CloudEvents).unwrap().as_deref(), Some("paid"));
    }

    #[test]
    fn a_natural_key_has_no_time_and_is_no_payloads_id() {
        let id = EventId::natural(b"4:4711,");
        assert_eq!((id.unix_millis(), id.uuid().as_bytes()[0]), (None, 0xff));
        assert_eq!(id.to_string().parse::<EventId>(), Err(EventIdError::Version(8)));
        assert_ne!(id, EventId::natural(b"4:4712,"));
    }

    #[test]
    fn other_mistakes_are_unparsable_and_quote_nothing() {
        for json in
            ["", "{", "[]", "4111111111111111", &format!(r#"{{"event_id":"{V7}","amount":"4111111111111111"}}"#)]
        {
            let error = decode(json).unwrap_err();
            assert!(matches!(error, DecodeError::Unparsable { .. }), "{json}: {error}");
            assert!(!error.to_string().contains("4111"), "{error}");
        }
    }
}
