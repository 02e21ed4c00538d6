//! The harness of the workspace's tests: real Kafka, real PostgreSQL, a proxy that cuts
//! connections, child processes that can be killed.
//!
//! A harness that can't do its work panics with one clear message: there is no test without it.
//! Everything that is started ends with the test process, even if that is killed.

pub mod campaign;
pub mod child;
pub mod cli;
pub mod client;
pub mod collector;
mod elsewhere;
pub mod env;
pub mod http;
pub mod java;
pub mod kafka;
pub mod orders;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
mod records;
pub mod refusing;
pub mod run;
mod statements;
pub mod wait;

pub use child::Program;
pub use client::{Client, Committed};
pub use collector::Collector;
pub use env::TestEnv;
pub use http::Browser;
pub use idem_runtime::testing::{MockBroker, Postgres};
pub use kafka::Kafka;
pub use pgbouncer::PgBouncer;
pub use proxy::{Fault, Proxy};
pub use records::{ReadRecord, Record};
pub use refusing::Refusing;
pub use run::Run;
pub use wait::{eventually, eventually_some};
