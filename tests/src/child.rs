//! Programs of the workspace as child processes, which can be killed.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use idem_runtime::testing::{AfterOwner, Signal, Supervised};

use crate::{eventually_some, java};

/// A running program. It is killed when this value is dropped, or the test process dies.
#[derive(Debug)]
pub struct Program {
    process: Supervised,
    output: Arc<Mutex<Vec<String>>>,
    seen: usize,
}

impl Program {
    /// Starts a program with arguments, and variables added to this process's environment.
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub fn start(program: &Path, args: &[&str], variables: &[(String, String)]) -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe to spare");
        let after = AfterOwner { signals: &[Signal::Kill], remove: None };
        let started = Supervised::start(program, after, |command| {
            let errors = writer.try_clone().expect("a file handle to spare");
            command.args(args).envs(variables.iter().cloned()).stdout(writer).stderr(errors);
        });
        let process = started.unwrap_or_else(|error| panic!("{error}"));
        let output = Arc::new(Mutex::new(Vec::new()));
        collect(reader, Arc::clone(&output));
        Self { process, output, seen: 0 }
    }

    /// The program's process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Everything that it has printed so far, line by line, on either output.
    #[must_use]
    pub fn output(&self) -> Vec<String> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The variables that it has printed for another terminal, as `export NAME=VALUE`.
    #[must_use]
    pub fn exported(&self) -> Vec<(String, String)> {
        let variable = |line: &String| {
            let (name, value) = line.trim().strip_prefix("export ")?.split_once('=')?;
            Some((name.to_owned(), value.trim_matches('\'').to_owned()))
        };
        self.output().iter().filter_map(variable).collect()
    }

    /// Waits for a line with this text after the last line that was waited for.
    ///
    /// # Panics
    /// When it does not come within `limit`, or the program has ended without it.
    pub async fn line(&mut self, text: &str, limit: Duration) -> String {
        let what = format!("a line of output with {text:?}");
        let (process, output, seen) = (&mut self.process, &self.output, self.seen);
        let (at, line) = eventually_some(limit, &what, async || {
            let ended = process.ended().unwrap_or_else(|error| panic!("{error}"));
            let lines = output.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let found = lines.iter().enumerate().skip(seen).find(|(_, line)| line.contains(text));
            assert!(
                found.is_some() || ended.is_none(),
                "the program ended ({ended:?}) without {what}; it said:\n{}",
                lines.join("\n")
            );
            found.map(|(at, line)| (at, line.clone()))
        })
        .await;
        self.seen = at + 1;
        line
    }

    /// Kills the program (SIGKILL) and waits until it is gone.
    ///
    /// # Panics
    /// When it had ended by itself: a test that kills means a running program.
    pub async fn kill(&mut self) {
        self.signal(Signal::Kill);
        let status = self.wait(Duration::from_secs(10)).await;
        assert_eq!(
            status.signal(),
            Some(9),
            "the program had ended before it was killed; it said:\n{}",
            self.output().join("\n")
        );
    }

    /// Stops it where it is (SIGSTOP), until [`resume`](Self::resume).
    pub fn pause(&mut self) {
        self.signal(Signal::Stop);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&mut self) {
        self.signal(Signal::Continue);
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&mut self) {
        self.signal(Signal::Terminate);
    }

    /// Sends any signal; a program that has ended is left alone.
    ///
    /// # Panics
    /// When it can't be sent.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal).unwrap_or_else(|error| panic!("{error}"));
    }

    /// How it ended, if it has.
    ///
    /// # Panics
    /// When the system does not say.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// When it has not within `limit`.
    pub async fn wait(&mut self, limit: Duration) -> ExitStatus {
        let ended = self.process.wait(limit).await;
        ended.unwrap_or_else(|error| panic!("{error}; it said:\n{}", self.output().join("\n")))
    }
}

/// Builds a program of the workspace, if it is not up to date, and returns its path.
///
/// For one of this package, `Path::new(env!("CARGO_BIN_EXE_name"))` does without a build.
///
/// # Panics
/// When it does not compile.
#[must_use]
pub fn workspace_program(package: &str, bin: &str) -> PathBuf {
    build(package, ["--bin", bin]);
    java::target_dir().join("debug").join(bin)
}

/// The same for an example of the workspace.
///
/// # Panics
/// When it does not compile.
#[must_use]
pub fn workspace_example(package: &str, example: &str) -> PathBuf {
    build(package, ["--example", example]);
    java::target_dir().join("debug/examples").join(example)
}

/// Makes the README's first program in an empty directory, as its reader does, and returns it and what its build
/// took.
///
/// # Panics
/// When that does not work.
#[must_use]
pub fn first_program(directory: &Path) -> (PathBuf, String) {
    let target = java::target_dir().join("first-hour");
    let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("first-hour.sh"));
    script.arg(directory).env("CARGO_TARGET_DIR", &target).stdin(Stdio::null());
    as_from_a_shell(&mut script);
    let output = script.output().unwrap_or_else(|error| panic!("cannot run the script: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (target.join("debug/shop"), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn build(package: &str, target: [&str; 2]) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", package]).args(target);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    build.arg("--target-dir").arg(java::target_dir()).stdin(Stdio::null());
    as_from_a_shell(&mut build);
    let status = build.status().unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    assert!(status.success(), "{} of package {package} does not compile", target[1]);
}

/// What cargo says of this package to its tests would else make build scripts run again that ask for it (ring's), and half
/// of the workspace with them, here and in the next build outside.
fn as_from_a_shell(command: &mut Command) {
    let of_package = |name: &std::ffi::OsString| {
        name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_package(name)) {
        command.env_remove(name);
    }
}

/// Takes over what the program prints, and prints it again, so that a failed test shows it.
fn collect(reader: impl Read + Send + 'static, output: Arc<Mutex<Vec<String>>>) {
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            output.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    });
}
