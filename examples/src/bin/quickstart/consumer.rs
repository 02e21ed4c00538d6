//! The process with the handlers: started, killed, started again.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use idem_runtime::testing::{AfterOwner, Signal, Supervised};

use crate::error::QuickstartError;
use crate::servers::Servers;

/// How long a killed process may take to be gone, and a process that was asked to end to do so.
const ENDING: Duration = Duration::from_secs(15);

/// The consumer process. It ends with this one.
pub struct Consumer {
    process: Supervised,
    reader: Option<JoinHandle<()>>,
    duplicates: Arc<AtomicU64>,
    crashes: u64,
}

impl Consumer {
    pub fn start(servers: &Servers) -> Result<Self, QuickstartError> {
        let duplicates = Arc::new(AtomicU64::new(0));
        let (process, reader) = start(servers, &duplicates)?;
        Ok(Self { process, reader: Some(reader), duplicates, crashes: 0 })
    }

    /// Starts it again after it was killed.
    pub fn start_again(&mut self, servers: &Servers) -> Result<(), QuickstartError> {
        let (process, reader) = start(servers, &self.duplicates)?;
        (self.process, self.reader) = (process, Some(reader));
        Ok(())
    }

    /// Kills it, as a crash of the machine would: it has no chance to finish anything.
    pub async fn kill(&mut self) -> Result<(), QuickstartError> {
        let status = self.end(Signal::Kill).await?;
        if status.signal() != Some(9) {
            return Err(QuickstartError::ConsumerEnded(status));
        }
        self.crashes += 1;
        Ok(())
    }

    /// Asks it to end, and waits.
    pub async fn finish(&mut self) -> Result<(), QuickstartError> {
        let status = self.end(Signal::Terminate).await?;
        if status.success() { Ok(()) } else { Err(QuickstartError::ConsumerEnded(status)) }
    }

    /// Ends it without counting that as a crash, when the demonstration has failed anyway.
    pub async fn abandon(&mut self) -> Result<(), QuickstartError> {
        self.end(Signal::Kill).await.map(drop)
    }

    /// An error if it has ended by itself.
    pub fn check(&mut self) -> Result<(), QuickstartError> {
        match self.process.ended()? {
            Some(status) => Err(QuickstartError::ConsumerEnded(status)),
            None => Ok(()),
        }
    }

    /// How many duplicates the handlers' process has reported, over all its lives.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::SeqCst)
    }

    /// How often it was killed.
    pub fn crashes(&self) -> u64 {
        self.crashes
    }

    /// Ends it, and waits until everything it wrote has been read.
    async fn end(&mut self, signal: Signal) -> Result<ExitStatus, QuickstartError> {
        self.process.signal(signal)?;
        let status = self.process.wait(ENDING).await?;
        if let Some(reader) = self.reader.take() {
            // It only counts lines: nothing in it panics.
            let _ = reader.join();
        }
        Ok(status)
    }
}

fn start(servers: &Servers, duplicates: &Arc<AtomicU64>) -> Result<(Supervised, JoinHandle<()>), QuickstartError> {
    let program = std::env::current_exe().map_err(QuickstartError::OwnProgram)?;
    let after = AfterOwner { signals: &[Signal::Kill], remove: None };
    let mut process = Supervised::start(program, after, |command| {
        command.arg("consume").envs(servers.variables()).stdout(Stdio::piped());
    })?;
    let output = process.take_stdout().ok_or(QuickstartError::NoOutput)?;
    let duplicates = Arc::clone(duplicates);
    let reader = thread::spawn(move || {
        for _ in BufReader::new(output).lines().map_while(Result::ok).filter(|line| line == "duplicate") {
            duplicates.fetch_add(1, Ordering::SeqCst);
        }
    });
    Ok((process, reader))
}
