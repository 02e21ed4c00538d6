//! A service that confirms orders, and handlers that bill and ship them: service → outbox → Kafka → handler →
//! outbox → Kafka → handler, while both processes are killed every few seconds. Then orders and effects are
//! compared.
//!
//! Nothing has to be set up: PostgreSQL and a mock Kafka cluster are started. `service.rs` and `handlers.rs` are what
//! a user of the library writes; everything else is the demonstration around it.
//!
//! ```sh
//! cargo run --example orders_pipeline -- --json
//! cargo run --example orders_pipeline -- --json --orders 1000
//! ```

mod books;
mod handlers;
mod processes;
mod servers;
mod service;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use books::Books;
use processes::Processes;
use servers::Servers;

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// How often one of the two processes is killed.
const KILL_EVERY: Duration = Duration::from_millis(3_500);
/// The shortest time in which orders are confirmed, so that some of it goes wrong.
const SHORTEST: Duration = Duration::from_secs(15);
/// The most orders confirmed in a second.
const RATE: u64 = 400;
/// Orders that are confirmed at once.
const CUSTOMERS: usize = 16;
/// How long everything may take to settle after the last kill.
const SETTLING: Duration = Duration::from_secs(120);

/// Confirms, bills and ships orders while processes are killed, and counts.
#[derive(Parser)]
struct Args {
    /// Print the figures as one JSON line, last.
    #[arg(long)]
    json: bool,
    /// How many orders.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    orders: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// A process that is killed: the service.
    #[command(hide = true)]
    Serve,
    /// A process that is killed: the handlers.
    #[command(hide = true)]
    Handle,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(Role::Serve) => service::run().await.map(|()| true),
        Some(Role::Handle) => handlers::run().await.map(|()| true),
        None => demonstrate(&args).await,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("orders_pipeline: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn demonstrate(args: &Args) -> Result<bool, Error> {
    let servers = Servers::start().await?;
    let books = Books::open(&servers).await?;
    let mut processes = Processes::start(&servers)?;
    let length = SHORTEST.max(Duration::from_millis(args.orders * 1_000 / RATE));
    let confirmed = tokio::spawn(confirm_all(servers.service_url(), args.orders, length));
    let mut next_kill = Instant::now() + KILL_EVERY;
    while !confirmed.is_finished() {
        processes.check()?;
        if Instant::now() >= next_kill {
            let killed = processes.kill_one(&servers).await?;
            eprintln!("killed the {killed} with {} of {} orders shipped", books.shipped().await?, args.orders);
            next_kill = Instant::now() + KILL_EVERY;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    confirmed.await??;
    let end = Instant::now() + SETTLING;
    while !books.are_settled(args.orders).await? && Instant::now() < end {
        processes.check()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let crashes = processes.crashes();
    processes.finish().await?;
    let figures = books.figures(&servers, args.orders, crashes).await?;
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!("{figures:#?}");
    }
    Ok(figures.lost == 0 && figures.double_effects == 0 && figures.effects == figures.orders)
}

/// Customers, each of whom tries again until the service has answered.
async fn confirm_all(service: String, orders: u64, length: Duration) -> Result<(), Error> {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?;
    let (start, pause) = (Instant::now(), length / u32::try_from(orders)?);
    let confirmations = stream::iter(1..=orders).map(|order| {
        let (client, url) = (client.clone(), format!("{service}/orders/{order}/confirm"));
        async move {
            tokio::time::sleep_until(start + pause * u32::try_from(order).unwrap_or(u32::MAX)).await;
            loop {
                let answer = client.post(&url).send().await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
    confirmations.buffer_unordered(CUSTOMERS).collect::<()>().await;
    Ok(())
}
