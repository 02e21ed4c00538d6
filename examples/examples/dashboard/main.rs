//! A shop that never closes, to look at the admin page: live orders, some of which fail, charges whose answers
//! get lost, dead letters to replay, money calls to resolve.
//!
//! Nothing has to be set up: PostgreSQL, a mock Kafka cluster and a payment provider are started.
//!
//! ```sh
//! cargo run --example dashboard
//! ```
//!
//! The page's address and the token to log in with are printed. Ctrl-C ends it.

mod handlers;

use std::time::Duration;

use clap::Parser;
use idem_runtime::testing::{MockBroker, Postgres, Provider};
use idem_runtime::{Config, EventId};
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Only this machine reaches the page; a service of one's own gets its token from a secret store.
const TOKEN: &str = "only-for-the-dashboard-example";
const GROUPS: [&str; 3] = ["billing", "shipping", "statistics"];
const PARTITIONS: i32 = 4;
/// Answers that the provider loses after charging.
const LOST: f64 = 0.03;

/// Runs a shop with live traffic, and the admin page.
#[derive(Parser)]
struct Args {
    /// Where the page is.
    #[arg(long, default_value = "127.0.0.1:9464")]
    addr: String,
    /// Orders per second.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_env_filter("error,idem_runtime::admin=info").with_writer(std::io::stderr).init();
    eprintln!("starting PostgreSQL (downloaded first if this machine has none)");
    let postgres = Postgres::start().await?;
    let database_url = postgres.create_database("shop").await?;
    let pool = sqlx::PgPool::connect(&database_url).await?;
    sqlx::raw_sql(handlers::TABLES).execute(&pool).await?;
    let broker = MockBroker::start()?;
    // The mock cluster creates no topics for clients, so the groups' own are made here too.
    broker.create_topic(handlers::TOPIC, PARTITIONS)?;
    for group in GROUPS {
        for topic in ["retry.1s", "retry.5s", "replay", "dlq"] {
            broker.create_topic(&format!("{group}.{topic}"), PARTITIONS)?;
        }
    }
    let provider = Provider::start().await?;
    provider.lose_answers(LOST);
    provider.charge_in(Duration::from_millis(20));

    let config = Config::from_vars([
        ("IDEM_DATABASE_URL", database_url.as_str()),
        ("IDEM_KAFKA_BROKERS", broker.bootstrap_servers()),
        ("IDEM_CLIENT_ID", "shop"),
        ("IDEM_RETRY", "1s,5s"),
        ("IDEM_MONEY_BASE_URL", &provider.url()),
        ("IDEM_ADMIN_ADDR", &args.addr),
        ("IDEM_ADMIN_TOKEN", TOKEN),
    ])?;
    let traffic = tokio::spawn(traffic(broker.bootstrap_servers().to_owned(), args.rate));
    println!("page:  http://{}/\ntoken: {TOKEN}", args.addr);
    idem_runtime::builder().config(config).run().await?;
    traffic.abort();
    Ok(())
}

/// Orders, one after the other, until it is aborted.
async fn traffic(brokers: String, rate: u32) -> Result<(), Error> {
    let producer: FutureProducer = ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
    for number in 0_u64.. {
        tick.tick().await;
        let customer = format!("customer-{}", number % 97);
        // Now and then somebody publishes what nobody can read.
        let payload = match number % 211 {
            210 => json!({"number": number}),
            _ => json!({"event_id": EventId::now(), "number": number, "amount": 100 + number * 7 % 900}),
        };
        let payload = payload.to_string();
        let record = FutureRecord::to(handlers::TOPIC).key(&customer).payload(&payload);
        producer.send_result(record).map_err(|(error, _)| error)?;
    }
    Ok(())
}
