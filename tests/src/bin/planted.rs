//! Whether the campaign's checker finds what it is there for: see `RELIABILITY.md`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;
use tests::campaign::planted::{self, ALL, MEMBER_FAULTS, VARIABLE};
use tests::campaign::{self, Settings};

/// A fault must be found within this time after the first event.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs small campaigns on a copy of the library with one fault planted at a time, and one without any.
#[derive(Debug, Parser)]
struct Args {
    /// Print only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only faults whose names contain this.
    #[arg(long, default_value = "")]
    only: String,
    #[arg(long, default_value_t = 2)]
    seed: u64,
}

#[derive(Debug, Serialize)]
struct Found {
    fault: &'static str,
    caught: bool,
    seconds: f64,
    wrong: usize,
    first: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let service = planted::build_service();
    let mut found = Vec::new();
    for planted in ALL.iter().filter(|planted| planted.name.contains(&args.only)) {
        let mut settings = settings(&service, args.seed);
        settings.variables.push((VARIABLE.to_owned(), planted.name.to_owned()));
        settings.server_faults = planted.server_faults.to_vec();
        eprintln!("=== {}", planted.name);
        let outcome = campaign::run(&settings).await;
        let seconds = outcome.took.as_secs_f64().round();
        let wrong = outcome.figures.wrong();
        let caught = wrong > 0 && outcome.took < LIMIT;
        eprintln!("{}", outcome.histories(1));
        let first = outcome.findings.first().map(|finding| finding.what.clone()).unwrap_or_default();
        found.push(Found { fault: planted.name, caught, seconds, wrong, first });
    }
    eprintln!("=== nothing planted");
    let without = campaign::run(&settings(&service, args.seed)).await;
    eprintln!("{}", without.histories(5));
    let (caught, false_alarms) = (found.iter().filter(|found| found.caught).count(), without.figures.wrong());
    let result = serde_json::json!({
        "planted": found.len(), "caught": caught, "false_alarms": false_alarms, "faults": found,
    });
    if args.json {
        println!("{result}");
    } else {
        println!("{result:#}");
    }
    if caught == found.len() && false_alarms == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Small and short: one broker, two members, every fault that shows some planted one.
fn settings(service: &std::path::Path, seed: u64) -> Settings {
    Settings {
        length: Duration::from_secs(35),
        settling: Duration::from_secs(20),
        seed,
        per_second: 200,
        brokers: 1,
        members: 2,
        program: service.to_owned(),
        variables: Vec::new(),
        member_faults: MEMBER_FAULTS.to_vec(),
        server_faults: ALL.iter().flat_map(|planted| planted.server_faults).copied().collect(),
    }
}
