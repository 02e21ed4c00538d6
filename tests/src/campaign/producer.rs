//! Sends the load at a steady rate, and keeps a log of what it sent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::checker::{Place, Sent};
use super::load::{Clock, Draft, Load};
use super::timeline::{Timeline, unix_millis};
use crate::Client;

const TICK: Duration = Duration::from_millis(50);

/// What the faults do to the producer. Clones do it to the same.
#[derive(Debug, Clone, Default)]
pub struct Strings(Arc<Mutex<Pulled>>);

#[derive(Debug, Clone, Copy, Default)]
struct Pulled {
    clock: Clock,
    is_silent: bool,
}

/// A time in which nothing is sent, until it is dropped.
#[derive(Debug)]
pub struct Lull(Strings);

impl Strings {
    /// Sets the clock that the producer goes by.
    pub fn set_clock(&self, clock: Clock) {
        self.pulled().clock = clock;
    }

    /// Lets the producer send nothing.
    #[must_use]
    pub fn lull(&self) -> Lull {
        self.pulled().is_silent = true;
        Lull(self.clone())
    }

    fn pulled(&self) -> MutexGuard<'_, Pulled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lull {
    fn drop(&mut self) {
        self.0.pulled().is_silent = false;
    }
}

/// Sends until it is told to stop, waits for every acknowledgement, and returns the log.
pub async fn produce(
    kafka: Client,
    seed: u64,
    per_second: u32,
    mut stop: oneshot::Receiver<()>,
    strings: Strings,
    timeline: Arc<Timeline>,
) -> Vec<Sent> {
    let producer = producer(&kafka);
    let (open, mut waiting) = tokio::sync::mpsc::unbounded_channel::<DeliveryFuture>();
    // Acknowledgements, in the order of the log.
    let acks = tokio::spawn(async move {
        let mut acks = Vec::new();
        while let Some(delivery) = waiting.recv().await {
            acks.push(delivery.await.ok().and_then(Result::ok).map(|delivery| (delivery.partition, delivery.offset)));
        }
        acks
    });
    let mut log: Vec<Sent> = Vec::new();
    let mut load = Load::new(seed);
    let mut due = 0.0;
    let mut ticks = tokio::time::interval(TICK);
    while matches!(stop.try_recv(), Err(TryRecvError::Empty)) {
        ticks.tick().await;
        let Pulled { clock, is_silent } = *strings.pulled();
        if is_silent {
            continue;
        }
        due += f64::from(per_second) * TICK.as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few dozen")]
        let size = due as usize;
        #[allow(clippy::cast_precision_loss, reason = "a few dozen")]
        let made = size as f64;
        due -= made;
        for draft in load.chunk(size, unix_millis(), clock) {
            let delivery = send(&producer, &draft).await;
            // The receiver lives as long as this sender.
            let _ = open.send(delivery);
            log.push(Sent {
                subject: draft.subject,
                key: draft.key,
                event: draft.event,
                is_far_ahead: draft.is_far_ahead,
                is_behind: draft.is_behind,
                at_millis: timeline.millis(),
                acked: None,
            });
        }
    }
    drop(open);
    let acks = acks.await.expect("no panic");
    for (sent, ack) in log.iter_mut().zip(acks) {
        // Without an offset it was acknowledged by librdkafka, not by a broker.
        let ack = ack.filter(|(_, offset)| *offset >= 0);
        sent.acked = ack.map(|(partition, offset)| Place { subject: sent.subject, partition, offset });
    }
    log
}

fn producer(kafka: &Client) -> FutureProducer {
    let mut config = kafka.config();
    config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "5");
    // It sends until the broker is back, as a service with an outbox would.
    config.set("message.timeout.ms", "300000").set("reconnect.backoff.max.ms", "1000");
    config.create().expect("a plain configuration")
}

/// Queues a record, when there is room.
async fn send(producer: &FutureProducer, draft: &Draft) -> DeliveryFuture {
    let key = draft.key.to_string();
    loop {
        let mut record = FutureRecord::<str, [u8]>::to(draft.subject.topic()).key(&key);
        record.partition = Some(draft.partition());
        record.payload = draft.value.as_deref();
        record.timestamp = Some(draft.timestamp_millis);
        match producer.send_result(record) {
            Ok(delivery) => return delivery,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => tokio::time::sleep(TICK).await,
            Err((error, _)) => panic!("cannot produce to {}: {error}", draft.subject.topic()),
        }
    }
}
