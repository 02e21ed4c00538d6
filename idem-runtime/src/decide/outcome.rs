//! How one attempt at an event can end.

use crate::error::{Class, Failure, HandlerError};

/// The end of one attempt.
#[derive(Debug)]
#[must_use]
pub(crate) enum Outcome {
    /// Committed.
    Done,
    /// The dedup row was there already: nothing ran.
    Duplicate,
    /// The group has applied this version of its aggregate, or a later one: nothing ran.
    Stale,
    /// The group may have processed it and forgotten; its handler wants it skipped.
    Expired,
    /// No handler of the group takes this `event_type`.
    Unmatched,
    /// Database or broker are not usable, or asked for the transaction to be run again.
    Infrastructure(Failure),
    /// The event may succeed later.
    Transient {
        /// What failed.
        failure: Failure,
        /// The handler panicked.
        panicked: bool,
    },
    /// The event will never succeed.
    Permanent {
        /// Why, as the dead letter's header says it.
        reason: Reason,
        /// What failed.
        failure: Failure,
    },
    /// The handler ended the transaction itself: its dedup row and its writes are not one any more.
    TransactionEnded,
}

impl Outcome {
    /// What failed, if something did.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Infrastructure(failure) | Self::Transient { failure, .. } | Self::Permanent { failure, .. } => {
                Some(failure)
            }
            Self::Done | Self::Duplicate | Self::Stale | Self::Expired | Self::Unmatched | Self::TransactionEnded => {
                None
            }
        }
    }

    pub(crate) fn permanent(reason: Reason, failure: Failure) -> Self {
        Self::Permanent { reason, failure }
    }
}

impl From<HandlerError> for Outcome {
    fn from(error: HandlerError) -> Self {
        let class = error.class();
        let (HandlerError::Infrastructure(failure)
        | HandlerError::Transient(failure)
        | HandlerError::Permanent(failure)) = error;
        match class {
            Class::Infrastructure => Self::Infrastructure(failure),
            Class::Transient => Self::Transient { failure, panicked: false },
            Class::Permanent => Self::Permanent { reason: failure.reason().unwrap_or(Reason::Permanent), failure },
        }
    }
}

/// The value of a dead letter's `idem-reason` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    Unparsable,
    Null,
    BadId,
    Expired,
    Future,
    Permanent,
    Exhausted,
    Panic,
    Unmatched,
    KeyExpired,
    BodyChanged,
    Conflict,
}

impl Reason {
    pub(crate) const ALL: [Self; 12] = [
        Self::Unparsable,
        Self::Null,
        Self::BadId,
        Self::Expired,
        Self::Future,
        Self::Permanent,
        Self::Exhausted,
        Self::Panic,
        Self::Unmatched,
        Self::KeyExpired,
        Self::BodyChanged,
        Self::Conflict,
    ];

    /// Reads what [`as_str`](Self::as_str) writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unparsable => "unparsable",
            Self::Null => "null",
            Self::BadId => "bad-id",
            Self::Expired => "expired",
            Self::Future => "future",
            Self::Permanent => "permanent",
            Self::Exhausted => "exhausted",
            Self::Panic => "panic",
            Self::Unmatched => "unmatched",
            Self::KeyExpired => "key-expired",
            Self::BodyChanged => "body-changed",
            Self::Conflict => "conflict",
        }
    }
}
