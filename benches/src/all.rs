//! Every measurement with one command, and the pictures made from them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::throughput::{self, Way};
use crate::{Failed, Options, growth, latency, memory, money, outbox, plot, shutdown};

/// Runs what there is, one after the other. What fails is said and left out.
pub async fn run(options: &Options) -> Result<Value, Failed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    fs::create_dir_all(&folder)?;
    let results = [
        ("own", throughput::run(Way::Own, options).await),
        ("shared", throughput::run(Way::Shared, options).await),
        ("batch", throughput::run(Way::Batch, options).await),
        ("contended", throughput::contended(options).await),
        ("replay", throughput::replay(options).await),
        ("lanes", throughput::lanes(options).await),
        ("backlog", throughput::backlog(options).await),
        ("latency", latency::run(&latency::Args::default(), options).await),
        ("memory", memory::run(options).await),
        ("growth", growth::run(&growth::Args::default(), options).await),
        ("money", money::run(options).await),
        ("outbox", outbox::run(options).await),
        ("shutdown", shutdown::run(options).await),
    ];
    let mut lines = serde_json::Map::new();
    for (name, result) in results {
        match result {
            Ok(line) => {
                println!("{line}");
                lines.insert(name.to_owned(), line);
            }
            Err(why) => eprintln!("{name} could not be measured: {why}"),
        }
    }
    let lines = Value::Object(lines);
    fs::write(folder.join("results.json"), serde_json::to_string_pretty(&lines)? + "\n")?;
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
