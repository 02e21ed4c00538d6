//! A PostgreSQL and a mock Kafka cluster for a first program of one's own: prints the variables that it needs, and
//! publishes what is typed.
//!
//! ```sh
//! cargo run --example sandbox
//! ```

use clap::Parser;
use examples::{Error, Playground};
use idem_runtime::prelude::EventId;
use serde_json::json;
use tokio::sync::mpsc;

/// Starts a PostgreSQL and a mock Kafka cluster, until Ctrl-C.
#[derive(Parser)]
struct Args {
    /// The topic that lines of the standard input are published to.
    #[arg(long, default_value = "order-service.order.confirmed")]
    topic: String,
    /// The consumer group whose topics are made.
    #[arg(long, default_value = "billing-order-confirmed")]
    group: String,
    /// The delay tiers of its retry topics.
    #[arg(long, value_delimiter = ',', default_value = "1s,10s,1m,10m")]
    retry: Vec<String>,
    /// SQL that makes the tables of the business.
    #[arg(
        long,
        default_value = "CREATE TABLE orders (id bigint PRIMARY KEY, payment_status text, amount bigint); \
                         INSERT INTO orders VALUES (4711, 'open')"
    )]
    tables: String,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let playground = Playground::start(&args.tables).await?;
    playground.topic_with(&args.topic, &args.group, &args.retry)?;
    println!("In the terminal of your program:\n");
    for (name, value) in playground.variables() {
        println!("    export {name}={value}");
    }
    let event = json!({"event_id": EventId::now(), "order_id": 4711, "total_amount": 4_999});
    println!("\nEach line that you type here is published to {}, for example, also more than once:\n", args.topic);
    println!("    {event}\n\nCtrl-C ends it.");
    // A thread of its own, as nothing ends a read of a terminal.
    let (lines, mut typed) = mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    let publish = async {
        while let Some(line) = typed.recv().await {
            playground.publish_text(&args.topic, None, line.trim()).await?;
            println!("published");
        }
        // Without a terminal it only serves.
        std::future::pending::<Result<(), Error>>().await
    };
    tokio::select! {
        ended = publish => ended,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}
