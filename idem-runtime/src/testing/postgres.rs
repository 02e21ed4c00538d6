//! A PostgreSQL server of one's own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

use super::copy::copy_tree;
use super::supervise::{AfterOwner, Signal, Supervised};
use super::user::ServerUser;
use super::{TestingError, binaries, free_port};

/// How long a start or a stop may take. Recovery after an immediate stop is part of a start.
const LIMIT: Duration = Duration::from_secs(60);

/// A PostgreSQL server with a temporary data directory, on a port of the loopback interface.
///
/// `fsync` is on, as in production. The server found on the machine is used (`PATH`, then
/// `/usr/lib/postgresql/*/bin`, then what `pg_config` says); otherwise one is downloaded once into
/// the system's temporary directory, which `IDEM_TEST_POSTGRES=download` forces. The server ends
/// when this value is dropped or its process dies.
#[derive(Debug)]
pub struct Postgres {
    // Declared first: it ends before its directory is removed.
    server: Option<Supervised>,
    bin: PathBuf,
    user: ServerUser,
    port: u16,
    settings: Vec<(String, String)>,
    home: TempDir,
}

impl Postgres {
    /// Starts a server with default settings, except `max_connections = 200`.
    ///
    /// # Errors
    /// When there is no server to be had, or it does not start.
    pub async fn start() -> Result<Self, TestingError> {
        Self::start_with(&[]).await
    }

