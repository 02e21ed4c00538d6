//! SIGTERM under load: how long the exit takes, and what is delivered again after it.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use idem_runtime::prelude::EventId;
use serde_json::{Value, json};
use tests::{Program, eventually};
use tokio::sync::watch;

use crate::contender::this_program;
use crate::handlers::{ACCOUNTS, ORDERS, Order};
use crate::servers::{Database, LIMIT, Servers};
use crate::{Failed, Options};

const PARTITIONS: i32 = 4;
/// Events a second.
const RATE: u64 = 5_000;
/// How long the load lasts before the end is asked for.
const LOADED: Duration = Duration::from_secs(5);
/// The default of `IDEM_SHUTDOWN_GRACE`.
const GRACE: Duration = Duration::from_secs(25);
/// Whose end is measured, and how many events of each can be in flight: 4 partitions with 16 keys; of shared
/// transactions it follows from their size, and one of 100 ms holds a tenth of a second's events.
const WAYS: [(&str, &str, u64); 2] = [("own", "bench-own", 64), ("shared", "bench-shared", RATE / 10)];

struct Ended {
    exit_seconds: f64,
    /// Events that were published and not handled.
    waiting: u64,
    redelivered: u64,
}

/// Measures both ways, round by round.
pub async fn run(options: &Options) -> Result<Value, Failed> {
    let mut line = json!({
        "scenario": "shutdown", "load_eps": RATE, "grace_seconds": GRACE.as_secs(), "runs": options.rounds
    });
    for (way, group, in_flight) in WAYS {
        let (mut slowest, mut most, mut waiting) = (0.0_f64, 0, 0);
        for round in 1..=options.rounds {
            let ended = one(group).await?;
            eprintln!(
                "round {round} of {}: {way} ended in {:.2} s with {} events waiting; {} came again",
                options.rounds, ended.exit_seconds, ended.waiting, ended.redelivered
            );
            slowest = slowest.max(ended.exit_seconds);
            most = most.max(ended.redelivered);
            waiting = waiting.max(ended.waiting);
        }
        println!(
            "{way:<8} ended in {slowest:.2} s at most, of {} s; {most} events came again at most",
            GRACE.as_secs()
        );
        if slowest > GRACE.as_secs_f64() || most > in_flight {
            return Err(format!("{way}: {slowest} s, {most} events came again, of {in_flight} in flight").into());
        }
        line[format!("{way}_exit_seconds")] = slowest.into();
        line[format!("{way}_redelivered")] = most.into();
        line[format!("{way}_waiting")] = waiting.into();
    }
    Ok(line)
}

/// One end under load, and a start after it that handles the rest.
async fn one(group: &str) -> Result<Ended, Failed> {
    let servers = Servers::start(&[]).await?;
    servers.topic(ORDERS, PARTITIONS, 0, 0).await?;
    let database = servers.database().await?;
    let variables = servers.variables(&database);
    let start = |count: u64| -> Result<Program, Failed> {
        Ok(Program::start(&this_program()?, &["consume", group, &count.to_string()], &variables))
    };
    let mut process = start(u64::MAX)?;
    let (stop, stopped) = watch::channel(false);
    let end = async {
        eventually(LIMIT, "the load is handled", async || rows(&database).await.is_ok_and(|rows| rows > RATE)).await;
        tokio::time::sleep(LOADED).await;
        process.terminate();
        let asked = Instant::now();
        let status = process.wait(2 * GRACE).await;
        let exit_seconds = asked.elapsed().as_secs_f64();
        stop.send_replace(true);
        if status.success() { Ok(exit_seconds) } else { Err(format!("{group} ended with {status}").into()) }
    };
    let (published, exit_seconds) = tokio::try_join!(produce(&servers, stopped), end)?;
    let committed = servers.kafka.committed(group, ORDERS).await;
    let committed = u64::try_from(committed.values().map(|committed| committed.offset).sum::<i64>())?;

    // Everything that Kafka holds to be undone comes, and what the database knows is recognised.
    let mut process = start(published - committed)?;
    let line = process.line("duplicates ", LIMIT).await;
    let redelivered = line.trim_start_matches("duplicates ").parse()?;
    process.wait(LIMIT).await;
    database.insist_on(published).await?;
    Ok(Ended { exit_seconds, waiting: published - committed, redelivered })
}

/// Publishes at the rate until it is stopped, and says how many.
async fn produce(servers: &Servers, stopped: watch::Receiver<bool>) -> Result<u64, Failed> {
    const TICKS: u64 = 100;
    let producer = servers.producer()?;
    let mut ticks = tokio::time::interval(Duration::from_millis(1_000 / TICKS));
    let mut sent = Vec::new();
    while !*stopped.borrow() {
        ticks.tick().await;
        for _ in 0..RATE / TICKS {
            let account_id = fastrand::i64(0..ACCOUNTS);
            let order = Order { event_id: EventId::now(), account_id, amount: 1, sent_micros: 0 };
            sent.push(servers.send(&producer, ORDERS, &order, 0)?);
        }
    }
    let published = u64::try_from(sent.len())?;
    try_join_all(sent).await?;
    Ok(published)
}

async fn rows(database: &Database) -> Result<u64, Failed> {
    let count: i64 =
        sqlx::query_scalar("SELECT count(*) FROM processed_event").fetch_one(&mut database.connect().await?).await?;
    Ok(u64::try_from(count)?)
}
