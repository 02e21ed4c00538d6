//! What a service needs of the servers it works with, and what it refuses.

mod least;
mod pooler;
mod servers;
