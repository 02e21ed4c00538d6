//! A PgBouncer before a PostgreSQL of the tests.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use idem_runtime::testing::{AfterOwner, Signal, Supervised, free_port};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::eventually;

const LIMIT: Duration = Duration::from_secs(30);

/// A pooler in transaction mode on the loopback interface. It lets the superuser in with any password.
pub struct PgBouncer {
    port: u16,
    // Declared before the directory: the program ends first.
    _process: Supervised,
    _home: TempDir,
}

impl PgBouncer {
    /// Starts it before the server with this port, with more settings.
    ///
    /// # Panics
    /// When it is not installed, or does not start.
    pub async fn start(server: u16, settings: &[(&str, &str)]) -> Self {
        let home =
            tempfile::Builder::new().prefix("idem-pgbouncer-").tempdir().expect("a writable temporary directory");
        let port = free_port().unwrap_or_else(|error| panic!("{error}"));
        let users = home.path().join("users.txt");
        let more: String = settings.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\npool_mode = transaction\n\
             auth_type = trust\nauth_file = {}\n{more}",
            users.display()
        );
        let config = home.path().join("pgbouncer.ini");
        fs::write(&config, text)
            .and_then(|()| fs::write(&users, "\"postgres\" \"\"\n"))
            .expect("a directory of our own");
        let is_root = fs::metadata(home.path()).is_ok_and(|found| found.uid() == 0);
        // It refuses to be root, and reads its files as whom it becomes.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("a directory of our own");
        let user: &[&str] = if is_root { &["-u", "postgres"] } else { &[] };
        let after = AfterOwner { signals: &[Signal::Kill], remove: Some(home.path()) };
        let started = Supervised::start(program(), after, |command| {
            command.arg("-q").args(user).arg(&config);
        });
        let mut process = started.unwrap_or_else(|error| panic!("{error}"));
        eventually(LIMIT, "the pooler answers", async || {
            let ended = process.ended().unwrap_or_else(|error| panic!("{error}"));
            assert!(ended.is_none(), "tests need `pgbouncer`: on Debian, apt-get install pgbouncer ({ended:?})");
            TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        })
        .await;
        Self { port, _process: process, _home: home }
    }

    /// A URL through it.
    #[must_use]
    pub fn url(&self, database: &str, password: &str) -> String {
        format!("postgres://postgres:{password}@127.0.0.1:{}/{database}", self.port)
    }
}

/// Debian keeps it where only root's PATH leads.
fn program() -> &'static str {
    let path = "/usr/sbin/pgbouncer";
    if Path::new(path).is_file() { path } else { "pgbouncer" }
}
