//! The project's measurements, a subcommand each.

use std::error::Error;

use clap::{Parser, Subcommand};

mod compile;
mod money;

#[derive(Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
    /// Print one line of JSON last.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Scenario {
    /// What the attribute costs in `cargo check`.
    Compile(compile::Args),
    /// Events that wait for a payment provider, and what their bookkeeping costs.
    Money(money::Args),
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let line = match cli.scenario {
        Scenario::Compile(args) => compile::run(&args)?,
        Scenario::Money(args) => money::run(&args)?,
    };
    if cli.json {
        println!("{line}");
    }
    Ok(())
}
