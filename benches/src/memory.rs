//! How much memory a large backlog takes.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tests::Program;

use crate::contender::this_program;
use crate::handlers::MEMORY;
use crate::servers::{LIMIT, Servers};
use crate::{Failed, Options};

const PARTITIONS: i32 = 4;
const BYTES: usize = 1_024;

/// Consumes a backlog and says the most that was resident.
pub async fn run(options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[]).await?;
    let events = options.events.unwrap_or(1_000_000);
    servers.topic(MEMORY, PARTITIONS, usize::try_from(events)?, BYTES).await?;
    let database = servers.database().await?;
    let variables = servers.variables(&database);
    let mut process = Program::start(&this_program()?, &["consume", "bench-memory", &events.to_string()], &variables);
    let status = format!("/proc/{}/status", process.id());
    let mut peak = 0.0_f64;
    let ended = loop {
        // The file says the peak so far, and goes with the process.
        if let Some(mib) = fs::read_to_string(&status).ok().and_then(|status| peak_mib(&status)) {
            peak = peak.max(mib);
        }
        if let Some(ended) = process.ended() {
            break ended;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let _ = process.wait(LIMIT).await;
    if !ended.success() {
        return Err(format!("the consumer ended with {ended}").into());
    }
    let seconds = process.output().iter().find_map(|line| line.strip_prefix("done ")?.parse::<f64>().ok());
    let seconds = seconds.ok_or("the consumer did not say how long it took")?;
    database.insist_on(events).await?;
    println!("{events} events of {BYTES} bytes in {seconds:.1} s: {peak:.0} MiB at most");
    Ok(json!({
        "scenario": "memory", "events": events, "bytes": BYTES, "peak_rss_mib": peak, "eps": events as f64 / seconds
    }))
}

/// `VmHWM`, which proc(5) gives in KiB.
fn peak_mib(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1_024.0)
}
