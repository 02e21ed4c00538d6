//! What tests write into the outbox without a handler, and a relay beside them.

use std::collections::BTreeMap;

use idem_runtime::prelude::*;
use idem_runtime::{Config, outbox};
use sqlx::PgConnection;
use tests::{ReadRecord, TestEnv, eventually_some};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::LIMIT;

/// An event whose number says which one of its key it is.
#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
pub struct Told {
    pub event_id: EventId,
    pub number: i64,
    pub text: String,
}

/// A relay in this process. Dropping it lets go of everything without a goodbye.
pub struct Relay {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), idem_runtime::RunError>>,
}

impl Relay {
    pub fn start(env: &TestEnv) -> Self {
        tests::run::show_logs();
        let config = Config::from_vars(env.variables()).unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(outbox::relay(config, async { drop(stopped.await) }));
        Self { stop: Some(stop), task }
    }

    pub async fn stop(mut self) {
        drop(self.stop.take());
        self.ended().await.unwrap();
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> Result<(), idem_runtime::RunError> {
        tokio::time::timeout(LIMIT, &mut self.task).await.expect("it ends").unwrap()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A database with the library's tables.
pub async fn env() -> TestEnv {
    let env = TestEnv::new().await.with("IDEM_RELAY_TIMEOUT", "2s");
    migrate(&env).await;
    env
}

pub async fn migrate(env: &TestEnv) {
    let ops = idem_runtime::ops::Ops::new(Config::from_vars(env.variables()).unwrap());
    idem_runtime::ops::status::migrate(&ops).await.unwrap();
}

/// Publishes an event.
pub async fn tell(tx: &mut PgConnection, topic: &str, key: &str, number: i64) -> EventId {
    outbox::publish(tx, topic, key, |event_id| Told { event_id, number, text: String::new() }).await.unwrap()
}

/// The numbers of a topic's records by their keys, in the order of the log.
pub fn numbers(records: &[ReadRecord]) -> BTreeMap<String, Vec<i64>> {
    let mut numbers: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for record in records {
        let key = String::from_utf8(record.key.clone().unwrap()).unwrap();
        let told: Told = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        numbers.entry(key).or_default().push(told.number);
    }
    numbers
}

/// Waits until a topic has so many records.
pub async fn records(env: &TestEnv, topic: &str, count: usize) -> Vec<ReadRecord> {
    eventually_some(LIMIT, &format!("{count} records of {topic}"), async || {
        let records = env.kafka.read_all(topic).await;
        (records.len() >= count).then_some(records)
    })
    .await
}

/// How many rows the outbox has.
pub async fn pending(env: &TestEnv) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM idem_outbox").fetch_one(&env.pool).await.unwrap()
}
