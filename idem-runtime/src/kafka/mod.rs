//! Everything that talks to Kafka.

pub(crate) mod admin;
pub(crate) mod client_config;
pub(crate) mod consumer;
pub(crate) mod forward;
pub(crate) mod headers;
pub(crate) mod names;
pub(crate) mod observer;
pub(crate) mod placed;
pub(crate) mod producer;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod refusal;

/// Runs a call of librdkafka that blocks, on a thread of its own. `None`: it panicked.
///
/// Not tokio's blocking pool: a runtime that ends waits for that, and a broker that is gone would
/// hold up the exit of the process.
pub(crate) async fn on_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("idem-kafka-call".to_owned());
    thread
        .spawn(move || {
            let _ = answer.send(call());
        })
        .ok()?;
    answered.await.ok()
}
