//! Everything that talks to Kafka.

pub(crate) mod admin;
pub(crate) mod client_config;
pub(crate) mod consumer;
pub(crate) mod forward;
mod headers;
pub(crate) mod names;
pub(crate) mod producer;
pub(crate) mod record;
