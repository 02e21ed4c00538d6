//! The same in Rust by hand, with rdkafka and sqlx.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use clap::{Args as ClapArgs, ValueEnum};
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{ClientConfig, TopicPartitionList};
use sqlx::{Connection, PgConnection};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::Failed;
use crate::handlers::{Order, PAY, PAY_ALL, SEE, sums};

/// How the loop is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Loop {
    /// One transaction and one offset commit per event.
    Naive,
    /// The same, and what it writes is when the event was sent.
    Seen,
    /// A task per partition; a transaction for what is queued.
    Batched,
    /// The same with one update for all.
    BatchedSet,
}

impl Loop {
    pub fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Seen => "seen",
            Self::Batched => "batched",
            Self::BatchedSet => "batched-set",
        }
    }
}

#[derive(ClapArgs)]
pub struct Args {
    kind: Loop,
    brokers: String,
    database: String,
    topic: String,
    group: String,
    count: u64,
}

const INSERT: &str = "INSERT INTO processed_event (event_id, consumer_group) VALUES ($1, $2) ON CONFLICT DO NOTHING";
const INSERT_MANY: &str = "INSERT INTO processed_event (event_id, consumer_group) SELECT id, $2 FROM unnest($1::uuid[]) AS id \
     ON CONFLICT DO NOTHING RETURNING event_id";
const MOST: usize = 500;

pub async fn run(args: Args) -> Result<(), Failed> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &args.brokers).set("group.id", &args.group);
    config.set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
    let consumer: StreamConsumer = config.create()?;
    consumer.subscribe(&[&args.topic])?;
    let seconds = match args.kind {
        Loop::Naive | Loop::Seen => one_by_one(&consumer, &args).await?,
        Loop::Batched | Loop::BatchedSet => batched(Arc::new(consumer), args).await?,
    };
    println!("done {seconds}");
    Ok(())
}

async fn one_by_one(consumer: &StreamConsumer, args: &Args) -> Result<f64, Failed> {
    let mut connection = PgConnection::connect(&args.database).await?;
    let mut first = None;
    for _ in 0..args.count {
        let message = consumer.recv().await?;
        first.get_or_insert_with(Instant::now);
        let order = decode(&message)?;
        let mut tx = connection.begin().await?;
        let inserted = sqlx::query(INSERT).bind(order.event_id.uuid()).bind(&args.group).execute(&mut *tx).await?;
        if inserted.rows_affected() > 0 {
            let change = match args.kind {
                Loop::Seen => sqlx::query(SEE).bind(order.sent_micros),
                _ => sqlx::query(PAY).bind(order.amount).bind(order.account_id),
            };
            change.execute(&mut *tx).await?;
        }
        tx.commit().await?;
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
    Ok(first.map_or(0.0, |first: Instant| first.elapsed().as_secs_f64()))
}

async fn batched(consumer: Arc<StreamConsumer>, args: Args) -> Result<f64, Failed> {
    let args = Arc::new(args);
    let (first, done) = (Arc::new(OnceLock::<Instant>::new()), Arc::new(AtomicU64::new(0)));
    let (end, mut ended) = mpsc::channel(1);
    let mut lanes: Vec<Option<mpsc::Sender<(i64, Order)>>> = Vec::new();
    loop {
        let message = tokio::select! {
            message = consumer.recv() => message?,
            result = ended.recv() => {
                let result: Option<Result<(), Failed>> = result;
                result.unwrap_or(Ok(()))?;
                return Ok(first.get().map_or(0.0, |first| first.elapsed().as_secs_f64()));
            }
        };
        first.get_or_init(Instant::now);
        let partition = usize::try_from(message.partition())?;
        lanes.resize(lanes.len().max(partition + 1), None);
        let lane = lanes[partition].get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(2 * MOST);
            let (consumer, args, done, end) =
                (Arc::clone(&consumer), Arc::clone(&args), Arc::clone(&done), end.clone());
            let number = message.partition();
            tokio::spawn(async move {
                let result = lane(&consumer, &args, number, receiver, &done).await;
                let _ = end.send(result).await;
            });
            sender
        });
        let _ = lane.send((message.offset(), decode(&message)?)).await;
    }
}

async fn lane(
    consumer: &StreamConsumer,
    args: &Args,
    partition: i32,
    mut queue: mpsc::Receiver<(i64, Order)>,
    done: &AtomicU64,
) -> Result<(), Failed> {
    let mut connection = PgConnection::connect(&args.database).await?;
    let mut events = Vec::with_capacity(MOST);
    while queue.recv_many(&mut events, MOST).await > 0 {
        let mut ids: Vec<Uuid> = events.iter().map(|(_, order)| order.event_id.uuid()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut tx = connection.begin().await?;
        let fresh: Vec<Uuid> = sqlx::query_scalar(INSERT_MANY).bind(&ids).bind(&args.group).fetch_all(&mut *tx).await?;
        let mut fresh: HashSet<Uuid> = fresh.into_iter().collect();
        let last = events.last().map_or(0, |(offset, _)| *offset);
        let count = u64::try_from(events.len())?;
        let orders = events.drain(..).map(|(_, order)| order).filter(|order| fresh.remove(&order.event_id.uuid()));
        if args.kind == Loop::BatchedSet {
            let (accounts, amounts) = sums(&orders.collect::<Vec<_>>());
            sqlx::query(PAY_ALL).bind(accounts).bind(amounts).execute(&mut *tx).await?;
        } else {
            for order in orders {
                sqlx::query(PAY).bind(order.amount).bind(order.account_id).execute(&mut *tx).await?;
            }
        }
        tx.commit().await?;
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&args.topic, partition, rdkafka::Offset::Offset(last + 1))?;
        consumer.commit(&offsets, CommitMode::Async)?;
        if done.fetch_add(count, Ordering::Relaxed) + count >= args.count {
            break;
        }
    }
    Ok(())
}

fn decode(message: &BorrowedMessage<'_>) -> Result<Order, Failed> {
    Ok(serde_json::from_slice(message.payload().ok_or("no value")?)?)
}
