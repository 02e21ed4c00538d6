//! For whoever decides, begins, or comes from elsewhere.

#[doc = include_str!("guide/choosing.md")]
pub mod choosing {}
#[doc = include_str!("guide/comparison.md")]
pub mod comparison {}
#[doc = include_str!("guide/moving.md")]
pub mod moving {}
#[doc = include_str!("guide/what_happens_when.md")]
pub mod what_happens_when {}
