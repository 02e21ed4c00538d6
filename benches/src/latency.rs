//! From the producer's send to the commit in the database, at a low rate; by PostgreSQL's own commit
//! timestamps, on the clock of this one machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args as ClapArgs;
use idem_runtime::prelude::EventId;
use serde_json::{Value, json};
use tests::{Program, eventually};

use crate::contender::this_program;
use crate::handlers::{ACCOUNTS, LATENCY, Order};
use crate::servers::{Database, LIMIT, Servers};
use crate::{Failed, Options};

#[derive(ClapArgs)]
pub struct Args {
    /// Events per second.
    #[arg(long, default_value_t = RATE, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rate: u64,
    /// Seconds of each round.
    #[arg(long, default_value_t = SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

impl Default for Args {
    fn default() -> Self {
        Self { rate: RATE, seconds: SECONDS }
    }
}

const RATE: u64 = 50;
const SECONDS: u64 = 10;
const PARTITIONS: i32 = 4;
/// Whose latency is measured: the library's, and that of a loop by hand.
const BOTH: [&str; 2] = ["idem", "rust_naive"];

/// Measures both in turn.
pub async fn run(args: &Args, options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[("track_commit_timestamp", "on")]).await?;
    servers.topic(LATENCY, PARTITIONS, 0, 0).await?;
    let mut millis = [Vec::new(), Vec::new()];
    for round in 1..=options.rounds {
        for (millis, who) in millis.iter_mut().zip(BOTH) {
            eprintln!("round {round} of {}: {who}", options.rounds);
            millis.extend(one(&servers, who, args).await?);
        }
    }
    println!("{:<12}{:>10}{:>10}{:>10}", "ms", "p50", "p99", "most");
    let mut line = json!({ "scenario": "latency", "runs": options.rounds, "rate": args.rate });
    for (mut millis, who) in millis.into_iter().zip(BOTH) {
        millis.sort_by(f64::total_cmp);
        let at = |share: f64| millis[((millis.len() - 1) as f64 * share) as usize];
        let (p50, p99) = (at(0.5), at(0.99));
        println!("{who:<12}{p50:>10.2}{p99:>10.2}{:>10.2}", at(1.0));
        let prefix = if who == "idem" { String::new() } else { format!("{who}_") };
        line[format!("{prefix}p50_ms")] = p50.into();
        line[format!("{prefix}p99_ms")] = p99.into();
    }
    Ok(line)
}

/// Milliseconds of each event.
async fn one(servers: &Servers, who: &str, args: &Args) -> Result<Vec<f64>, Failed> {
    // What the one before was sent is not for this one, which reads from the beginning.
    for partition in 0..PARTITIONS {
        servers.kafka.delete_all_records(LATENCY, partition).await;
    }
    let database = servers.database().await?;
    let count = args.rate * args.seconds;
    let (warm_up, text) = (args.rate, (count + args.rate).to_string());
    let mut process = match who {
        "idem" => Program::start(&this_program()?, &["consume", "bench-latency", &text], &servers.variables(&database)),
        _ => {
            database.make_flat_table().await?;
            let group = format!("peer-{}", uuid::Uuid::now_v7().simple());
            let args = ["peer", "seen", servers.kafka.bootstrap(), &database.url, LATENCY, &group, &text];
            Program::start(&this_program()?, &args, &[])
        }
    };
    let producer = servers.producer()?;
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / args.rate));
    let micros = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    for at in 0..count + warm_up {
        if at == warm_up {
            // Members have joined and connections are open: from here on it counts.
            eventually(LIMIT, "the first events are handled", async || {
                seen(&database).await.is_ok_and(|seen| seen >= warm_up)
            })
            .await;
            ticks.reset();
        }
        ticks.tick().await;
        let sent_micros = if at < warm_up { 0 } else { i64::try_from(micros())? };
        let order = Order { event_id: EventId::now(), account_id: fastrand::i64(0..ACCOUNTS), amount: 1, sent_micros };
        // What it waits for is the broker's word, which nobody needs here.
        drop(servers.send(&producer, LATENCY, &order, 0)?);
    }
    let status = process.wait(LIMIT).await;
    if !status.success() {
        return Err(format!("{who} ended with {status}").into());
    }
    if who == "idem" {
        servers.kafka.delete_group("bench-latency").await;
    }
    let millis = sqlx::query_scalar(
        "SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000 - sent_micros / 1000.0)::float8 \
           FROM seen WHERE sent_micros > 0",
    );
    let millis = millis.fetch_all(&mut database.connect().await?).await?;
    servers.drop(database).await?;
    Ok(millis)
}

async fn seen(database: &Database) -> Result<u64, Failed> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM seen").fetch_one(&mut database.connect().await?).await?;
    Ok(u64::try_from(count)?)
}
