//! Two groups handle a few thousand events while their process is killed again and again; then the
//! effects are counted.
//!
//! Nothing has to be set up: a PostgreSQL and a mock Kafka cluster are started, unless
//! `IDEM_DATABASE_URL` or `IDEM_KAFKA_BROKERS` point elsewhere. `handlers.rs` is what a user of the
//! library writes; everything else is the demonstration around it.

mod consumer;
mod error;
mod figures;
mod handlers;
mod load;
mod progress;
mod servers;
mod settled;
mod topics;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::time::Instant;

use consumer::Consumer;
use error::QuickstartError;
use figures::Figures;
use load::Load;
use progress::Progress;
use servers::Servers;
use watch::Watch;

/// How often the consumer is killed.
const CRASHES: u64 = 3;

/// The whole demonstration may take this long.
const LIMIT: Duration = Duration::from_secs(80);

/// Publishes events, handles them in a process that is killed at random moments, and counts what
/// was lost and what happened twice.
#[derive(Parser)]
struct Args {
    /// Print the figures as one JSON line, last.
    #[arg(long)]
    json: bool,
    /// Leave broker and database up until Ctrl-C, for other programs.
    #[arg(long)]
    keep: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// The process that is killed: runs the handlers.
    #[command(hide = true)]
    Consume,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(Role::Consume) => consume().await.map(|()| ExitCode::SUCCESS),
        None => demonstrate(&args).await,
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("quickstart: {error}");
        ExitCode::FAILURE
    })
}

/// What a service of one's own has in its `main`, but for the lines that count.
async fn consume() -> Result<(), QuickstartError> {
    settled::report_duplicates();
    Ok(idem_runtime::run().await?)
}

async fn demonstrate(args: &Args) -> Result<ExitCode, QuickstartError> {
    let deadline = Instant::now() + LIMIT;
    let load = Load::plan();
    let progress = Progress::new(load.effects());
    let servers = Servers::start(&progress).await?;
    let watch = Watch::start(&servers, &load).await?;
    progress.say("publishing");
    let published = load.publish(&servers).await?;

    let mut consumer = Consumer::start(&servers)?;
    let handled = handle(&mut consumer, &watch, &progress, &servers, load.effects());
    let in_time = match tokio::time::timeout_at(deadline, handled).await {
        Ok(handled) => handled.map(|()| true)?,
        Err(_) => false,
    };
    if in_time {
        consumer.finish().await?;
    } else {
        progress.say(&format!("not done after {LIMIT:?}: {}", watch.missing().await?.join("; ")));
        consumer.abandon().await?;
    }
    progress.say("counting");
    let figures = Figures {
        published,
        duplicates_skipped: consumer.duplicates(),
        crashes: consumer.crashes(),
        ..watch.count().await?
    };
    progress.done();

    if !args.json {
        println!("{}", figures.table());
    }
    if args.keep {
        println!("export IDEM_DATABASE_URL='{}'", servers.database_url());
        println!("export IDEM_KAFKA_BROKERS='{}'", servers.brokers());
    }
    if args.json {
        println!("{}", figures.json());
    }
    if args.keep {
        eprintln!("broker and database stay up until Ctrl-C");
        tokio::signal::ctrl_c().await.map_err(QuickstartError::CtrlC)?;
    }
    Ok(if in_time && figures.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Kills the consumer at random moments while it works, then waits until everything is done.
async fn handle(
    consumer: &mut Consumer,
    watch: &Watch,
    progress: &Progress,
    servers: &Servers,
    effects: u64,
) -> Result<(), QuickstartError> {
    for crash in 1..=CRASHES {
        // A random amount of work further on: a random time alone would often hit the long pauses
        // in which a new member waits for the group.
        let part = effects / (CRASHES + 1);
        let moment = part * (crash - 1) + fastrand::u64(1..=part);
        progress.effects_until(consumer, watch, moment).await?;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
        consumer.kill().await?;
        let seen = watch.effects().await?;
        progress.say(&format!("crash {crash} of {CRASHES}: killed after {seen} of {effects} effects"));
        consumer.start_again(servers)?;
    }
    progress.effects_until(consumer, watch, effects).await?;
    progress.say("waiting for retries and dead letters");
    while !watch.missing().await?.is_empty() {
        consumer.check()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
