//! Ports for servers.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use super::TestingError;

/// A port of the loopback interface that nobody listens on now.
///
/// It lies below the range that systems give to outgoing connections: a client that keeps trying
/// to reach a stopped server would otherwise be given the server's own port sooner or later,
/// connect to itself, and keep the server from starting again.
///
/// # Errors
/// When none was found.
pub fn free_port() -> Result<u16, TestingError> {
    (0..200)
        .map(|attempt| {
            // The standard library's only source of randomness; good enough to keep two processes
            // apart.
            let random = RandomState::new().hash_one(attempt);
            15_000 + u16::try_from(random % 16_000).unwrap_or(0)
        })
        .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        .ok_or(TestingError::NoPort)
}
