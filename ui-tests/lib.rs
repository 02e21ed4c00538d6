//! Holds the tests of the diagnostics: see README.md.
