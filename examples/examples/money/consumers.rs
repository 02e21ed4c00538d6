//! Two processes with the handler, of which one after another is killed and started again.

use std::time::Duration;

use idem_runtime::testing::{AfterOwner, Signal, Supervised};

use crate::Error;
use crate::servers::Servers;

/// How long a process may take to be gone.
const ENDING: Duration = Duration::from_secs(15);

pub struct Consumers {
    processes: [Supervised; 2],
    crashes: u64,
}

impl Consumers {
    pub fn start(servers: &Servers) -> Result<Self, Error> {
        Ok(Self { processes: [start(servers)?, start(servers)?], crashes: 0 })
    }

    /// Kills one of them, as a crash of the machine would, and starts another in its place.
    pub async fn kill_one(&mut self, servers: &Servers) -> Result<(), Error> {
        let process = &mut self.processes[usize::from(!self.crashes.is_multiple_of(2))];
        process.signal(Signal::Kill)?;
        process.wait(ENDING).await?;
        self.crashes += 1;
        *process = start(servers)?;
        Ok(())
    }

    /// An error if one has ended by itself.
    pub fn check(&mut self) -> Result<(), Error> {
        for process in &mut self.processes {
            if let Some(status) = process.ended()? {
                return Err(format!("a consumer process ended by itself ({status}); what it said is above").into());
            }
        }
        Ok(())
    }

    pub fn crashes(&self) -> u64 {
        self.crashes
    }

    /// Asks them to end, and waits.
    pub async fn finish(mut self) -> Result<(), Error> {
        for process in &mut self.processes {
            process.signal(Signal::Terminate)?;
        }
        for process in &mut self.processes {
            process.wait(ENDING).await?;
        }
        Ok(())
    }
}

fn start(servers: &Servers) -> Result<Supervised, Error> {
    let after = AfterOwner { signals: &[Signal::Kill], remove: None };
    Ok(Supervised::start(std::env::current_exe()?, after, |command| {
        command.arg("consume").envs(servers.variables());
    })?)
}
