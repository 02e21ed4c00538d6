//! Child processes that end with their owner, even if it is killed.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::TestingError;

/// Starts a watcher, then becomes the program itself: the program's process id is the one that the
/// owner knows, and its exit status is its own.
///
/// The watcher reads the owner's pipe: one signal name per line, sent on to the program. The end of
/// the pipe without the word `done` means that the owner is gone. It is started from a subshell
/// that ends at once, so that the program does not find a child it never started.
const WATCHER: &str = r#"
directory=$1 signals=$2
shift 2
exec 3<&0
(
    {
        while read -r word; do
            [ "$word" = done ] && exit 0
            kill -s "$word" $$
        done
        for signal in $signals; do
            kill -s "$signal" $$ || break
            for second in 1 2 3 4 5 6 7 8 9 10; do
                kill -s 0 $$ || break 2
                sleep 1
            done
        done
        [ -n "$directory" ] && rm -rf "$directory"
    } <&3 3<&- >/dev/null 2>&1 &
)
exec "$@" </dev/null 3<&-
"#;

/// How often a condition that nothing announces is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// A signal, by its POSIX name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are POSIX's")]
pub enum Signal {
    Interrupt,
    Quit,
    Terminate,
    Kill,
    Stop,
    Continue,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "INT",
            Self::Quit => "QUIT",
            Self::Terminate => "TERM",
            Self::Kill => "KILL",
            Self::Stop => "STOP",
            Self::Continue => "CONT",
        }
    }
}

/// What becomes of the program when its owner is dropped or dies.
#[derive(Debug, Clone, Copy)]
pub struct AfterOwner<'a> {
    /// Signals to end the program by, ten seconds apart.
    pub signals: &'static [Signal],
    /// A directory to remove if the owner was killed and can't do it.
    pub remove: Option<&'a Path>,
}

/// A running program that ends with its owner.
#[derive(Debug)]
pub struct Supervised {
    name: String,
    child: Child,
    watcher: ChildStdin,
    signals: &'static [Signal],
    status: Option<ExitStatus>,
}

impl Supervised {
    /// Starts a program. `configure` adds arguments, environment, user and output; standard input
    /// is not the program's to read.
    ///
    /// # Errors
    /// When it can't be started. A program that is not there shows as exit status 127.
    pub fn start(
        program: impl AsRef<OsStr>,
        after: AfterOwner<'_>,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self, TestingError> {
        let program = program.as_ref();
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        let signals: Vec<&str> = after.signals.iter().map(|signal| signal.name()).collect();
        let failed = |source| TestingError::Process { what: "start", program: name.clone(), source };

        let mut command = Command::new("sh");
        command.args(["-c", WATCHER, "sh"]);
        command.arg(after.remove.map_or(OsStr::new(""), Path::as_os_str));
        command.arg(signals.join(" ")).arg(program);
        configure(&mut command);
        // A group of its own: Ctrl-C in a terminal reaches the owner, who decides what follows.
        command.stdin(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let watcher = child.stdin.take();
        let watcher = watcher.ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { name, child, watcher, signals: after.signals, status: None })
    }

    /// The program's process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The program's standard output, once, if it was piped.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Sends a signal. A program that has ended is left alone.
    ///
    /// # Errors
    /// When the watcher is gone.
    pub fn signal(&mut self, signal: Signal) -> Result<(), TestingError> {
        if self.ended()?.is_some() {
            return Ok(());
        }
        // In one write, so that the watcher never reads half a name.
        let sent = self.watcher.write_all(format!("{}\n", signal.name()).as_bytes());
        sent.map_err(|source| TestingError::Process { what: "signal", program: self.name.clone(), source })
    }

    /// How the program ended, if it has.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, TestingError> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(|source| TestingError::Process {
                what: "wait for",
                program: self.name.clone(),
                source,
            })?;
            if self.status.is_some() {
                // The process id may soon be another program's: the watcher must not use it again.
                // A watcher that is gone already can't.
                let _ = self.watcher.write_all(b"done\n");
            }
        }
        Ok(self.status)
    }

    /// Waits until the program has ended.
    ///
    /// # Errors
    /// When it has not within `limit`.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus, TestingError> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if start.elapsed() > limit {
                return Err(TestingError::StillRunning { program: self.name.clone(), limit });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        for &signal in self.signals {
            if self.signal(signal).is_err() {
                return;
            }
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(10) {
                if !matches!(self.ended(), Ok(None)) {
                    return;
                }
                thread::sleep(LOOK);
            }
        }
    }
}
