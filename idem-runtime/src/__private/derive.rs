//! What `#[derive(Event)]` needs: one function per word, each the only place of its bound.

use std::fmt::Write as _;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::Deserialize;
use uuid::Uuid;

use crate::event::{DecodeError, EventId, PayloadSchema, decode_json};

/// A type that can be an event's id.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be an event's id",
    label = "make it `EventId`",
    note = "an `EventId` is a UUID v7: its time decides how long the event is remembered"
)]
pub trait Id {
    #[doc(hidden)]
    fn id(&self) -> EventId;
}

impl Id for EventId {
    fn id(&self) -> EventId {
        *self
    }
}

/// The id of an event.
pub fn id<T>(field: &T) -> EventId
where
    T: Id,
{
    field.id()
}

/// Decodes an event. The bound is here and not on `Event`, where it would give a second error.
///
/// # Errors
/// When the payload is no such event.
pub fn decode<T>(payload: &[u8]) -> Result<T, DecodeError>
where
    T: for<'de> Deserialize<'de>,
{
    decode_json(payload)
}

/// Finds the schema of an event's payload, if it has one: nobody has to derive `JsonSchema`. The call
/// `payload_schema::<E>().find()` is of the method whose bound holds, and else of the one behind the dereference.
#[must_use]
pub fn payload_schema<E>() -> SchemaOf<E> {
    SchemaOf { none: NoSchema, of: PhantomData }
}

/// See [`payload_schema`].
pub struct SchemaOf<E> {
    none: NoSchema,
    of: PhantomData<fn() -> E>,
}

/// No schema.
pub struct NoSchema;

#[cfg(feature = "schemars")]
impl<E: schemars::JsonSchema> SchemaOf<E> {
    /// The event's.
    #[must_use]
    pub fn find(&self) -> Option<PayloadSchema> {
        Some(PayloadSchema { of: schemars::SchemaGenerator::subschema_for::<E> })
    }
}

impl NoSchema {
    /// None.
    #[must_use]
    pub fn find(&self) -> Option<PayloadSchema> {
        None
    }
}

impl<E> Deref for SchemaOf<E> {
    type Target = NoSchema;

    fn deref(&self) -> &NoSchema {
        &self.none
    }
}

/// A generic event, once its parameters are known.
pub trait Generic: for<'de> Deserialize<'de> + Send + 'static {}

impl<T: for<'de> Deserialize<'de> + Send + 'static> Generic for T {}

/// A field that can be part of a natural key, or name an aggregate.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be a part of a key",
    label = "use an integer, a `String`, a `bool`, a `Uuid` or an `EventId`",
    note = "a key has one spelling for ever: floats, maps and types of one's own have several"
)]
pub trait KeyPart {
    #[doc(hidden)]
    fn text(&self) -> String;
}

macro_rules! key_parts {
    ($($ty:ty)*) => {$(
        #[diagnostic::do_not_recommend]
        impl KeyPart for $ty {
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

key_parts! { i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 bool char String Box<str> Uuid EventId }

/// The canonical text of a part.
pub fn key_part<T>(field: &T) -> String
where
    T: KeyPart,
{
    field.text()
}

/// The id of an event by its natural key.
///
/// Each part is written `<bytes>:<text>,` so that `("1", "23")` and `("12", "3")` differ.
#[must_use]
pub fn natural_key(parts: &[String]) -> EventId {
    let mut canonical = String::new();
    for part in parts {
        // Writing to a String can't fail.
        let _ = write!(canonical, "{}:{part},", part.len());
    }
    EventId::natural(canonical.as_bytes())
}

/// A type that can be an event's version.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be an event's version",
    label = "make it `i64`, or a smaller integer",
    note = "versions are compared as `bigint` in the database"
)]
pub trait VersionNumber {
    #[doc(hidden)]
    fn number(&self) -> i64;
}

macro_rules! version_numbers {
    ($($ty:ty)*) => {$(
        #[diagnostic::do_not_recommend]
        impl VersionNumber for $ty {
            fn number(&self) -> i64 {
                i64::from(*self)
            }
        }
    )*};
}

version_numbers! { i8 i16 i32 i64 u8 u16 u32 }

/// The version of an event.
pub fn version<T>(field: &T) -> i64
where
    T: VersionNumber,
{
    field.number()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[&str]) -> EventId {
        natural_key(&parts.iter().map(|part| key_part(&(*part).to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn a_natural_key_is_the_same_for_ever() {
        // Stored in databases: this text must never change.
        assert_eq!(key(&["4711", "order.confirmed"]).to_string(), "ff2b6d77-a169-8704-9204-f48053a81559");
        assert_eq!(natural_key(&[key_part(&4711_i64)]), key(&["4711"]));
    }

    #[test]
    fn different_parts_are_different_keys() {
        let keys = [key(&["1", "23"]), key(&["12", "3"]), key(&["123"]), key(&["123", ""]), key(&["3", "12"])];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| one != other));
        }
    }

    #[test]
    fn who_has_no_schema_is_no_error() {
        struct Plain;
        assert!(payload_schema::<Plain>().find().is_none());
        // As `EventId` has one, with the feature.
        assert_eq!(payload_schema::<EventId>().find().is_some(), cfg!(feature = "schemars"));
    }

    #[test]
    fn versions_are_compared_as_i64() {
        assert_eq!((version(&7_u32), version(&i64::MIN)), (7, i64::MIN));
    }
}
