//! The measurements with one command, and the pictures made from them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use crate::{Failed, Measured, Options, growth, latency, plot};

#[derive(ClapArgs)]
pub struct Args {
    /// Measures only these again; the others keep their results.
    #[arg(value_parser = PossibleValuesParser::new(every().map(|(name, _)| name)))]
    only: Vec<String>,
}

/// Runs one after the other. What fails is said and left out; results are written as they come.
pub async fn run(args: &Args, options: &Options) -> Result<Value, Failed> {
    let folder = folder();
    fs::create_dir_all(&folder)?;
    let file = folder.join(RESULTS);
    let mut lines = results(&file)?;
    for (name, scenario) in every() {
        if !args.only.is_empty() && args.only.iter().all(|only| only != name) {
            continue;
        }
        match scenario.run(options).await {
            Ok(line) => {
                println!("{line}");
                lines.insert(name.to_owned(), line);
                fs::write(&file, serde_json::to_string_pretty(&lines)? + "\n")?;
            }
            Err(why) => eprintln!("{name} could not be measured: {why}"),
        }
    }
    draw()
}

/// Draws the pictures from the results that there are.
pub fn draw() -> Result<Value, Failed> {
    let folder = folder();
    let lines = Value::Object(results(&folder.join(RESULTS))?);
    plot::throughput(&folder.join("throughput.svg"), &bars(&lines))?;
    for (scenario, what) in [("backlog", "the events that wait"), ("lanes", "the number of lanes")] {
        let eps = &lines[scenario]["eps"];
        if eps.is_object() {
            plot::against(&folder.join(format!("{scenario}.svg")), what, eps)?;
        }
    }
    eprintln!("results and pictures are in {}", folder.display());
    Ok(lines)
}

const RESULTS: &str = "results.json";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

/// The line of each scenario that was measured.
fn results(file: &Path) -> Result<serde_json::Map<String, Value>, Failed> {
    match fs::read(file) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(serde_json::Map::new()),
        Err(error) => Err(error.into()),
    }
}

/// Every scenario, in its order, by its name on the command line and in the results.
fn every() -> [(&'static str, Measured); 13] {
    [
        ("own", Measured::Own),
        ("shared", Measured::Shared),
        ("batch", Measured::Batch),
        ("contended", Measured::Contended),
        ("replay", Measured::Replay),
        ("lanes", Measured::Lanes),
        ("backlog", Measured::Backlog),
        ("latency", Measured::Latency(latency::Args::default())),
        ("memory", Measured::Memory),
        ("growth", Measured::Growth(growth::Args::default())),
        ("money", Measured::Money),
        ("outbox", Measured::Outbox),
        ("shutdown", Measured::Shutdown),
    ]
}

/// Ours by scenario, and everybody else once: as measured beside the shared way.
fn bars(lines: &Value) -> Vec<(String, f64, bool)> {
    let ours =
        ["replay", "batch", "shared", "own"].map(|scenario| (format!("idem, {scenario}"), scenario, "eps", true));
    let others = [
        ("PostgreSQL alone, 500 per commit", "pgbench_batch_eps"),
        ("Rust by hand, batched", "rust_batched_eps"),
        ("PostgreSQL alone, 1 per commit", "pgbench_commit_eps"),
        ("Go", "go_eps"),
        ("Rust", "rust_naive_eps"),
        ("Python", "python_eps"),
    ]
    .map(|(name, field)| (name.to_owned(), "shared", field, false));
    let all = ours.into_iter().chain(others);
    all.filter_map(|(name, scenario, field, ours)| Some((name, lines[scenario][field].as_f64()?, ours))).collect()
}
