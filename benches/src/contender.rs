//! Who is measured: the library, and what people use without it. Each runs as a process of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tests::Program;
use tokio::process::Command;

use crate::Failed;
use crate::peers::Loop;
use crate::pgbench::{Script, pgbench};
use crate::servers::{Database, LIMIT, Servers};

/// One who handles events, or only makes the same transactions.
#[derive(Clone)]
pub enum Contender {
    /// The library, by the group of its handler.
    Idem { group: &'static str, pool: u32 },
    /// kafka-go and pgx, built.
    Go(PathBuf),
    /// aiokafka, asyncpg and pydantic: the interpreter.
    Python(PathBuf),
    /// rdkafka and sqlx.
    Rust(Loop),
    /// PostgreSQL alone, with so many clients.
    Pgbench(Script, u32),
}

impl Contender {
    /// Events per second over so many events of the topic.
    pub async fn run(&self, servers: &Servers, topic: &str, events: u64) -> Result<f64, Failed> {
        let database = servers.database().await?;
        let measured = self.run_on(servers, &database, topic, events).await;
        servers.drop(database).await?;
        measured
    }

    /// The same on a database that is kept.
    pub async fn run_on(
        &self,
        servers: &Servers,
        database: &Database,
        topic: &str,
        events: u64,
    ) -> Result<f64, Failed> {
        if !matches!(self, Self::Idem { .. }) {
            database.make_flat_table().await?;
        }
        let count = events.to_string();
        let group = format!("peer-{}", uuid::Uuid::now_v7().simple());
        let of_peer = [servers.kafka.bootstrap(), &database.url, topic, &group, &count];
        let seconds = match self {
            Self::Pgbench(script, clients) => return pgbench(servers, database, *script, *clients).await,
            Self::Idem { group, .. } => {
                let eps = self.continue_on(servers, database, events).await?;
                servers.kafka.delete_group(group).await;
                events as f64 / eps
            }
            Self::Rust(kind) => {
                let args: Vec<&str> = ["peer", kind.name()].into_iter().chain(of_peer).collect();
                seconds(&this_program()?, &args, &[]).await?
            }
            Self::Go(program) => seconds(program, &of_peer, &[]).await?,
            Self::Python(interpreter) => {
                let script = peers().join("python/main.py");
                let script = script.to_string_lossy();
                let args: Vec<&str> = [&*script].into_iter().chain(of_peer).collect();
                seconds(interpreter, &args, &[]).await?
            }
        };
        database.insist_on(events).await?;
        Ok(events as f64 / seconds)
    }
}

impl Contender {
    /// Lets the library go on where it stopped, on a database that is kept.
    pub async fn continue_on(&self, servers: &Servers, database: &Database, events: u64) -> Result<f64, Failed> {
        let Self::Idem { group, pool } = self else { return Err("only the library remembers where it stopped".into()) };
        let mut variables = servers.variables(database);
        variables.push(("IDEM_POOL_SIZE".to_owned(), pool.to_string()));
        // Somebody else's work, which is measured by itself.
        variables.push(("IDEM_RELAY".to_owned(), "false".to_owned()));
        let seconds = seconds(&this_program()?, &["consume", group, &events.to_string()], &variables).await?;
        Ok(events as f64 / seconds)
    }
}

/// Waits for the line `done SECONDS`, and for the end of the program.
async fn seconds(program: &Path, args: &[&str], variables: &[(String, String)]) -> Result<f64, Failed> {
    let mut process = Program::start(program, args, variables);
    let line = process.line("done ", LIMIT).await;
    let seconds = line.trim_start_matches("done ").parse()?;
    let status = process.wait(LIMIT).await;
    if status.success() { Ok(seconds) } else { Err(format!("{} ended with {status}", program.display()).into()) }
}

pub fn this_program() -> Result<PathBuf, Failed> {
    Ok(std::env::current_exe()?)
}

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Where peers are built.
fn built() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/benches")
}

/// Builds the Go loop.
pub async fn go() -> Result<Contender, Failed> {
    let program = built().join("go-peer");
    let mut build = Command::new("go");
    build.args(["build", "-buildvcs=false", "-o"]).arg(&program).arg(".").current_dir(peers().join("go"));
    succeed(build).await?;
    Ok(Contender::Go(program))
}

/// Installs what the Python loop needs into an environment of its own.
pub async fn python() -> Result<Contender, Failed> {
    let environment = built().join("python");
    let mut create = Command::new("python3");
    create.args(["-m", "venv"]).arg(&environment);
    succeed(create).await?;
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "--quiet", "--requirement"]).arg(peers().join("python/requirements.txt"));
    succeed(install).await?;
    Ok(Contender::Python(environment.join("bin/python")))
}

async fn succeed(mut command: Command) -> Result<(), Failed> {
    let output = command.stdin(Stdio::null()).output().await?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}
