//! PostgreSQL alone: the same statements from its own load generator, without Kafka.

use std::fmt::Write as _;
use std::fs;

use tokio::process::Command;

use crate::Failed;
use crate::handlers::ACCOUNTS;
use crate::servers::{Database, Servers};

/// What a transaction of pgbench holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// One event: the dedup row and one update.
    One,
    /// 500 events: their dedup rows in one statement, and an update each, pipelined.
    Many,
    /// 500 events: their dedup rows, and one update of all accounts.
    Set,
}

const MANY: i64 = 500;
const SECONDS: u32 = 4;

impl Script {
    fn events(self) -> i64 {
        if self == Self::One { 1 } else { MANY }
    }

    fn text(self) -> String {
        let random = format!("\\set account random(0, {ACCOUNTS} - 1)\n");
        // Of its own accounts, like a lane: clients that shared them would deadlock.
        let own = format!("\\set account random(0, {ACCOUNTS} / 8 - 1) * 8 + :client_id\n");
        let insert_many = format!(
            "INSERT INTO processed_event SELECT gen_random_uuid(), 'pgbench' FROM generate_series(1, {MANY}) \
             ON CONFLICT DO NOTHING;\n"
        );
        match self {
            Self::One => format!(
                "{random}BEGIN;\n\
                 INSERT INTO processed_event VALUES (gen_random_uuid(), 'pgbench') ON CONFLICT DO NOTHING;\n\
                 UPDATE account SET balance = balance + 1 WHERE id = :account;\nCOMMIT;\n"
            ),
            Self::Many => {
                let mut text = format!("\\startpipeline\nBEGIN;\n{insert_many}");
                for _ in 0..MANY {
                    // Writing to a String can't fail.
                    let _ = writeln!(text, "{own}UPDATE account SET balance = balance + 1 WHERE id = :account;");
                }
                text + "COMMIT;\n\\endpipeline\n"
            }
            Self::Set => format!(
                "{own}BEGIN;\n{insert_many}\
                 UPDATE account SET balance = balance + 1 \
                  WHERE id IN (SELECT (:account + n * 200) % {ACCOUNTS} FROM generate_series(1, {MANY}) AS n);\n\
                 COMMIT;\n"
            ),
        }
    }
}

/// Events per second with so many clients.
pub async fn pgbench(servers: &Servers, database: &Database, script: Script, clients: u32) -> Result<f64, Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("script.sql");
    fs::write(&file, script.text())?;
    let mut command = Command::new("pgbench");
    let beside = servers.postgres.bin_dir().join("pgbench");
    if beside.exists() {
        command = Command::new(beside);
    }
    command.args(["--no-vacuum", "--file"]).arg(&file).args(["--time", &SECONDS.to_string()]);
    let protocol = if script == Script::Many { "extended" } else { "prepared" };
    command.args(["--client", &clients.to_string(), "--jobs", &clients.min(2).to_string(), "--protocol", protocol]);
    let output =
        command.arg(&database.url).output().await.map_err(|error| format!("pgbench does not start: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let tps = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    match tps {
        Some(tps) if output.status.success() => Ok(tps * script.events() as f64),
        _ => Err(format!("pgbench failed:\n{said}{}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}
