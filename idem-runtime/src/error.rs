//! What a handler may fail with. The type decides what happens next, never the text.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::decide::outcome::Reason;
use crate::decide::sql_error;
use crate::money::MoneyError;
use crate::outbox::PublishError;

/// What a handler returns.
pub type HandlerResult = Result<(), HandlerError>;

/// Which of the three paths a failure takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The database, the broker or a provider as a whole is not usable. The same event runs again
    /// in place, with backoff; no attempt is counted and nothing is dead-lettered.
    Infrastructure,
    /// This event may succeed later. It moves to the next retry tier, after the last to the dead
    /// letter queue.
    Transient,
    /// This event will never succeed. It moves to the dead letter queue at once.
    Permanent,
}

/// An error type that says which path its failures take, so that `?` works in a handler.
///
/// `sqlx::Error` says it by SQLSTATE. For a type of your own:
///
/// ```
/// use idem_runtime::prelude::*;
///
/// #[derive(Debug, thiserror::Error)]
/// enum BillingError {
///     #[error("order unknown")]
///     OrderUnknown,
///     #[error("ledger is closing")]
///     LedgerClosing,
/// }
///
/// impl Classified for BillingError {
///     fn class(&self) -> Class {
///         match self {
///             Self::OrderUnknown => Class::Permanent,
///             Self::LedgerClosing => Class::Transient,
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whether its failures are transient or permanent",
    label = "say it here with `.transient()?` or `.permanent()?`, or implement `Classified` for `{Self}`",
    note = "a failure's type decides whether the event is retried or dead-lettered"
)]
pub trait Classified: Error + Send + Sync + 'static {
    /// The path of this failure.
    fn class(&self) -> Class;
}

/// Why a handler could not handle an event.
///
/// ```
/// use idem_runtime::HandlerError;
///
/// let error = HandlerError::permanent("order unknown");
/// assert_eq!(error.to_string(), "permanent: order unknown");
/// ```
#[derive(Debug)]
pub enum HandlerError {
    /// See [`Class::Infrastructure`].
    Infrastructure(Failure),
    /// See [`Class::Transient`].
    Transient(Failure),
    /// See [`Class::Permanent`].
    Permanent(Failure),
}

impl HandlerError {
    /// The database, the broker or a provider as a whole is not usable.
    pub fn infrastructure(cause: impl Into<Box<dyn Error + Send + Sync>> + 'static) -> Self {
        Self::Infrastructure(Failure::new(cause))
    }

    /// A statement of the library's own failed, in the event's transaction: see [`sql_error::class_of_own`].
    pub(crate) fn of_own(error: sqlx::Error) -> Self {
        match sql_error::class_of_own(&error) {
            Class::Infrastructure => Self::infrastructure(error),
            _ => error.into(),
        }
    }

    /// This event may succeed later.
    pub fn transient(cause: impl Into<Box<dyn Error + Send + Sync>> + 'static) -> Self {
        Self::Transient(Failure::new(cause))
    }

    /// This event will never succeed.
    pub fn permanent(cause: impl Into<Box<dyn Error + Send + Sync>> + 'static) -> Self {
        Self::Permanent(Failure::new(cause))
    }

    /// Says which event of a batch failed, by its place in the `Vec`, from 0. Only that one takes the
    /// path of the failure; the others are handled again without it.
    ///
    /// Without it, or with a place that is not there, the events of the batch are handled one at a time
    /// to find out. A handler of single events has no use for it.
    ///
    /// ```
    /// use idem_runtime::prelude::*;
    ///
    /// #[derive(serde::Deserialize, Event)]
    /// struct Paid { event_id: EventId, cents: i64 }
    ///
    /// #[idempotent_handler(topic = "paid", group = "ledger", batch = 500)]
    /// async fn on_paid(tx: &mut Tx<'_>, batch: Vec<Paid>) -> HandlerResult {
    ///     if let Some(at) = batch.iter().position(|paid| paid.cents < 0) {
    ///         return Err(HandlerError::at(at, HandlerError::permanent("a negative amount")));
    ///     }
    ///     let cents: Vec<i64> = batch.iter().map(|paid| paid.cents).collect();
    ///     sqlx::query("INSERT INTO ledger SELECT unnest($1::bigint[])").bind(cents).execute(&mut **tx).await?;
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn at(index: usize, error: impl Into<Self>) -> Self {
        let mut error = error.into();
        let (Self::Infrastructure(failure) | Self::Transient(failure) | Self::Permanent(failure)) = &mut error;
        failure.index = Some(index);
        error
    }

    /// The path of this failure.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Infrastructure(_) => Class::Infrastructure,
            Self::Transient(_) => Class::Transient,
            Self::Permanent(_) => Class::Permanent,
        }
    }

    /// What failed.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        match self {
            Self::Infrastructure(failure) | Self::Transient(failure) | Self::Permanent(failure) => failure,
        }
    }

    pub(crate) fn of_class(class: Class, failure: Failure) -> Self {
        match class {
            Class::Infrastructure => Self::Infrastructure(failure),
            Class::Transient => Self::Transient(failure),
            Class::Permanent => Self::Permanent(failure),
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class() {
            Class::Infrastructure => "infrastructure",
            Class::Transient => "transient",
            Class::Permanent => "permanent",
        };
        write!(f, "{class}: {}", self.failure().source)
    }
}

impl<E: Classified> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let class = error.class();
        Self::of_class(class, Failure::new(error))
    }
}