    /// Starts a server with settings of one's own, such as `("wal_level", "logical")`.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub async fn start_with(settings: &[(&str, &str)]) -> Result<Self, TestingError> {
        let temp = std::env::temp_dir();
        let home = tempfile::Builder::new()
            .prefix("idem-pg-")
            .tempdir_in(&temp)
            .map_err(TestingError::file("write to", &temp))?;
        let user = ServerUser::find(home.path())?;
        let bin = binaries::find(home.path(), user).await?;
        user.give(home.path())?;
        let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut postgres = Self { server: None, bin, user, port: free_port()?, settings, home };
        postgres.initdb()?;
        postgres.start_again().await?;
        Ok(postgres)
    }

    /// A URL for the superuser, database `postgres`. No password is asked for.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The same for another database.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1. It stays the same over a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// The directory with the server's programs. A downloaded server has `initdb`, `pg_ctl` and
    /// `postgres` only.
    #[must_use]
    pub fn bin_dir(&self) -> &Path {
        &self.bin
    }

    /// Creates an empty database and returns its URL.
    ///
    /// # Errors
    /// When the server refuses: the name is taken, or the server is stopped.
    pub async fn create_database(&self, name: &str) -> Result<String, TestingError> {
        let quoted = name.replace('"', "\"\"");
        let statement = AssertSqlSafe(format!("CREATE DATABASE \"{quoted}\""));
        let created = async {
            let mut connection = PgConnection::connect(&self.url()).await?;
            sqlx::raw_sql(statement).execute(&mut connection).await?;
            connection.close().await
        };
        match created.await {
            Ok(()) => Ok(self.url_of(name)),
            Err(source) => Err(TestingError::Sql { what: format!("create the database {name}"), source }),
        }
    }

    /// Stops the server as an operator would: sessions are cut, what is committed is flushed.
    ///
    /// # Errors
    /// When it does not stop.
    pub async fn stop_fast(&mut self) -> Result<(), TestingError> {
        self.stop(Signal::Interrupt).await
    }

    /// Stops the server like a crash: nothing is flushed, the next start recovers.
    ///
    /// # Errors
    /// When it does not stop.
    pub async fn stop_immediate(&mut self) -> Result<(), TestingError> {
        self.stop(Signal::Quit).await
    }

    /// Starts the stopped server on the same port and data, and waits until it answers.
    ///
    /// # Errors
    /// When it is running, or does not start.
    pub async fn start_again(&mut self) -> Result<(), TestingError> {
        if self.is_running()? {
            return Err(TestingError::AlreadyStarted);
        }
        let home = self.home.path();
        let log_path = self.log_path();
        let log = File::create(&log_path).map_err(TestingError::file("write", &log_path))?;
        let errors = log.try_clone().map_err(TestingError::file("write", &log_path))?;
        let after = AfterOwner { signals: &[Signal::Interrupt, Signal::Quit, Signal::Kill], remove: Some(home) };
        let server = Supervised::start(self.bin.join("postgres"), after, |command| {
            self.user.run(command);
            command.current_dir(home).stdout(log).stderr(errors);
            command.arg("-D").arg(self.data_dir());
            command.arg("-c").arg(format!("unix_socket_directories={}", home.display()));
            command.arg("-c").arg(format!("port={}", self.port));
            command.args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"]);
            for (name, value) in &self.settings {
                command.arg("-c").arg(format!("{name}={value}"));
            }
        })?;
        self.server = Some(server);
        self.answers().await
    }

    /// Copies the data directory of the stopped server to `target`, which must not exist yet.
    ///
    /// # Errors
    /// When the server is running, or the copy fails.
    pub async fn copy_data_dir_to(&mut self, target: &Path) -> Result<(), TestingError> {
        if self.is_running()? {
            return Err(TestingError::Running);
        }
        copy_off_thread(self.data_dir(), target.to_owned(), self.user).await
    }

    /// Replaces the stopped server's data directory by an earlier copy: what was committed since
    /// is lost, as after a restore or a failover to a replica that lagged.
    ///
    /// # Errors
    /// When the server is running, or the copy fails.
    pub async fn restore_from(&mut self, copy: &Path) -> Result<(), TestingError> {
        if self.is_running()? {
            return Err(TestingError::Running);
        }
        let data = self.data_dir();
        fs::remove_dir_all(&data).map_err(TestingError::file("remove", &data))?;
        copy_off_thread(copy.to_owned(), data, self.user).await
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("server.log")
    }

    fn is_running(&mut self) -> Result<bool, TestingError> {
        match &mut self.server {
            Some(server) => Ok(server.ended()?.is_none()),
            None => Ok(false),
        }
    }

    fn initdb(&self) -> Result<(), TestingError> {
        let mut command = Command::new(self.bin.join("initdb"));
        self.user.run(&mut command);
        command.current_dir(self.home.path()).arg("-D").arg(self.data_dir());
        // Locale C: the same messages and sort order everywhere. The files are flushed by the
        // server's own first checkpoint.
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        let output = command.output().map_err(|source| TestingError::Process {
            what: "start",
            program: "initdb".to_owned(),
            source,
        })?;
        if output.status.success() {
            return Ok(());
        }
        Err(TestingError::Ended {
            program: "initdb".to_owned(),
            status: output.status,
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    async fn stop(&mut self, signal: Signal) -> Result<(), TestingError> {
        if let Some(mut server) = self.server.take() {
            server.signal(signal)?;
            server.wait(LIMIT).await?;
        }
        Ok(())
    }

    /// Waits until the server takes connections.
    async fn answers(&mut self) -> Result<(), TestingError> {
        let start = Instant::now();
        loop {
            match PgConnection::connect(&self.url()).await {
                Ok(connection) => {
                    let closed = connection.close().await;
                    return closed.map_err(|source| TestingError::Sql { what: "close".to_owned(), source });
                }
                Err(_) if start.elapsed() < LIMIT => {}
                Err(_) => {
                    return Err(TestingError::Slow {
                        program: "postgres".to_owned(),
                        what: "answer",
                        limit: LIMIT,
                        output: self.log_end(),
                    });
                }
            }
            if let Some(status) = self.server.as_mut().map(Supervised::ended).transpose()?.flatten() {
                let output = self.log_end();
                return Err(TestingError::Ended { program: "postgres".to_owned(), status, output });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The last lines of the server's log.
    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// Copies without holding up the caller's other tasks.
async fn copy_off_thread(from: PathBuf, to: PathBuf, user: ServerUser) -> Result<(), TestingError> {
    let copy = tokio::task::spawn_blocking(move || copy_tree(&from, &to, user));
    copy.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}
