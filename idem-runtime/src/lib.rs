//! Kafka handlers whose effects happen once.
//!
//! Kafka delivers at least once: a rebalance before the offset commit, a replay from a dead letter
//! queue or an offset reset delivers an event again, and an account is debited twice.
//!
//! [`idempotent_handler`](macro@idempotent_handler) has the attribute, [`failures`] what is retried and where it ends, [`money`]
//! how a payment provider is called, [`outbox`] how events are published, [`dedup`] what a group remembers, [`operate`] what
//! there is for whoever runs it; [`guide`] what happens when something fails, how to choose settings, the way from a consumer
//! of one's own, and how others do it.
//!
#![doc = include_str!("tutorial.md")]
// A link into the module would lead nowhere without it.
#![cfg_attr(feature = "testing", doc = include_str!("tutorial_testing.md"))]
//!
//! # Cargo features
//!
//! | feature | on by default | |
//! |---|---|---|
//! | `admin` | yes | the admin server; without it there are neither probes nor `/metrics`, unless the program serves its own |
//! | `money` | yes | the HTTP client of handlers with `money = true` |
//! | `ssl` | yes | TLS and SCRAM to Kafka, by the system's OpenSSL |
//! | `ssl-vendored` | no | the same, by an OpenSSL that is built from source |
//! | `otlp` | no | spans go to an OpenTelemetry collector |
//! | `schemars` | no | schemas of payloads in the [AsyncAPI document](asyncapi()) |
//! | `testing` | no | a bench for handlers, and servers for tests; for `[dev-dependencies]` |
//! | `fuzzing` | no | of the library's own fuzzing; nothing to build upon |
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]
#![warn(missing_docs)]

#[doc(hidden)]
pub mod __private;
#[cfg(feature = "admin")]
mod admin;
mod asyncapi;
mod circuit;
mod clock;
mod config;
mod decide;
#[doc = include_str!("dedup.md")]
pub mod dedup {}
mod error;
mod event;
#[doc = include_str!("failures.md")]
pub mod failures {}
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub mod guide;
mod handler;
mod health;
mod kafka;
mod lane;
#[doc = include_str!("money/rules.md")]
pub mod money;
mod move_on;
#[doc = include_str!("operate.md")]
pub mod operate {}
pub mod ops;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod outbox;
mod parking;
mod pg;
mod pipeline;
mod probe;
mod registry;
mod run;
mod spec;
mod stop;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(any(feature = "money", feature = "otlp"))]
mod tls;
mod turns;

pub use asyncapi::asyncapi;
pub use config::{Config, ConfigError, ConfigErrors};
pub use error::{Class, Classified, ClassifyExt, Failure, HandlerError, HandlerResult};
pub use event::{DecodeError, Event, EventId, EventIdError};
pub use handler::{Delivery, RawHeader, State, Tx};
pub use health::Health;
pub use money::{Charge, ChargeResponse, MoneyClient, MoneyError, MoneyRequest};
pub use run::{Builder, Problems, RunError, builder, run};

#[doc = include_str!("diagnostics.md")]
pub mod diagnostics {}

#[doc = include_str!("event.md")]
pub use idem_macros::Event;
#[doc = include_str!("attribute.md")]
pub use idem_macros::idempotent_handler;

/// What a program with handlers imports.
pub mod prelude {
    pub use crate::{
        Class, Classified, ClassifyExt, Delivery, Event, EventId, HandlerError, HandlerResult, MoneyClient, State, Tx,
        idempotent_handler,
    };
}
