//! Which path a database error takes.

use crate::error::Class;

/// Placeholder: every database error is worth another attempt.
pub(crate) fn class(_error: &sqlx::Error) -> Class {
    Class::Transient
}
