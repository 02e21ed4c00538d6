//! The command `idem` as a child process.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::child::workspace_program;

/// How the command ended, and what it said.
#[derive(Debug)]
pub struct Said {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// The one JSON document of a command that succeeded.
    ///
    /// # Panics
    /// When it failed, or said anything else.
    pub fn json(&self) -> Value {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {}", self.stdout))
    }
}

/// Runs the command as an operator's script does, with nobody at a terminal.
///
/// # Panics
/// When it does not compile or start.
pub async fn idem(variables: Vec<(String, String)>, args: &[&str]) -> Said {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let run = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(workspace_program("idem-cli", "idem"));
        command.args(args).envs(variables).stdin(Stdio::null()).output().expect("the command starts")
    });
    let output = run.await.expect("no panic");
    Said {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
