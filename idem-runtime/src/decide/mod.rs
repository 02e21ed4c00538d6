//! Pure decisions: no clock, no tokio, no broker.
pub(crate) mod sql_error;
