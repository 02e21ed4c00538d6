//! Events that wait for a payment provider: how many a second, and what their bookkeeping costs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::Config;
use idem_runtime::prelude::*;
use idem_runtime::testing::{MockBroker, Postgres, Provider};
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};

use crate::rounds::median;
use crate::{Failed, Options};

/// How long the provider takes.
const LATENCY: Duration = Duration::from_millis(50);
const PARTITIONS: i32 = 4;
/// Events of a round of the two concurrent ways.
const EVENTS: u64 = 8_000;
/// Events of a round that is handled one at a time.
const FEW: u64 = 60;
/// What is not measured at the beginning of a round: connections are opened.
const WARM_UP: u64 = 10;

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct Order {
    event_id: EventId,
    amount: i64,
}

static DONE: AtomicU64 = AtomicU64::new(0);

async fn write(tx: &mut Tx<'_>, order: &Order) -> HandlerResult {
    sqlx::query("INSERT INTO paid VALUES ($1, $2)")
        .bind(order.event_id.uuid())
        .bind(order.amount)
        .execute(&mut **tx)
        .await?;
    DONE.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

#[idempotent_handler(topic = "one.orders", group = "one", money = true)]
async fn one(tx: &mut Tx<'_>, order: Order, payments: MoneyClient) -> HandlerResult {
    payments.post("/charges").json(&order).send().await?;
    write(tx, &order).await
}

#[idempotent_handler(topic = "many.orders", group = "many", money = true, concurrency = 32)]
async fn many(tx: &mut Tx<'_>, order: Order, payments: MoneyClient) -> HandlerResult {
    payments.post("/charges").json(&order).send().await?;
    write(tx, &order).await
}

/// The provider, without the library's client.
struct Plain {
    client: reqwest::Client,
    url: String,
}

#[idempotent_handler(topic = "plain.orders", group = "plain", concurrency = 32)]
async fn plain(tx: &mut Tx<'_>, order: Order, provider: State<Plain>) -> HandlerResult {
    let body = serde_json::to_vec(&order).permanent()?;
    let request = provider.client.post(&provider.url).header("idempotency-key", order.event_id.to_string()).body(body);
    request.send().await.transient()?.error_for_status().transient()?.bytes().await.transient()?;
    write(tx, &order).await
}

struct Bench {
    broker: MockBroker,
    database: String,
    provider: Provider,
    producer: FutureProducer,
}

pub async fn run(options: &Options) -> Result<Value, Failed> {
    // For the client without the library; one that is there already is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let postgres = Postgres::start_with(&[("max_connections", "300")]).await?;
    let database = postgres.create_database("bench").await?;
    PgConnection::connect(&database).await?.execute("CREATE TABLE paid (event_id uuid, amount bigint)").await?;
    let broker = MockBroker::start()?;
    for group in ["one", "many", "plain"] {
        let own = ["1s", "10s", "1m", "10m"].map(|delay| format!("{group}.retry.{delay}"));
        for topic in
            own.into_iter().chain([format!("{group}.orders"), format!("{group}.replay"), format!("{group}.dlq")])
        {
            broker.create_topic(&topic, PARTITIONS)?;
        }
    }
    let producer = ClientConfig::new().set("bootstrap.servers", broker.bootstrap_servers()).create()?;
    let provider = Provider::start().await?;
    provider.charge_in(LATENCY);
    let bench = Bench { broker, database, provider, producer };

    let events = options.events.unwrap_or(EVENTS);
    let ways = [("one", FEW, "1"), ("many", events, "128"), ("plain", events, "128")];
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..options.rounds {
        for (rates, (group, events, pool)) in rates.iter_mut().zip(ways) {
            let rate = bench.round(group, events, pool).await?;
            println!("round {round}: {group}: {rate:.0} events/s");
            rates.push(rate);
        }
    }
    let [one, many, plain] = rates.map(median);
    println!("one event at a time           {one:>8.0} events/s");
    println!("concurrency = 32, pool of 128 {many:>8.0} events/s, {:.0} times as many", many / one);
    println!("the same without bookkeeping  {plain:>8.0} events/s: it costs {:.0} %", (1.0 - many / plain) * 100.0);
    Ok(
        json!({"scenario": "money", "runs": options.rounds, "one": one, "many": many, "plain": plain, "times": many / one, "bookkeeping": 1.0 - many / plain}),
    )
}

impl Bench {
    /// Publishes events, lets a group handle them, and returns how many a second.
    async fn round(&self, group: &str, events: u64, pool: &str) -> Result<f64, Failed> {
        let topic = format!("{group}.orders");
        let mut sent = Vec::new();
        for _ in 0..events {
            let order = Order { event_id: EventId::now(), amount: 100 };
            let (key, value) = (order.event_id.to_string(), serde_json::to_vec(&order)?);
            let record = FutureRecord::to(&topic).key(&key).payload(&value);
            sent.push(self.producer.send_result(record).map_err(|(error, _)| error)?);
        }
        for record in sent {
            record.await?.map_err(|(error, _)| error)?;
        }
        let config = Config::from_vars([
            ("IDEM_DATABASE_URL", &*self.database),
            ("IDEM_KAFKA_BROKERS", self.broker.bootstrap_servers()),
            ("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000"),
            ("IDEM_POOL_SIZE", pool),
            ("IDEM_ADMIN_ADDR", "off"),
            ("IDEM_MONEY_BASE_URL", &self.provider.url()),
        ])?;
        let plain = Plain { client: reqwest::Client::builder().no_proxy().build()?, url: self.provider.url() };
        DONE.store(0, Ordering::Relaxed);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let builder = idem_runtime::builder().config(config).groups([group]).state(plain);
        let running = tokio::spawn(builder.shutdown_when(async { drop(stopped.await) }).run());
        let warm_up = events / WARM_UP;
        until_done(warm_up).await;
        let start = Instant::now();
        let counted = events - DONE.load(Ordering::Relaxed);
        until_done(events).await;
        let rate = counted as f64 / start.elapsed().as_secs_f64();
        drop(stop);
        running.await??;
        Ok(rate)
    }
}

async fn until_done(count: u64) {
    while DONE.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
