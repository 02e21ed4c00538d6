//! Why an event was not published.

use crate::error::{Class, Classified};
use crate::event::{DecodeError, EventId};

/// Why an event was not published. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The event itself can't be published, and never will be. Its text quotes nothing of the payload.
    #[error("an event for the topic `{topic}` can't be published: {problem}")]
    Unpublishable {
        /// Where it was to go.
        topic: String,
        /// What is wrong with it.
        problem: Unpublishable,
    },
    /// The database did not take the row.
    #[error("the outbox was not written: {0}")]
    Database(#[from] sqlx::Error),
}

/// What is wrong with an event that can't be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unpublishable {
    /// Kafka takes no such name.
    #[error("the topic's name is not valid for Kafka: 1 to 249 letters, digits, `.`, `_` and `-`, and not `.` or `..`")]
    Topic,
    /// A header without a name, or one of the library's own.
    #[error("a header's name is empty, or begins with `idem-`, which the library keeps for itself")]
    Header,
    /// PostgreSQL keeps no text with a NUL.
    #[error("the key or a header holds a NUL character, which PostgreSQL's text does not")]
    Nul,
    /// serde refused.
    #[error("the payload can't be written as JSON")]
    NotJson,
    /// A consumer could not read it.
    #[error("a consumer would not take the payload for this event: {0}")]
    NotReadable(DecodeError),
    /// The closure did not use the id that it was given.
    #[error(
        "the payload has the id {found} and not the one that the closure was given, {given}: put that into its id field"
    )]
    AnotherId {
        /// The id it was given.
        given: EventId,
        /// The id in the payload.
        found: EventId,
    },
    /// Id, version or aggregate are lost on the way through JSON.
    #[error("the payload that a consumer reads has another id, version or aggregate: look at its serde attributes")]
    NotTheSame,
    /// Both are given, and differ.
    #[error("the payload's `event_type` is another one than was given with `event_type(..)`")]
    AnotherType,
    /// A batch has many.
    #[error("a handler with `batch` says which of its events it publishes for: `tx.publish_for(&event, ..)`")]
    NoParent,
    /// It does not belong to the handler's call.
    #[error("`publish_for` was given an event that is none of those that the handler was called for")]
    AnotherParent,
}

impl Classified for PublishError {
    fn class(&self) -> Class {
        match self {
            Self::Unpublishable { .. } => Class::Permanent,
            Self::Database(error) => error.class(),
        }
    }
}
