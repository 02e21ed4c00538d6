//! The service's process and the handlers', which are killed at random and started again.

use std::time::Duration;

use idem_runtime::testing::{AfterOwner, Signal, Supervised};

use crate::Error;
use crate::servers::Servers;

/// How long a process may take to be gone.
const ENDING: Duration = Duration::from_secs(15);
const ROLES: [(&str, &str); 2] = [("serve", "service"), ("handle", "handlers")];

pub struct Processes {
    running: [Supervised; 2],
    crashes: [u64; 2],
}

impl Processes {
    pub fn start(servers: &Servers) -> Result<Self, Error> {
        Ok(Self { running: [start(servers, ROLES[0].0)?, start(servers, ROLES[1].0)?], crashes: [0; 2] })
    }

    /// Kills one of them, as a crash of the machine would, and starts it anew. At random, but neither is spared.
    pub async fn kill_one(&mut self, servers: &Servers) -> Result<&'static str, Error> {
        let which = match self.crashes {
            [service, handlers] if service > handlers + 1 => 1,
            [service, handlers] if handlers > service + 1 => 0,
            _ => fastrand::usize(0..2),
        };
        let process = &mut self.running[which];
        process.signal(Signal::Kill)?;
        process.wait(ENDING).await?;
        self.crashes[which] += 1;
        *process = start(servers, ROLES[which].0)?;
        Ok(ROLES[which].1)
    }

    /// An error if one has ended by itself.
    pub fn check(&mut self) -> Result<(), Error> {
        for (process, (_, name)) in self.running.iter_mut().zip(ROLES) {
            if let Some(status) = process.ended()? {
                return Err(format!("the {name} ended by themselves ({status}); what they said is above").into());
            }
        }
        Ok(())
    }

    pub fn crashes(&self) -> u64 {
        self.crashes.iter().sum()
    }

    /// Asks them to end, and waits.
    pub async fn finish(mut self) -> Result<(), Error> {
        for process in &mut self.running {
            process.signal(Signal::Terminate)?;
        }
        for process in &mut self.running {
            process.wait(ENDING).await?;
        }
        Ok(())
    }
}

fn start(servers: &Servers, role: &str) -> Result<Supervised, Error> {
    let after = AfterOwner { signals: &[Signal::Kill], remove: None };
    Ok(Supervised::start(std::env::current_exe()?, after, |command| {
        command.arg(role).envs(servers.variables());
    })?)
}
