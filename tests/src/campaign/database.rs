//! PostgreSQL servers behind one address: they restart, come back from an earlier base backup, or a replica
//! that lags takes over.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use idem_runtime::testing::{AfterOwner, Signal, Supervised, free_port};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

use crate::{Postgres, Proxy, eventually};

const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "app";

/// The database of the campaign. Its address, that of the proxy, never changes.
pub struct Database {
    pub proxy: Proxy,
    port: Arc<AtomicU16>,
    // Declared before the directory: the server ends first.
    primary: Server,
    programs: PathBuf,
    made: usize,
    /// How often it went back.
    rewinds: i32,
    home: TempDir,
    // Its programs may lie in a directory of its own.
    _seed: Postgres,
}

/// A running server with its data.
struct Server {
    process: Option<Supervised>,
    data: PathBuf,
    port: u16,
}

impl Database {
    /// Starts a server with an empty database.
    ///
    /// # Panics
    /// When there is no PostgreSQL to be had, or it does not start.
    pub async fn start() -> Self {
        let mut seed = Postgres::start().await.unwrap_or_else(|error| panic!("{error}"));
        seed.create_database(NAME).await.unwrap_or_else(|error| panic!("{error}"));
        seed.stop_fast().await.unwrap_or_else(|error| panic!("{error}"));
        let home = tempfile::Builder::new().prefix("idem-campaign-pg-").tempdir();
        let home = home.expect("a writable temporary directory");
        let owner = fs::metadata(seed.data_dir()).expect("the data directory that was just made");
        chown(home.path(), Some(owner.uid()), Some(owner.gid())).expect("a directory of our own");
        let data = home.path().join("data-0");
        copy(&seed.data_dir(), &data).await;
        let programs = seed.bin_dir().to_owned();
        let primary = Server::start(&programs, data).await;
        let proxy = Proxy::start(primary.port).await;
        let port = Arc::new(AtomicU16::new(primary.port));
        Self { proxy, port, primary, programs, made: 0, rewinds: 0, home, _seed: seed }
    }

    /// The URL for programs, by way of the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        url(self.proxy.port())
    }

    /// For questions of the campaign's own, past the proxy.
    #[must_use]
    pub fn address(&self) -> Address {
        Address(Arc::clone(&self.port))
    }

    /// Stops the server, fast (SIGINT) or immediately (SIGQUIT), and starts it again.
    pub async fn restart(&mut self, signal: Signal) {
        self.primary.end(signal).await;
        let data = self.primary.data.clone();
        let port = self.primary.port;
        self.primary = Server::start_on(&self.programs, data, port).await;
    }

    /// Copies the running server's data as a base backup does.
    pub async fn back_up(&mut self) -> Backup {
        self.made += 1;
        let target = self.home.path().join(format!("data-{}", self.made));
        let mut session = self.session().await;
        let _: String = sqlx::query_scalar("SELECT pg_backup_start('campaign', true)::text")
            .fetch_one(&mut session)
            .await
            .expect("the server starts a backup");
        copy(&self.primary.data, &target).await;
        let label: String = sqlx::query_scalar("SELECT labelfile FROM pg_backup_stop(false)")
            .fetch_one(&mut session)
            .await
            .expect("the server ends the backup");
        // The log up to now, over what was copied of it before.
        fs::remove_dir_all(target.join("pg_wal")).expect("the copy is ours");
        copy(&self.primary.data.join("pg_wal"), &target.join("pg_wal")).await;
        let owner = fs::metadata(&target).expect("the copy is there");
        let own = |path: PathBuf| chown(path, Some(owner.uid()), Some(owner.gid())).expect("the copy is ours");
        fs::write(target.join("backup_label"), label).expect("the copy is ours");
        own(target.join("backup_label"));
        drop(fs::remove_file(target.join("postmaster.pid")));
        Backup { data: target }
    }

    /// The server ends at once, and comes back from a backup: what was committed since is lost.
    pub async fn restore(&mut self, backup: Backup) {
        self.primary.end(Signal::Quit).await;
        let restored = Server::start(&self.programs, backup.data).await;
        self.switch_to(restored).await.remove().await;
    }

    /// Starts a replica, which is as the primary is until [`lag`](Replica::lag).
    pub async fn replica(&mut self) -> Replica {
        let Backup { data } = self.back_up().await;
        let auto = data.join("postgresql.auto.conf");
        let follow = format!("primary_conninfo = 'host=127.0.0.1 port={} user=postgres'\n", self.primary.port);
        let settings = fs::read_to_string(&auto).unwrap_or_default();
        // Written over, not made anew: it keeps its owner.
        fs::write(&auto, settings + &follow).expect("the copy is ours");
        let owner = fs::metadata(&auto).expect("it was just written");
        fs::write(data.join("standby.signal"), "").expect("the copy is ours");
        chown(data.join("standby.signal"), Some(owner.uid()), Some(owner.gid())).expect("the copy is ours");
        let server = Server::start(&self.programs, data).await;
        let port = server.port;
        eventually(LIMIT, "the replica follows", async || {
            let mut session = session(port).await;
            let follows = "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')";
            sqlx::query_scalar(follows).fetch_one(&mut session).await.expect("the replica answers")
        })
        .await;
        Replica(server)
    }

    /// The replica takes over without what it has not received: after the primary has ended at once, or so that
    /// there always is a server.
    pub async fn fail_over(&mut self, replica: Replica, without_gap: bool) {
        if !without_gap {
            self.primary.end(Signal::Quit).await;
        }
        execute(replica.0.port, "SELECT pg_promote(true, 60)").await;
        self.switch_to(replica.0).await.remove().await;
    }

    /// Ends all sessions of the service.
    pub async fn terminate_backends(&self) {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                    WHERE datname = 'app' AND pid <> pg_backend_pid()";
        execute(self.primary.port, end).await;
    }

    /// Returns the server that was replaced.
    async fn switch_to(&mut self, server: Server) -> Server {
        self.rewinds += 1;
        execute(server.port, &format!("UPDATE epoch SET number = {}", self.rewinds)).await;
        self.port.store(server.port, Ordering::SeqCst);
        self.proxy.set_upstream(server.port);
        self.proxy.cut_all();
        std::mem::replace(&mut self.primary, server)
    }

    async fn session(&self) -> PgConnection {
        session(self.primary.port).await
    }
}