/// The cause of a [`HandlerError`], with what may be told of it outside the process.
#[derive(Debug)]
pub struct Failure {
    source: Box<dyn Error + Send + Sync>,
    type_name: &'static str,
    /// A text that is sure to hold nothing of a payload.
    safe_text: Option<Cow<'static, str>>,
    /// The event of a batch that failed.
    pub(crate) index: Option<usize>,
    reason: Option<Reason>,
    retry_after: Option<Duration>,
}

impl Failure {
    /// Wraps an error, or a text.
    pub(crate) fn new<E: Into<Box<dyn Error + Send + Sync>> + 'static>(cause: E) -> Self {
        // Only a text that was in the program's source is sure to hold nothing of a payload.
        let safe_text = (&cause as &dyn Any).downcast_ref::<&'static str>().map(|text| Cow::Borrowed(*text));
        let (source, type_name) = (cause.into(), std::any::type_name::<E>());
        let Some(money) = find::<MoneyError>(&*source) else {
            let unpublishable = find(&*source).filter(|error| matches!(error, PublishError::Unpublishable { .. }));
            let safe_text = safe_text.or_else(|| unpublishable.map(|error| error.to_string().into()));
            return Self { source, type_name, safe_text, index: None, reason: None, retry_after: None };
        };
        let safe_text = Some(money.to_string().into());
        let (reason, retry_after) = (money.reason(), money.retry_after());
        Self { source, type_name, safe_text, index: None, reason, retry_after }
    }

    /// Wraps an error whose text never quotes a payload, such as the library's own.
    pub(crate) fn with_safe_text<E: Error + Send + Sync + 'static>(cause: E) -> Self {
        Self { safe_text: Some(cause.to_string().into()), ..Self::new(cause) }
    }

    /// With the reason of its dead letter, where it has one of its own.
    pub(crate) fn because(self, reason: Option<Reason>) -> Self {
        Self { reason, ..self }
    }

    /// The reason of its dead letter, where it has one of its own.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// How long a provider asked for no more requests.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The error itself. Its text may quote a payload: don't log it where that must not be seen.
    #[must_use]
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }

    /// What may be told of the failure: the error's type, SQLSTATE and constraint, and the text
    /// where it was a literal in the program. At most 512 bytes.
    ///
    /// Constraint and table names are the schema's, not a payload's.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut summary = self.safe_text.as_deref().unwrap_or(self.type_name).to_owned();
        if let Some(sqlx::Error::Database(db)) = self.source.downcast_ref::<sqlx::Error>() {
            if let Some(code) = db.code() {
                summary.push_str(" SQLSTATE ");
                summary.push_str(&code);
            }
            if let Some(constraint) = db.constraint() {
                summary.push_str(" constraint ");
                summary.push_str(constraint);
            }
        }
        truncate(summary, 512)
    }

    /// [`summary`](Self::summary) with the error's own text behind it, for `IDEM_ERROR_TEXT=true`.
    #[must_use]
    pub(crate) fn summary_with_text(&self) -> String {
        match self.safe_text {
            Some(_) => self.summary(),
            None => truncate(format!("{}: {}", self.summary(), self.source), 512),
        }
    }
}

/// An error of the library's own in an error or its sources. The text of those that are looked for never quotes a
/// payload.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut error = Some(error);
    while let Some(at) = error {
        if let Some(found) = at.downcast_ref() {
            return Some(found);
        }
        error = at.source();
    }
    None
}

fn truncate(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        let end = (0..=bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// Says in place which path a failure takes.
///
/// ```
/// use idem_runtime::prelude::*;
///
/// fn parse(text: &str) -> Result<i64, HandlerError> {
///     text.parse::<i64>().permanent()
/// }
/// assert!(parse("x").is_err());
/// ```
pub trait ClassifyExt<T> {
    /// The event may succeed later: retried with a delay.
    ///
    /// # Errors
    /// The same failure, as [`HandlerError::Transient`].
    fn transient(self) -> Result<T, HandlerError>;

    /// The event will never succeed: dead-lettered.
    ///
    /// # Errors
    /// The same failure, as [`HandlerError::Permanent`].
    fn permanent(self) -> Result<T, HandlerError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>> + 'static> ClassifyExt<T> for Result<T, E> {
    fn transient(self) -> Result<T, HandlerError> {
        self.map_err(HandlerError::transient)
    }

    fn permanent(self) -> Result<T, HandlerError> {
        self.map_err(HandlerError::permanent)
    }
}

impl Classified for sqlx::Error {
    fn class(&self) -> Class {
        sql_error::class(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literal_texts_are_told() {
        let card = String::from("card 4111111111111111 refused");
        let literal = HandlerError::permanent("order unknown");
        let dynamic = HandlerError::permanent(card.clone());
        let typed = "x".parse::<i64>().permanent().unwrap_err();
        assert_eq!(literal.failure().summary(), "order unknown");
        assert_eq!(dynamic.failure().summary(), "alloc::string::String");
        assert_eq!(typed.failure().summary(), "core::num::error::ParseIntError");
        assert!(dynamic.failure().summary_with_text().contains(&card));
    }

    #[test]
    fn the_place_of_an_event_changes_nothing_else() {
        let error = HandlerError::at(3, HandlerError::transient("later"));
        assert_eq!(
            (error.failure().index, error.class(), error.to_string()),
            (Some(3), Class::Transient, "transient: later".to_owned())
        );
        assert_eq!(HandlerError::at(0, sqlx::Error::PoolTimedOut).class(), Class::Infrastructure);
        assert_eq!(HandlerError::permanent("never").failure().index, None);
    }

    #[test]
    fn a_summary_is_bounded_at_a_character() {
        let long: &'static str = Box::leak("é".repeat(600).into_boxed_str());
        let summary = HandlerError::permanent(long).failure().summary();
        assert_eq!(summary.len(), 512);
    }
}
