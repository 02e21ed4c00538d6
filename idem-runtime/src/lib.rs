//! Exactly-once effects for Kafka consumers: one attribute on an async fn.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![allow(
    dead_code,
    reason = "the pipeline that drives the handlers is not part of this crate yet"
)]

#[doc(hidden)]
pub mod __private;
mod decide;
mod error;
mod event;
mod handler;

pub use error::{Class, Classified, ClassifyExt, Failure, HandlerError, HandlerResult};
pub use event::{DecodeError, Event, EventId, EventIdError};
pub use handler::{Delivery, State, Tx};

#[doc = include_str!("event.md")]
pub use idem_macros::Event;
#[doc = include_str!("attribute.md")]
pub use idem_macros::idempotent_handler;

/// What a file with handlers needs.
pub mod prelude {
    pub use crate::{
        Class, Classified, ClassifyExt, Delivery, Event, EventId, HandlerError, HandlerResult,
        State, Tx, idempotent_handler,
    };
}
