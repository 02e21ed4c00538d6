//! The relay against one that publishes row by row, and what publishing costs a handler's transaction.

use std::time::{Duration, Instant};

use idem_runtime::ops::{Ops, status};
use idem_runtime::{Config, outbox};
use rdkafka::producer::FutureRecord;
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::contender::Contender;
use crate::handlers::ORDERS;
use crate::rounds::{Entry, Results, interleaved};
use crate::servers::{Database, LIMIT, Servers};
use crate::{Failed, Options};

const TOPIC: &str = "bench.outbox";
const PARTITIONS: i32 = 4;
/// Rows of a round.
const ROWS: u64 = 200_000;
/// What the relay that publishes row by row gets.
const FEW: u64 = 2_000;
/// Bytes of a payload.
const BYTES: i32 = 512;
/// Keys, each of which keeps its order.
const KEYS: i64 = 20_000;

pub async fn run(options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[]).await?;
    servers.kafka.create_topic(TOPIC, PARTITIONS).await;
    let rows = options.events.unwrap_or(ROWS);
    let (mut ours, mut row_by_row) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        let relayed = relay(&servers, rows).await?;
        let by_hand = by_hand(&servers, FEW.min(rows)).await?;
        eprintln!("round {round} of {}: {relayed:.0} rows/s, row by row {by_hand:.0}", options.rounds);
        ours.push(relayed);
        row_by_row.push(by_hand);
    }
    let relays = Results::of([("idem", ours), ("row_by_row", row_by_row)]);
    relays.print("idem");

    let (own, shared) = (options.events.unwrap_or(30_000), options.events.unwrap_or(120_000));
    servers.topic(ORDERS, PARTITIONS, usize::try_from(own.max(shared))? * 11 / 10, 0).await?;
    let entry = |name, group, pool, events| Entry { name, contender: Ok(Contender::Idem { group, pool }), events };
    let entries = [
        entry("own", "bench-own", 64, own),
        entry("own_publishes", "bench-own-publishes", 64, own),
        entry("shared", "bench-shared", 16, shared),
        entry("shared_publishes", "bench-shared-publishes", 16, shared),
    ];
    let handlers = interleaved(&servers, ORDERS, options.rounds, &entries).await?;
    handlers.print("own_publishes");
    // More time for each transaction, as a part of what it takes without.
    let cost = |with, without| Some(handlers.ratio(without, with)? - 1.0);
    Ok(json!({
        "scenario": "outbox",
        "rows_per_second": relays.median("idem"),
        "row_by_row_per_second": relays.median("row_by_row"),
        "vs_row_by_row": relays.ratio("idem", "row_by_row"),
        "bytes": BYTES,
        "keys": KEYS,
        "own_eps": handlers.median("own"),
        "own_publishes_eps": handlers.median("own_publishes"),
        "publish_costs_own": cost("own_publishes", "own"),
        "shared_eps": handlers.median("shared"),
        "shared_publishes_eps": handlers.median("shared_publishes"),
        "publish_costs_shared": cost("shared_publishes", "shared"),
        "runs": options.rounds,
        "spread": relays.spread("idem"),
    }))
}

/// Rows that become visible at once, as those of a service after an outage of the broker.
async fn fill(connection: &mut PgConnection, rows: u64) -> Result<(), Failed> {
    sqlx::query(
        "INSERT INTO idem_outbox (event_id, topic, key, payload, headers, occurred_at_millis) \
         SELECT gen_random_uuid(), $1, (n % $2)::text, convert_to(repeat('x', $3), 'UTF8'), '[]', \
                (extract(epoch FROM now()) * 1000)::bigint \
           FROM generate_series(1, $4) AS n",
    )
    .bind(TOPIC)
    .bind(KEYS)
    .bind(BYTES)
    .bind(i64::try_from(rows)?)
    .execute(connection)
    .await?;
    Ok(())
}

async fn is_empty(connection: &mut PgConnection) -> Result<bool, Failed> {
    Ok(sqlx::query_scalar("SELECT NOT EXISTS (SELECT FROM idem_outbox)").fetch_one(connection).await?)
}

async fn migrated(servers: &Servers) -> Result<(Database, Config), Failed> {
    let database = servers.database().await?;
    let config = Config::from_vars(servers.variables(&database))?;
    status::migrate(&Ops::new(config.clone())).await?;
    Ok((database, config))
}

/// Rows per second of the library's relay, from the commit to an empty table.
async fn relay(servers: &Servers, rows: u64) -> Result<f64, Failed> {
    let (database, config) = migrated(servers).await?;
    let mut connection = database.connect().await?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relaying = tokio::spawn(outbox::relay(config, async { drop(stopped.await) }));
    let holder = "SELECT holder IS NOT NULL FROM idem_relay";
    while !sqlx::query_scalar::<_, bool>(holder).fetch_one(&mut connection).await? {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fill(&mut connection, rows).await?;
    let start = Instant::now();
    while !is_empty(&mut connection).await? {
        if relaying.is_finished() || start.elapsed() > LIMIT {
            return Err("the relay does not come to an end".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rate = rows as f64 / start.elapsed().as_secs_f64();
    drop(stop);
    relaying.await??;
    drop(connection);
    servers.drop(database).await?;
    Ok(rate)
}

/// The loop that people write: read the first row, send it, wait, delete it.
async fn by_hand(servers: &Servers, rows: u64) -> Result<f64, Failed> {
    let (database, _) = migrated(servers).await?;
    let mut connection = database.connect().await?;
    fill(&mut connection, rows).await?;
    let mut config = servers.kafka.config();
    config.set("linger.ms", "0").set("enable.idempotence", "true");
    let producer: rdkafka::producer::FutureProducer = config.create()?;
    let start = Instant::now();
    let first = "SELECT seq, topic, key, payload FROM idem_outbox ORDER BY seq LIMIT 1";
    while let Some((seq, topic, key, payload)) =
        sqlx::query_as::<_, (i64, String, String, Vec<u8>)>(first).fetch_optional(&mut connection).await?
    {
        let record = FutureRecord::to(&topic).key(&key).payload(&payload);
        producer.send(record, Duration::from_secs(10)).await.map_err(|(error, _)| error)?;
        sqlx::query("DELETE FROM idem_outbox WHERE seq = $1").bind(seq).execute(&mut connection).await?;
    }
    let rate = rows as f64 / start.elapsed().as_secs_f64();
    drop(connection);
    servers.drop(database).await?;
    Ok(rate)
}