/// A copy of a server's data.
pub struct Backup {
    data: PathBuf,
}

/// A server that follows the primary.
pub struct Replica(Server);

impl Replica {
    /// It receives nothing any more.
    pub async fn lag(&self) {
        execute(self.0.port, "ALTER SYSTEM SET primary_conninfo = ''").await;
        execute(self.0.port, "SELECT pg_reload_conf()").await;
    }
}

/// Where the database is now.
#[derive(Debug, Clone)]
pub struct Address(Arc<AtomicU16>);

impl Address {
    /// A session, if the database takes one.
    pub async fn session(&self) -> Option<PgConnection> {
        let url = url(self.0.load(Ordering::SeqCst));
        tokio::time::timeout(Duration::from_secs(5), PgConnection::connect(&url)).await.ok()?.ok()
    }
}

impl Server {
    async fn start(programs: &Path, data: PathBuf) -> Self {
        let port = free_port().unwrap_or_else(|error| panic!("{error}"));
        Self::start_on(programs, data, port).await
    }

    async fn start_on(programs: &Path, data: PathBuf, port: u16) -> Self {
        let owner = fs::metadata(&data).expect("the data directory is there");
        let log_path = data.join("server.log");
        let log = File::create(&log_path).expect("the data directory is ours");
        let errors = log.try_clone().expect("a file handle to spare");
        let after = AfterOwner { signals: &[Signal::Quit, Signal::Kill], remove: Some(&data) };
        let process = Supervised::start(programs.join("postgres"), after, |command| {
            if owner.uid() != fs::metadata("/proc/self").map_or(owner.uid(), |own| own.uid()) {
                command.uid(owner.uid()).gid(owner.gid());
            }
            command.current_dir(&data).stdout(log).stderr(errors).arg("-D").arg(&data);
            command.arg("-c").arg(format!("port={port}"));
            for setting in [
                "unix_socket_directories=",
                "listen_addresses=127.0.0.1",
                "max_connections=200",
                "wal_keep_size=1GB",
                "max_wal_size=2GB",
                "shared_buffers=256MB",
                "autovacuum_naptime=20s",
            ] {
                command.arg("-c").arg(setting);
            }
        });
        let mut process = process.unwrap_or_else(|error| panic!("{error}"));
        eventually(LIMIT, "PostgreSQL answers", async || {
            let ended = process.ended().unwrap_or_else(|error| panic!("{error}"));
            let log = || fs::read_to_string(&log_path).unwrap_or_default();
            assert!(ended.is_none(), "PostgreSQL ended; it said:\n{}", log());
            PgConnection::connect(&url(port)).await.is_ok()
        })
        .await;
        Self { process: Some(process), data, port }
    }

    async fn end(&mut self, signal: Signal) {
        if let Some(mut process) = self.process.take() {
            let ended = async {
                process.signal(signal)?;
                process.wait(LIMIT).await
            };
            ended.await.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Ends for good, and gives its room back: half an hour has many servers.
    async fn remove(mut self) {
        self.end(Signal::Quit).await;
        fs::remove_dir_all(&self.data).expect("the data directory is ours");
    }
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/{NAME}")
}

async fn session(port: u16) -> PgConnection {
    PgConnection::connect(&url(port)).await.unwrap_or_else(|error| panic!("PostgreSQL takes no connection: {error}"))
}

async fn execute(port: u16, sql: &str) {
    let mut session = session(port).await;
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut session).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Copies a directory with owners and modes. Files of a running server come and go meanwhile, so the copy
/// says what is missing and goes on.
async fn copy(from: &Path, to: &Path) {
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(from).arg(to).stdin(Stdio::null()).stderr(Stdio::null());
    let copied = tokio::task::spawn_blocking(move || copy.status()).await.expect("no panic");
    copied.expect("cp is on every machine");
}
