//! Whether the consuming side would take an event for what the publishing side meant.

use serde::Serialize;

use super::error::Unpublishable;
use crate::event::{self, Event, EventId};

/// The header with the kind of the event.
pub(super) const EVENT_TYPE: &str = "idem-event-type";
/// The header with its id.
pub(super) const EVENT_ID: &str = "idem-event-id";

/// What goes into the row.
#[derive(Debug)]
pub(super) struct Checked {
    pub id: EventId,
    pub bytes: Vec<u8>,
    pub event_type: Option<String>,
}

pub(super) fn names(topic: &str, key: &str, headers: &[(String, String)]) -> Result<(), Unpublishable> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !(1..=249).contains(&topic.len()) || !topic.bytes().all(is_valid) || matches!(topic, "." | "..") {
        return Err(Unpublishable::Topic);
    }
    if headers.iter().any(|(name, _)| name.is_empty() || name.starts_with("idem-")) {
        return Err(Unpublishable::Header);
    }
    let mut texts = headers.iter().flat_map(|(name, value)| [name.as_str(), value]).chain([key]);
    if texts.any(|text| text.contains('\0')) { Err(Unpublishable::Nul) } else { Ok(()) }
}

/// Writes the payload as JSON and reads it as a consumer does. The id of an event with a natural key is made
/// of its fields, whatever id it was given.
pub(super) fn payload<P: Event + Serialize>(
    payload: &P,
    given: EventId,
    event_type: Option<&str>,
) -> Result<Checked, Unpublishable> {
    let bytes = serde_json::to_vec(payload).map_err(|_| Unpublishable::NotJson)?;
    let read = P::decode(&bytes).map_err(Unpublishable::NotReadable)?;
    let id = payload.event_id();
    if id != given && id.unix_millis().is_some() {
        return Err(Unpublishable::AnotherId { given, found: id });
    }
    if read.event_id() != id || read.version() != payload.version() {
        return Err(Unpublishable::NotTheSame);
    }
    let inside = event::event_type(&bytes, P::TYPE_FIELD).map_err(Unpublishable::NotReadable)?;
    match (event_type, inside) {
        (Some(given), Some(inside)) if given != inside => Err(Unpublishable::AnotherType),
        (given, inside) => Ok(Checked { id, bytes, event_type: given.map(ToOwned::to_owned).or(inside) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::__private::{Unversioned, decode};
    use crate::event::DecodeError;

    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    struct Paid {
        event_id: EventId,
        #[serde(skip_serializing_if = "Option::is_none")]
        event_type: Option<String>,
    }

    impl Event for Paid {
        type Versions = Unversioned;

        fn event_id(&self) -> EventId {
            self.event_id
        }

        fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
            decode(payload)
        }
    }

    fn paid(event_id: EventId, event_type: Option<&str>) -> Paid {
        Paid { event_id, event_type: event_type.map(ToOwned::to_owned) }
    }

    #[test]
    fn the_payload_has_the_id_that_it_was_given() {
        let (given, other) = (EventId::now(), EventId::now());
        let checked = payload(&paid(given, None), given, None).unwrap();
        assert_eq!((checked.id, checked.event_type), (given, None));
        let refused = payload(&paid(other, None), given, None).unwrap_err();
        assert_eq!(refused, Unpublishable::AnotherId { given, found: other });
        let natural = EventId::natural(b"1:1,");
        let refused = payload(&paid(natural, None), given, None).unwrap_err();
        assert!(
            matches!(refused, Unpublishable::NotReadable(DecodeError::BadId(_))),
            "no payload names a natural key's id"
        );
    }

    #[test]
    fn a_consumer_can_read_it() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Lossy {
            #[serde(rename(serialize = "id"))]
            event_id: EventId,
        }
        impl Event for Lossy {
            type Versions = Unversioned;

            fn event_id(&self) -> EventId {
                self.event_id
            }

            fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
                decode(payload)
            }
        }
        let given = EventId::now();
        let refused = payload(&Lossy { event_id: given }, given, None).unwrap_err();
        assert!(matches!(refused, Unpublishable::NotReadable(_)), "{refused}");
    }

    #[test]
    fn its_type_is_given_or_its_own_and_never_two() {
        let id = EventId::now();
        let of = |inside, given| payload(&paid(id, inside), id, given).map(|checked| checked.event_type);
        assert_eq!(of(Some("paid"), None), Ok(Some("paid".to_owned())));
        assert_eq!(of(None, Some("paid")), Ok(Some("paid".to_owned())));
        assert_eq!(of(Some("paid"), Some("paid")), Ok(Some("paid".to_owned())));
        assert_eq!(of(Some("paid"), Some("refunded")), Err(Unpublishable::AnotherType));
    }

    #[test]
    fn names_are_checked_before_anything_is_written() {
        let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(names("order.paid_1-x", "k", &header("a", "b")), Ok(()));
        for topic in ["", ".", "..", "a b", "a/b", "ä", &"x".repeat(250)] {
            assert_eq!(names(topic, "k", &[]), Err(Unpublishable::Topic), "{topic}");
        }
        assert_eq!(names("t", "k", &header("", "b")), Err(Unpublishable::Header));
        assert_eq!(names("t", "k", &header("idem-attempt", "1")), Err(Unpublishable::Header));
        assert_eq!(names("t", "k\0", &[]), Err(Unpublishable::Nul));
        assert_eq!(names("t", "k", &header("a", "\0")), Err(Unpublishable::Nul));
    }
}
