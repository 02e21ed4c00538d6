//! The ids of events that a handler publishes: derived from its own event, so that a handler that runs
//! again, because the database went back, publishes the same ones.

use sha2::{Digest, Sha256};
use uuid::Builder;

use crate::event::EventId;

/// What is known of the event that is handled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parent {
    pub id: EventId,
    /// The timestamp of its record on the origin topic, milliseconds since the Unix epoch.
    pub record_millis: Option<i64>,
    /// When it was last replayed from the dead letter queue: that is in its record, too.
    pub replayed_millis: Option<u64>,
}

/// What tells one published event from another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published<'a> {
    pub group: &'a str,
    pub handler: &'a str,
    pub topic: &'a str,
    pub key: &'a str,
    pub event_type: Option<&'a str>,
    /// Among those that are equal in all of this, from 0.
    pub ordinal: u32,
}

/// The id of a published event. `None`: there is no time to give it, so it can't be derived.
///
/// Its time is the parent's, so that it is remembered as long as a redelivery of the parent can
/// bring it again; but a parent that was old when its record was written, or when it was replayed, would
/// make a child that looks forgotten as soon as it is born.
pub(crate) fn derive(parent: Parent, window_millis: u64, published: Published<'_>) -> Option<EventId> {
    let random = random(parent.id, published);
    let id = Builder::from_unix_timestamp_millis(time(parent, window_millis)?, &random).into_uuid();
    // A v7 by construction, with the variant of RFC 9562.
    EventId::try_from(id).ok()
}

fn time(parent: Parent, window_millis: u64) -> Option<u64> {
    let record = parent.record_millis.and_then(|millis| u64::try_from(millis).ok());
    let born = parent.id.unix_millis().or(record)?;
    let late = parent.replayed_millis.or(record).filter(|late| late.saturating_sub(born) > window_millis / 2);
    Some(late.unwrap_or(born))
}

fn random(parent: EventId, published: Published<'_>) -> [u8; 10] {
    let Published { group, handler, topic, key, event_type, ordinal } = published;
    let mut hash = Sha256::new();
    hash.update(parent.uuid().as_bytes());
    // Each with its length, so that none runs into the next.
    for part in [Some(group), Some(handler), Some(topic), Some(key), event_type] {
        hash.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    hash.update(ordinal.to_be_bytes());
    let mut random = [0; 10];
    random.copy_from_slice(&hash.finalize()[..10]);
    random
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: u64 = 7 * 86_400_000;
    const PAID: Published<'static> = Published {
        group: "billing",
        handler: "shop::on_order",
        topic: "order.paid",
        key: "4711",
        event_type: None,
        ordinal: 0,
    };

    fn parent(record_millis: Option<i64>) -> Parent {
        let id = "0198c5f4-7a00-7000-8000-000000000001".parse().unwrap();
        Parent { id, record_millis, replayed_millis: None }
    }

    #[test]
    fn a_derived_id_is_the_same_for_ever() {
        // A database that goes back over an update of the library must find the same ids.
        let id = derive(parent(None), WINDOW, PAID).unwrap();
        assert_eq!(id.to_string(), "0198c5f4-7a00-7eb1-8d99-f82bdfd7f145");
    }

    #[test]
    fn the_time_is_the_parents_unless_that_is_old_or_has_none() {
        let born = 0x0198_c5f4_7a00_u64;
        let at = |record: Option<i64>| derive(parent(record), WINDOW, PAID).unwrap().unix_millis().unwrap();
        let half = (WINDOW / 2) as i64;
        let born_i64 = i64::try_from(born).unwrap();
        for (record, expected) in [
            (None, born),
            (Some(born_i64 + half), born),
            (Some(born_i64 + half + 1), born + WINDOW / 2 + 1),
            (Some(born_i64 - half), born),
            (Some(-1), born),
        ] {
            assert_eq!(at(record), expected, "{record:?}");
        }
        let natural = |record_millis| {
            derive(Parent { id: EventId::natural(b"1:1,"), record_millis, replayed_millis: None }, WINDOW, PAID)
        };
        assert_eq!(natural(Some(1_000)).unwrap().unix_millis(), Some(1_000));
        assert_eq!(natural(None), None);
        assert_eq!(natural(Some(-1)), None);
    }

    #[test]
    fn a_dead_letter_that_is_replayed_late_makes_a_child_of_that_time() {
        let born = 0x0198_c5f4_7a00_u64;
        let at = |id, replayed| {
            let parent = Parent { id, replayed_millis: Some(replayed), ..parent(Some(born as i64)) };
            derive(parent, WINDOW, PAID).unwrap().unix_millis().unwrap()
        };
        for id in [parent(None).id, EventId::natural(b"1:1,")] {
            assert_eq!(at(id, born + WINDOW / 2), born, "soon enough, and the id is the one of the first attempt");
            assert_eq!(at(id, born + 2 * WINDOW), born + 2 * WINDOW);
        }
    }

    fn text() -> impl Strategy<Value = String> {
        proptest::collection::vec(prop_oneof![Just('a'), Just('b'), Just('.')], 0..4)
            .prop_map(|characters| characters.into_iter().collect())
    }

    proptest! {
        #[test]
        fn what_differs_in_anything_has_another_id(
            one in (text(), text(), text(), text(), proptest::option::of(text()), 0_u32..3),
            other in (text(), text(), text(), text(), proptest::option::of(text()), 0_u32..3),
        ) {
            let id = |(group, handler, topic, key, event_type, ordinal): &(String, String, String, String, Option<String>, u32)| {
                let published =
                    Published { group, handler, topic, key, event_type: event_type.as_deref(), ordinal: *ordinal };
                derive(parent(None), WINDOW, published).unwrap()
            };
            prop_assert_eq!(id(&one) == id(&other), one == other);
            prop_assert_eq!(EventId::try_from(id(&one).uuid()), Ok(id(&one)));
        }
    }
}
