//! Whether the campaign's checker finds what it is there for: see `RELIABILITY.md`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;
use tests::campaign::checker::Wrong;
use tests::campaign::planted::{self, ALL, MEMBER_FAULTS, VARIABLE};
use tests::campaign::{self, Outcome, Settings};

/// A fault must be found within this time after the first event.
const LIMIT: Duration = Duration::from_secs(120);

/// So that keys run out within a small campaign. Nobody is stopped in the middle of a call here.
const MEMORY: Duration = Duration::from_secs(8);

/// Runs small campaigns on a copy of the library with one fault planted at a time, and without any. Each has to be
/// found as what it does, and nothing may be found where nothing is planted.
#[derive(Debug, Parser)]
struct Args {
    /// Print only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only faults whose names contain this; `none`: nothing planted.
    #[arg(long, default_value = "")]
    only: String,
    #[arg(long, default_value_t = 2)]
    seed: u64,
}

#[derive(Debug, Serialize)]
struct Found {
    fault: &'static str,
    /// As what it has to be found; nothing may be found where nothing is said.
    expected: Option<Wrong>,
    is_as_expected: bool,
    seconds: f64,
    /// How many findings of that kind there are, and of all kinds.
    of_this_kind: usize,
    wrong: usize,
    complaints: Vec<String>,
    first: String,
}

impl Found {
    fn new(fault: &'static str, expected: Option<Wrong>, never: Option<Wrong>, outcome: &Outcome) -> Self {
        let seconds = outcome.took.as_secs_f64().round();
        let mut of_this_kind = outcome.findings.iter().filter(|finding| Some(finding.wrong) == expected);
        let first = of_this_kind.clone().next().or(outcome.findings.first());
        let first = first.map(|finding| finding.what.clone()).unwrap_or_default();
        let is_as_expected = match expected {
            // What did not come to its end might have come right.
            Some(_) => {
                let is_alone = !outcome.findings.iter().any(|finding| Some(finding.wrong) == never);
                of_this_kind.next().is_some() && is_alone && outcome.settled && outcome.took < LIMIT
            }
            None => outcome.figures.are_right_within(campaign::LONGEST_RECOVERY * 2),
        };
        let of_this_kind = outcome.findings.iter().filter(|finding| Some(finding.wrong) == expected).count();
        let (wrong, complaints) = (outcome.figures.wrong(), outcome.figures.complaints.clone());
        Self { fault, expected, is_as_expected, seconds, of_this_kind, wrong, complaints, first }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let service = planted::build_service();
    let mut found = Vec::new();
    for planted in ALL.iter().filter(|planted| planted.name.contains(&args.only)) {
        let mut settings = settings(&service, args.seed);
        settings.variables.push((VARIABLE.to_owned(), planted.switches()));
        settings.server_faults = planted.server_faults.to_vec();
        eprintln!("=== {}", planted.name);
        let outcome = campaign::run(&settings).await;
        eprintln!("{}", outcome.histories(1));
        found.push(Found::new(planted.name, Some(planted.expected), planted.never, &outcome));
        eprintln!("{:?}", found.last());
    }
    if args.only.is_empty() || args.only == "none" {
        eprintln!("=== nothing planted");
        let outcome = campaign::run(&settings(&service, args.seed)).await;
        eprintln!("{}", outcome.histories(5));
        found.push(Found::new("none", None, None, &outcome));
    }
    let (planted, controls): (Vec<Found>, Vec<Found>) = found.into_iter().partition(|found| found.expected.is_some());
    let count = |found: &[Found]| found.iter().filter(|found| found.is_as_expected).count();
    let (caught, false_alarms) = (count(&planted), controls.len() - count(&controls));
    let is_right = caught == planted.len() && false_alarms == 0;
    let result = serde_json::json!({
        "planted": planted.len(), "caught": caught, "false_alarms": false_alarms, "faults": planted, "nothing_planted": controls,
    });
    if args.json {
        println!("{result}");
    } else {
        println!("{result:#}");
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Small and short: one broker, two members, every fault that shows some planted one.
fn settings(service: &std::path::Path, seed: u64) -> Settings {
    Settings {
        length: Duration::from_secs(35),
        settling: Duration::from_secs(45),
        seed,
        per_second: 200,
        brokers: 1,
        members: 2,
        memory: MEMORY,
        program: service.to_owned(),
        variables: Vec::new(),
        member_faults: MEMBER_FAULTS.to_vec(),
        server_faults: ALL.iter().flat_map(|planted| planted.server_faults).copied().collect(),
    }
}
