//! The project's measurements, a subcommand each. Figures are ratios of runs side by side: the
//! absolute ones drift with whatever else the machine does.

use std::error::Error;

use clap::{Args, Parser, Subcommand};
use serde_json::Value;

mod all;
mod compile;
mod consume;
mod contender;
mod growth;
mod handlers;
mod latency;
mod memory;
mod money;
mod outbox;
mod peers;
mod pgbench;
mod plot;
mod rounds;
mod servers;
mod shutdown;
mod throughput;

use throughput::Way;

/// Why a measurement could not be made.
pub type Failed = Box<dyn Error + Send + Sync>;

#[derive(Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
    #[command(flatten)]
    options: Options,
    /// Print one line of JSON last.
    #[arg(long, global = true)]
    json: bool,
}

/// What all scenarios on servers take.
#[derive(Args, Clone)]
pub struct Options {
    /// Interleaved runs of each contender; figures are their medians.
    #[arg(long, global = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Events of a run of the library's, instead of the scenario's own number.
    #[arg(long, global = true)]
    events: Option<u64>,
}

#[derive(Subcommand)]
enum Scenario {
    /// Everything but `compile`, with the README's pictures.
    All(all::Args),
    /// What the attribute costs in `cargo check`.
    Compile(compile::Args),
    #[command(flatten)]
    Measured(Measured),
    /// The pictures again, from the results that there are.
    Plot,
    #[command(hide = true)]
    Consume(consume::Args),
    #[command(hide = true)]
    Peer(peers::Args),
}

/// Scenarios on servers, whose results are kept by [`all`].
#[derive(Subcommand)]
enum Measured {
    /// A transaction per event.
    Own,
    /// Many events in a transaction, one call each.
    Shared,
    /// Many events in a transaction and in a call.
    Batch,
    /// Shared transactions whose lanes update the same rows.
    Contended,
    /// Events that were processed before.
    Replay,
    /// Throughput against the number of lanes.
    Lanes,
    /// Throughput against the events that wait.
    Backlog,
    /// From the send to the commit in the database.
    Latency(latency::Args),
    /// The most memory that a backlog of a million events takes.
    Memory,
    /// A full dedup table beside an empty one, and transactions while a day of it is emptied.
    Growth(growth::Args),
    /// Events that wait for a payment provider, and what their bookkeeping costs.
    Money,
    /// Events that are published: the relay, and what publishing costs a transaction.
    Outbox,
    /// SIGTERM under 5,000 events a second: how long the exit takes, and what comes again.
    Shutdown,
}

impl Measured {
    async fn run(&self, options: &Options) -> Result<Value, Failed> {
        match self {
            Self::Own => throughput::run(Way::Own, options).await,
            Self::Shared => throughput::run(Way::Shared, options).await,
            Self::Batch => throughput::run(Way::Batch, options).await,
            Self::Contended => throughput::contended(options).await,
            Self::Replay => throughput::replay(options).await,
            Self::Lanes => throughput::lanes(options).await,
            Self::Backlog => throughput::backlog(options).await,
            Self::Latency(args) => latency::run(args, options).await,
            Self::Memory => memory::run(options).await,
            Self::Growth(args) => growth::run(args, options).await,
            Self::Money => money::run(options).await,
            Self::Outbox => outbox::run(options).await,
            Self::Shutdown => shutdown::run(options).await,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let Cli { scenario, options, json } = Cli::parse();
    let line = match scenario {
        Scenario::All(args) => all::run(&args, &options).await?,
        Scenario::Compile(args) => compile::run(&args)?,
        Scenario::Measured(measured) => measured.run(&options).await?,
        Scenario::Plot => all::draw()?,
        Scenario::Consume(args) => return consume::run(args).await,
        Scenario::Peer(args) => return peers::run(args).await,
    };
    if json {
        println!("{line}");
    }
    Ok(())
}
