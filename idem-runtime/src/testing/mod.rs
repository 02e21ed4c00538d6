#![doc = include_str!("../testing.md")]
// Servers for tests, and a bench for handlers (`harness/`); the page is `testing.md`.

mod binaries;
mod broker;
mod copy;
mod error;
mod fill;
mod harness;
#[doc(hidden)]
pub mod headers;
mod ports;
mod postgres;
mod provider;
mod supervise;
mod user;

pub use broker::MockBroker;
pub use error::TestingError;
pub use fill::fill_day;
pub use harness::{Delivered, End, HandlerTest, Harness, Idempotence};
pub use ports::free_port;
pub use postgres::Postgres;
pub use provider::{Provider, ProviderCharge, ProviderFault, ProviderRequest};
pub use supervise::{AfterOwner, Signal, Supervised};

pub use crate::probe::CrashPoint;
