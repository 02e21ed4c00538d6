//! What is wrong with the settings.

use std::fmt;

/// Everything that is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} wrong setting{}", self.0.len(), if self.0.len() == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|error| write!(f, "\n  - {error}"))
    }
}

impl std::error::Error for ConfigErrors {}

/// One wrong setting. The value is not repeated: it may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct ConfigError {
    /// The variable's name.
    pub variable: String,
    /// What is wrong, and what to write instead.
    pub problem: String,
}
