//! Every decision as a pure function: no clock, no tokio, no database, no broker in here.
//!
//! What a decision needs is an argument, what follows from it is a `#[must_use]` value.

pub(crate) mod adoption;
pub(crate) mod batch_size;
pub(crate) mod brake;
pub(crate) mod caught_up;
pub(crate) mod circuit;
pub(crate) mod derived_id;
pub(crate) mod key_lanes;
pub(crate) mod memory;
pub(crate) mod money;
pub(crate) mod money_key;
pub(crate) mod offsets;
pub(crate) mod outcome;
pub(crate) mod parking;
pub(crate) mod position;
pub(crate) mod progress;
pub(crate) mod relay;
pub(crate) mod replay;
pub(crate) mod reservation;
pub(crate) mod retention;
pub(crate) mod retry;
pub(crate) mod sql_error;
pub(crate) mod stall;
pub(crate) mod step;
pub(crate) mod topics;
pub(crate) mod turns;
pub(crate) mod versions;
pub(crate) mod window;

#[cfg(test)]
mod simulation;
