//! Money moves once: keys, what an answer means, what is recorded and resolved, outages, restores.

mod answers;
mod bill;
mod campaign;
mod keys;
mod once;
mod reconcile;
mod start;
