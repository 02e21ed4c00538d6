//! Why a money call did not go well.

use std::fmt;
use std::time::Duration;

use crate::decide::outcome::Reason;
use crate::error::{Class, Classified};

/// Why a money call did not go well. Its text holds no body, no address and no key.
///
/// `?` in a handler takes it to the right path. A handler may catch a [`Refused`](Self::Refused) and return
/// `Ok`, if no earlier request of the call may have been carried out; one that catches anything else and
/// returns `Ok` has failed all the same: nobody else would ever ask what became of the call.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MoneyError {
    /// The provider will not carry it out: a 4xx. Permanent.
    #[error("the provider refused the call: HTTP {status}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The body, such as the reason of a decline. It may hold personal data.
        body: Vec<u8>,
    },
    /// HTTP 409, and nothing recorded says that an earlier request did it. Transient; in the end the
    /// dead letter's reason is `conflict`.
    #[error("the provider says that the key is in use: HTTP 409")]
    Conflict,
    /// 408, 425, 429, 5xx. Transient.
    #[error("the provider can't carry the call out now: HTTP {status}")]
    NotNow {
        /// The HTTP status.
        status: u16,
        /// The provider's `Retry-After`: the event waits in a tier that is long enough, if there is one.
        retry_after: Option<Duration>,
    },
    /// 401, 403, 407 or a redirect: true for every call. Infrastructure.
    #[error("the provider turns this service away: HTTP {status}; see to its credentials and IDEM_MONEY_BASE_URL")]
    Unavailable {
        /// The HTTP status.
        status: u16,
    },
    /// No answer. Transient.
    #[error("no answer from the provider: {0}")]
    Unanswered(&'static str),
    /// The handler asks for something else than in an earlier attempt. Permanent, `body-changed`.
    #[error(
        "method, path or body of the call differ from those of an earlier attempt with the same key, so nothing was \
         sent: make them of the event alone, without times or random numbers; a call that was surely not carried out \
         may be resolved as failed, and then has a new key"
    )]
    BodyChanged,
    /// The provider may have forgotten the key of an earlier request. Permanent, `key-expired`.
    #[error(
        "an earlier request may have been carried out, and is longer ago than IDEM_MONEY_KEY_TTL, so nothing was \
         sent: ask the provider, resolve the call as applied or failed, and replay the event"
    )]
    KeyExpired,
    /// The handler made two calls with one name. Permanent.
    #[error(
        "this handler makes a second call with one name, so nothing was sent: name it, \
         `payments.operation(\"refund\").post(..)`"
    )]
    SecondCall,
    /// There is no such request. Permanent.
    #[error("the call could not be made: {0}")]
    Request(String),
    /// The answer is not what the handler asked for. Permanent.
    #[error("the provider's answer is no JSON of the expected shape")]
    UnreadableAnswer,
    /// The call could not be recorded, so nothing was sent or nothing is known of it.
    #[error("the call could not be recorded")]
    Record(#[source] sqlx::Error),
}

/// A request that can't be made.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum RequestError {
    #[error("its body can't be written as {0}")]
    Body(&'static str),
    #[error("its path has no IDEM_MONEY_BASE_URL to go to: set it, or give a URL")]
    NoBaseUrl,
    #[error("its path has a dot segment, a backslash or a control character: it would leave IDEM_MONEY_BASE_URL")]
    Outside,
    #[error("its name is empty: that is the unnamed call's, so leave `operation(..)` out")]
    NoName,
    #[error("the handler has returned")]
    Over,
}

impl From<RequestError> for MoneyError {
    fn from(error: RequestError) -> Self {
        Self::Request(error.to_string())
    }
}

impl MoneyError {
    /// The HTTP status, if there was an answer.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } | Self::NotNow { status, .. } | Self::Unavailable { status } => Some(*status),
            Self::Conflict => Some(409),
            _ => None,
        }
    }

    /// The reason of a dead letter, where it is not the class's own.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            Self::BodyChanged => Some(Reason::BodyChanged),
            Self::KeyExpired => Some(Reason::KeyExpired),
            Self::Conflict => Some(Reason::Conflict),
            _ => None,
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        if let Self::NotNow { retry_after, .. } = self { *retry_after } else { None }
    }

    /// A label for metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Conflict => "conflict",
            Self::NotNow { .. } => "not_now",
            Self::Unavailable { .. } => "unavailable",
            Self::Unanswered(_) => "unanswered",
            Self::BodyChanged => "body_changed",
            Self::KeyExpired => "key_expired",
            Self::SecondCall | Self::Request(_) | Self::UnreadableAnswer => "mistake",
            Self::Record(_) => "unrecordable",
        }
    }
}

impl Classified for MoneyError {
    fn class(&self) -> Class {
        match self {
            Self::Unavailable { .. } => Class::Infrastructure,
            Self::Conflict | Self::NotNow { .. } | Self::Unanswered(_) => Class::Transient,
            // The record is the library's own: only a value that PostgreSQL can't take is the event's.
            Self::Record(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code.starts_with("22")) => {
                Class::Permanent
            }
            Self::Record(_) => Class::Infrastructure,
            _ => Class::Permanent,
        }
    }
}

impl fmt::Debug for MoneyError {
    /// As it is displayed: a body may hold personal data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MoneyError({self})")
    }
}
