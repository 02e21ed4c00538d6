//! The fault campaign. See `RELIABILITY.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tests::campaign::{self, Settings, schedule};

/// Runs a service of several processes while everything goes wrong, and counts what was lost and what
/// happened twice. Exits with 1 if anything was, or if work was not resumed in time.
#[derive(Debug, Parser)]
struct Args {
    /// How long records are sent and faults happen.
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// Decides load and faults; an even one runs the groups with the classic protocol, an odd one with the
    /// new one. Without it, the number of the day since 1970.
    #[arg(long)]
    seed: Option<u64>,
    /// Records in a second.
    #[arg(long, default_value_t = 700)]
    per_second: u32,
    /// Three where there are 8 GiB of memory to spare, otherwise one.
    #[arg(long)]
    brokers: Option<usize>,
    /// Processes with the handlers.
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// The longest time without progress, in seconds, that is not a failure.
    #[arg(long, default_value_t = campaign::LONGEST_RECOVERY.as_secs())]
    longest_recovery: u64,
    /// Print only the figures, as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Write figures and findings there too.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let settings = Settings {
        length: Duration::from_secs_f64(args.minutes * 60.0),
        settling: campaign::SETTLING,
        seed: args.seed.unwrap_or_else(campaign::seed_of_the_day),
        per_second: args.per_second,
        brokers: args.brokers.unwrap_or_else(campaign::brokers_for_this_machine),
        members: args.members,
        memory: campaign::MEMORY,
        program: campaign::service(),
        variables: Vec::new(),
        member_faults: schedule::MEMBER_DECK.to_vec(),
        server_faults: schedule::SERVER_DECK.to_vec(),
    };
    let outcome = campaign::run(&settings).await;
    let histories = outcome.histories(20);
    let figures = serde_json::to_string(&outcome.figures).unwrap_or_default();
    if let Some(out) = &args.out {
        let written = std::fs::create_dir_all(out)
            .and_then(|()| std::fs::write(out.join("figures.json"), &figures))
            .and_then(|()| std::fs::write(out.join("findings.txt"), &histories));
        if let Err(error) = written {
            eprintln!("cannot write to {}: {error}", out.display());
        }
    }
    eprint!("{histories}");
    if args.json {
        println!("{figures}");
    } else {
        println!("{}", serde_json::to_string_pretty(&outcome.figures).unwrap_or_default());
    }
    if outcome.figures.are_right_within(Duration::from_secs(args.longest_recovery)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
