//! Thousands of charges while everything goes wrong: the provider loses answers after charging, the
//! consumer processes are killed every few seconds, and two of them take partitions from each other.
//! Then the provider's books are compared with the events.
//!
//! Nothing has to be set up: PostgreSQL, a mock Kafka cluster and a payment provider are started.
//! `handlers.rs` is what a user of the library writes; everything else is the demonstration around it.
//!
//! ```sh
//! cargo run --example money -- --json
//! cargo run --example money -- --json --events 5000
//! ```

mod books;
mod consumers;
mod handlers;
mod servers;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::time::Instant;

use books::Books;
use consumers::Consumers;
use servers::Servers;

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// How often one of the two processes is killed.
const KILL_EVERY: Duration = Duration::from_secs(4);
/// The shortest time in which events are published, so that some of it goes wrong.
const SHORTEST: Duration = Duration::from_secs(18);
/// The most events published in a second.
const RATE: u64 = 120;
/// How long everything may take to settle after the last kill.
const SETTLING: Duration = Duration::from_secs(60);

/// Charges once for each event, while answers are lost and processes are killed, and counts.
#[derive(Parser)]
struct Args {
    /// Print the figures as one JSON line, last.
    #[arg(long)]
    json: bool,
    /// How many events.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// A process that is killed: runs the handler.
    #[command(hide = true)]
    Consume,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(Role::Consume) => consume().await.map(|()| true),
        None => campaign(&args).await,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("money: {error}");
            ExitCode::FAILURE
        }
    }
}

/// All that a service of one's own has in its `main`.
async fn consume() -> Result<(), Error> {
    tracing_subscriber::fmt().with_env_filter("error").with_writer(std::io::stderr).init();
    Ok(idem_runtime::run().await?)
}

async fn campaign(args: &Args) -> Result<bool, Error> {
    let servers = Servers::start().await?;
    let mut books = Books::open(&servers).await?;
    let mut consumers = Consumers::start(&servers)?;

    let length = SHORTEST.max(Duration::from_millis(args.events * 1_000 / RATE));
    let pause = length / u32::try_from(args.events).unwrap_or(u32::MAX);
    let start = Instant::now();
    let (mut next_kill, mut charged_at_kill) = (start + KILL_EVERY, 0);
    for number in 0..args.events {
        tokio::time::sleep_until(start + pause * u32::try_from(number).unwrap_or(u32::MAX)).await;
        books.publish().await?;
        if Instant::now() < next_kill {
            continue;
        }
        // Only while they work: a group that never gets going would show nothing.
        let charged = servers.provider.charges().len() as u64;
        if charged >= charged_at_kill + args.events / 20 {
            charged_at_kill = charged;
            consumers.kill_one(&servers).await?;
            next_kill = Instant::now() + KILL_EVERY;
            eprintln!("killed a process after {} of {} events", number + 1, args.events);
        }
    }
    let end = Instant::now() + SETTLING;
    while !books.are_settled(&servers).await? && Instant::now() < end {
        consumers.check()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let crashes = consumers.crashes();
    consumers.finish().await?;
    let figures = books.figures(&servers, crashes).await?;
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!("{figures:#?}");
    }
    Ok(figures.double_charges == 0 && figures.missed == 0)
}
