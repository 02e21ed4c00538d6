//! `idem`, the operator's command. What it does is in `idem_runtime::ops`; here it is asked for and
//! printed.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod accept;
mod args;
mod progress;
mod report;
mod table;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use idem_runtime::ops::{Ops, OpsError, dlq, forget, groups, money, offsets, partitions, replay, settings, status};
use idem_runtime::{Config, ConfigErrors, RunError, ops, outbox};

use args::{Cli, Command, ConfigCommand, DlqCommand, Existing, GroupCommand, MoneyCommand, OutboxCommand};
use progress::Progress;
use report::{Groups, MoneyCalls, RelayEnded, Report, Settings};

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Ops(#[from] OpsError),
    #[error("{0}")]
    Settings(#[from] ConfigErrors),
    #[error("{0}")]
    Relay(#[from] RunError),
    #[error("this can't be undone by running it again, and nobody can be asked here: add --yes")]
    NobodyToAsk,
    #[error("nothing was changed")]
    Declined,
    #[error("can't write to standard output: {0}")]
    Output(#[from] std::io::Error),
}

impl Failure {
    fn status(&self) -> ExitCode {
        match self {
            // The command line lacks something.
            Self::NobodyToAsk => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(cli).await {
        Ok(status) => status,
        Err(failure) => {
            eprintln!("idem: {failure}");
            failure.status()
        }
    }
}

async fn run(Cli { json, command }: Cli) -> Result<ExitCode, Failure> {
    if let Command::Config(ConfigCommand::Check) = command {
        return check_settings(json);
    }
    if let Command::Relay = command {
        outbox::relay(Config::from_env()?, std::future::pending()).await?;
        print(&RelayEnded { relay: "ended" }, json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ops = Ops::new(Config::from_env()?);
    let progress = Progress::new();
    let report: Box<dyn Report> = match command {
        Command::Migrate { how, grant } => {
            let schema = match how {
                Existing { partition: true, .. } => status::partition(&ops).await?,
                Existing { rebuild: true, .. } => status::rebuild(&ops).await?,
                _ => status::migrate(&ops).await?,
            };
            if let Some(role) = grant {
                status::grant(&ops, &role).await?;
            }
            Box::new(schema)
        }
        Command::Partitions => Box::new(partitions::list(&ops).await?),
        Command::Status => Box::new(status::status(&ops).await?),
        Command::Offsets { group } => Box::new(offsets::offsets(&ops, &group.group).await?),
        Command::Group(GroupCommand::List) => Box::new(Groups { groups: groups::list(&ops).await? }),
        Command::Group(GroupCommand::Accept { group, yes }) => {
            accept::confirm(&accept::accepting(&group), yes)?;
            Box::new(groups::accept(&ops, &group).await?)
        }
        Command::Group(GroupCommand::Forget { group, yes }) => {
            accept::confirm(&accept::forgetting(&group), yes)?;
            Box::new(forget::forget(&ops, &group).await?)
        }
        Command::Group(GroupCommand::Resume { group }) => Box::new(groups::resume(&ops, &group).await?),
        Command::Dlq(DlqCommand::List { group, letters }) => {
            Box::new(dlq::list(&ops, &group.group, &letters.filter(None), &mut progress.reading()).await?)
        }
        Command::Dlq(DlqCommand::Show { group, partition, offset, payload }) => {
            Box::new(dlq::show(&ops, &group.group, (partition, offset), payload).await?)
        }
        Command::Dlq(DlqCommand::Replay { group, letters, partition, offset, limit, dry_run, allow_expired }) => {
            let filter = letters.filter(partition.zip(offset));
            let options = replay::Options { filter, limit, dry_run, allow_expired };
            Box::new(replay::replay(&ops, &group.group, &options, &mut progress.reading()).await?)
        }
        Command::Money(MoneyCommand::List { state }) => {
            Box::new(MoneyCalls { calls: money::list(&ops, state.map(Into::into)).await? })
        }
        Command::Money(MoneyCommand::Resolve { key, decision, note }) => {
            Box::new(money::resolve(&ops, &key, decision.into(), &note).await?)
        }
        Command::Outbox(OutboxCommand::List) => Box::new(ops::outbox::list(&ops).await?),
        Command::Outbox(OutboxCommand::Release { seq, drop }) => Box::new(ops::outbox::release(&ops, seq, drop).await?),
        Command::Relay | Command::Config(ConfigCommand::Check) => return check_settings(json),
    };
    progress.done();
    print(&*report, json)?;
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_settings(json: bool) -> Result<ExitCode, Failure> {
    match Config::from_env() {
        Ok(config) => {
            print(&Settings::right(settings::of(&config)), json)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(errors) if json => {
            print(&Settings::wrong(errors), json)?;
            Ok(ExitCode::FAILURE)
        }
        Err(errors) => Err(errors.into()),
    }
}

fn print(report: &dyn Report, json: bool) -> Result<(), Failure> {
    let text = if json { report.json() } else { report.text() };
    match writeln!(std::io::stdout(), "{text}") {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
