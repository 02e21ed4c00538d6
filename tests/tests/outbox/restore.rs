//! A database that goes back loses no published event, and publishes none under another id.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{Kafka, Postgres, Run, TestEnv, eventually};
use uuid::Uuid;

use crate::LIMIT;

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct Paid {
    event_id: EventId,
    order: Uuid,
}

async fn pay(tx: &mut Tx<'_>, order: Order, delivery: &Delivery, group: &str) -> HandlerResult {
    let of = order.event_id.uuid();
    tx.publish(&format!("{group}.paid"), order.number, |event_id| Paid { event_id, order: of }).await?;
    orders::handle(tx, order, delivery, group).await
}

#[idempotent_handler(topic = "went-back.orders", group = "went-back", concurrency = 4)]
async fn went_back(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    pay(tx, order, &delivery, "went-back").await
}

#[idempotent_handler(topic = "failed-over.orders", group = "failed-over", transaction = "shared")]
async fn failed_over(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    pay(tx, order, &delivery, "failed-over").await
}

/// A database server of one's own, with a copy of its data that can come back.
struct Server {
    postgres: Postgres,
    copy: tempfile::TempDir,
    env: TestEnv,
}

impl Server {
    async fn start(group: &str) -> Self {
        let postgres = Postgres::start().await.unwrap();
        let url = postgres.create_database("app").await.unwrap();
        let env = TestEnv::on(&url, Kafka::shared().await).with("IDEM_RELAY_TIMEOUT", "1s");
        orders::create_tables(&env.pool).await;
        env.kafka.create_topic(&format!("{group}.orders"), 1).await;
        env.kafka.create_topic(&format!("{group}.paid"), 2).await;
        Self { postgres, copy: tempfile::tempdir().unwrap(), env }
    }

    fn copied(&self) -> PathBuf {
        self.copy.path().join("data")
    }

    async fn back_up(&mut self) {
        self.postgres.stop_fast().await.unwrap();
        self.postgres.copy_data_dir_to(&self.copied()).await.unwrap();
        self.postgres.start_again().await.unwrap();
    }

    async fn go_back(&mut self) {
        self.postgres.stop_immediate().await.unwrap();
        self.postgres.restore_from(&self.copied()).await.unwrap();
        self.postgres.start_again().await.unwrap();
    }

    async fn publish(&self, group: &str, count: usize) -> Vec<Uuid> {
        orders::publish(&self.env.kafka, &format!("{group}.orders"), &vec![Plan::Succeed; count]).await
    }

    /// Waits until the group's offset has passed so many orders.
    async fn until_passed(&self, group: &str, orders: i64) {
        eventually(LIMIT, &format!("the offset {orders}"), async || {
            let committed = self.env.kafka.committed(group, &format!("{group}.orders")).await;
            committed.get(&0).is_some_and(|committed| committed.offset == orders)
        })
        .await;
    }

    /// The ids under which each order's payment was published, and how many records there are.
    async fn paid(&self, group: &str) -> (BTreeMap<Uuid, BTreeSet<Uuid>>, usize) {
        let records = self.env.kafka.read_all(&format!("{group}.paid")).await;
        let mut ids: BTreeMap<Uuid, BTreeSet<Uuid>> = BTreeMap::new();
        for record in &records {
            let paid: Paid = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
            ids.entry(paid.order).or_default().insert(paid.event_id.uuid());
        }
        (ids, records.len())
    }

    /// Waits until every order's payment was published, in so many records.
    async fn until_paid(&self, group: &str, orders: &[Uuid], records: usize) {
        eventually(LIMIT, &format!("{records} payments"), async || self.paid(group).await.1 >= records).await;
        let (ids, _) = self.paid(group).await;
        let wanted: BTreeSet<Uuid> = orders.iter().copied().collect();
        assert_eq!(ids.keys().copied().collect::<BTreeSet<_>>(), wanted);
        assert!(ids.values().all(|ids| ids.len() == 1), "one id for each, however often it was published: {ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_the_same_events_are_published_under_the_same_ids() {
    let mut server = Server::start("went-back").await;
    let mut ids = server.publish("went-back", 10).await;
    let run = Run::start(&server.env, &["went-back"]);
    server.until_paid("went-back", &ids, 10).await;
    run.stop().await.unwrap();
    server.back_up().await;
    ids.extend(server.publish("went-back", 15).await);
    let run = Run::start(&server.env, &["went-back"]);
    server.until_paid("went-back", &ids, 25).await;
    run.stop().await.unwrap();

    server.go_back().await;
    let run = Run::start(&server.env, &["went-back"]);
    server.until_paid("went-back", &ids, 40).await;
    orders::assert_each_once(&server.env.pool, "went-back", &ids).await;
    run.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_under_running_consumers_too() {
    let mut server = Server::start("failed-over").await;
    let mut ids = server.publish("failed-over", 10).await;
    let run = Run::start(&server.env, &["failed-over"]);
    server.until_paid("failed-over", &ids, 10).await;
    server.until_passed("failed-over", 10).await;
    server.back_up().await;
    ids.extend(server.publish("failed-over", 15).await);
    server.until_paid("failed-over", &ids, 25).await;
    server.until_passed("failed-over", 25).await;
    server.go_back().await;
    server.until_paid("failed-over", &ids, 40).await;
    orders::assert_each_once(&server.env.pool, "failed-over", &ids).await;
    run.stop().await.unwrap();
}
