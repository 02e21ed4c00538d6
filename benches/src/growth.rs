//! What a full dedup table costs: throughput beside an empty one, and transactions while a day is
//! emptied.

use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use futures_util::future::{join_all, try_join_all};
use idem_runtime::Config;
use idem_runtime::ops::{Ops, partitions};
use idem_runtime::testing::fill_day;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::contender::Contender;
use crate::handlers::{ACCOUNTS, PAY};
use crate::rounds::median;
use crate::servers::{Database, Servers};
use crate::{Failed, Options};

#[derive(ClapArgs)]
pub struct Args {
    /// Rows in the window of the full table.
    #[arg(long, default_value_t = ROWS, value_parser = clap::value_parser!(u64).range(7..))]
    rows: u64,
}

impl Default for Args {
    fn default() -> Self {
        Self { rows: ROWS }
    }
}

const ROWS: u64 = 50_000_000;
/// Of them, in the day that is emptied: the share of 10 million in 50.
const SHARE_OF_DAY: u64 = 5;
/// The group whose rows fill the table.
const GROUP: &str = "bench-filler";
const PARTITIONS: i32 = 4;
/// The oldest day with a partition of its own.
const OLDEST: u32 = 7;
/// Clients that make transactions while a day is emptied.
const CLIENTS: usize = 4;
/// How long they are watched before and, at least, while it is.
const WATCHED: Duration = Duration::from_secs(10);

/// Measures both.
pub async fn run(args: &Args, options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[("max_wal_size", "8GB")]).await?;
    let (empty, full) = (servers.database().await?, servers.database().await?);
    let events = options.events.unwrap_or(60_000);
    let ways =
        [("bench.growth-empty", "bench-growth-empty", &empty), ("bench.growth-full", "bench-growth-full", &full)];
    for (topic, ..) in ways {
        servers.kafka.create_topic(topic, PARTITIONS).await;
    }
    // The first round makes the tables, and counts for nothing.
    for (topic, group, database) in ways {
        round(&servers, topic, group, database, 1_000).await?;
    }
    let emptied = fill(&full, args.rows).await?;

    let mut figures = [Vec::new(), Vec::new()];
    for at in 1..=options.rounds {
        for (figures, (topic, group, database)) in figures.iter_mut().zip(ways) {
            let eps = round(&servers, topic, group, database, events).await?;
            eprintln!("round {at} of {}: {group} {eps:.0} events/s", options.rounds);
            figures.push(eps);
        }
    }
    let [empty_eps, full_eps] = figures.map(median);
    let ratio = full_eps / empty_eps;
    println!("empty {empty_eps:.0} events/s, with {} rows {full_eps:.0} events/s: {ratio:.2}", args.rows);

    let plan = partitions_of_insert(&full).await?;
    println!("the dedup insert touches {plan} partition{}", if plan == 1 { "" } else { "s" });
    let drop = while_emptied(&servers, &full, &emptied).await?;
    println!(
        "emptying {emptied} took {:.2} s; p99 of a transaction {:.1} ms before, {:.1} ms meanwhile; above twice that for {:.1} s",
        drop.seconds, drop.before_ms, drop.meanwhile_ms, drop.above_seconds
    );
    Ok(json!({
        "scenario": "growth", "empty_eps": empty_eps, "full_eps": full_eps, "ratio": ratio, "rows": args.rows,
        "drop_p99_ratio": drop.meanwhile_ms / drop.before_ms, "drop_seconds": drop.seconds,
        "drop_above_twice_seconds": drop.above_seconds, "insert_partitions": plan, "runs": options.rounds
    }))
}

/// Publishes events and lets a group handle them; both go on where they stopped.
async fn round(
    servers: &Servers,
    topic: &str,
    group: &'static str,
    database: &Database,
    events: u64,
) -> Result<f64, Failed> {
    servers.publish(topic, usize::try_from(events)?, 0).await?;
    Contender::Idem { group, pool: 16 }.continue_on(servers, database, events).await
}

/// Fills the days of the window. Returns the partition of the oldest one.
async fn fill(database: &Database, rows: u64) -> Result<String, Failed> {
    eprintln!("filling the table with {rows} rows");
    let of_day = rows / SHARE_OF_DAY;
    let others = (rows - of_day) / u64::from(OLDEST - 1);
    let oldest = fill_day(&database.url, GROUP, OLDEST, of_day).await?;
    try_join_all((1..OLDEST).map(|day| fill_day(&database.url, GROUP, day, others))).await?;
    let mut connection = database.connect().await?;
    for statement in ["VACUUM ANALYZE processed_event", "CHECKPOINT"] {
        sqlx::raw_sql(statement).execute(&mut connection).await?;
    }
    connection.close().await?;
    Ok(oldest)
}

/// How many partitions the plan of an insert names, besides the table itself.
async fn partitions_of_insert(database: &Database) -> Result<usize, Failed> {
    let mut connection = database.connect().await?;
    let insert = format!(
        "EXPLAIN (ANALYZE, VERBOSE, COSTS OFF, TIMING OFF) INSERT INTO processed_event (event_id, consumer_group) \
         VALUES ('{}', 'plan') ON CONFLICT DO NOTHING",
        Uuid::now_v7()
    );
    // Where the row goes is decided when it is there: the locks say which partitions were touched.
    let mut tx = connection.begin().await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut *tx).await?;
    let touched: i64 = sqlx::query_scalar(
        "SELECT count(DISTINCT c.oid) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
          WHERE l.pid = pg_backend_pid() AND c.relispartition AND c.relkind = 'r'",
    )
    .fetch_one(&mut *tx)
    .await?;
    tx.rollback().await?;
    connection.close().await?;
    Ok(usize::try_from(touched)?)
}

/// What emptying a day did to others.
struct Drop {
    seconds: f64,
    before_ms: f64,
    meanwhile_ms: f64,
    /// Seconds whose p99 was above twice that of before.
    above_seconds: f64,
}

async fn while_emptied(servers: &Servers, database: &Database, day: &str) -> Result<Drop, Failed> {
    let ops = Ops::new(Config::from_vars(servers.variables(database))?);
    let start = Instant::now();
    let (until, ended) = tokio::sync::watch::channel(false);
    let clients = join_all((0..CLIENTS).map(|_| client(database, start, ended.clone())));
    let emptying = async {
        tokio::time::sleep(WATCHED).await;
        let from = start.elapsed();
        let emptied = partitions::empty(&ops, day).await;
        let to = start.elapsed();
        tokio::time::sleep(WATCHED).await;
        until.send_replace(true);
        emptied.map(|emptied| (emptied, from, to))
    };
    let (clients, emptied) = tokio::join!(clients, emptying);
    let (emptied, from, to) = emptied?;
    if !emptied {
        return Err(format!("the day {day} was not emptied").into());
    }
    let mut samples = Vec::new();
    for client in clients {
        samples.extend(client?);
    }
    let p99 = |from: Duration, to: Duration| {
        let within = samples.iter().filter(|(at, _)| *at >= from && *at < to);
        let mut millis: Vec<f64> = within.map(|(_, took)| took.as_secs_f64() * 1_000.0).collect();
        millis.sort_by(f64::total_cmp);
        millis.get(millis.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    };
    // Connections are opened in the first second.
    let before_ms = p99(Duration::from_secs(1), from);
    const STEP: Duration = Duration::from_millis(250);
    let steps = u32::try_from(WATCHED.as_millis() / STEP.as_millis())?;
    let above = (0..steps).filter(|step| p99(from + STEP * *step, from + STEP * (*step + 1)) > 2.0 * before_ms);
    Ok(Drop {
        seconds: (to - from).as_secs_f64(),
        before_ms,
        meanwhile_ms: p99(from, to + Duration::from_secs(2)),
        above_seconds: above.count() as f64 * STEP.as_secs_f64(),
    })
}

/// Makes the transactions of events, and notes when each began and how long it took.
async fn client(
    database: &Database,
    start: Instant,
    ended: tokio::sync::watch::Receiver<bool>,
) -> Result<Vec<(Duration, Duration)>, Failed> {
    let mut connection: PgConnection = database.connect().await?;
    let mut samples = Vec::new();
    while !*ended.borrow() {
        let began = start.elapsed();
        let mut tx = connection.begin().await?;
        sqlx::query(
            "INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, 'load') ON CONFLICT DO NOTHING",
        )
        .bind(Uuid::now_v7())
        .execute(&mut *tx)
        .await?;
        sqlx::query(PAY).bind(1_i64).bind(fastrand::i64(0..ACCOUNTS)).execute(&mut *tx).await?;
        tx.commit().await?;
        samples.push((began, start.elapsed() - began));
    }
    connection.close().await?;
    Ok(samples)
}
