//! A record is acknowledged by the broker that says where it is, and by nobody else.

use std::collections::BTreeSet;
use std::time::Duration;

use idem_runtime::prelude::*;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use serde_json::json;
use tests::orders::{self, Order, Plan};
use tests::{Client, Refusing, Run, TestEnv, eventually};

use crate::LIMIT;
use crate::desk::{Relay, migrate, numbers, pending, tell};

/// Two records are on their way before the first is answered.
const ANSWERS_AFTER: Duration = Duration::from_millis(300);

/// As a leader that has just ceased to be it refuses the first record, and its successor takes the second one: of a
/// producer that it has never heard of it takes any sequence number. librdkafka then calls both delivered.
fn refuse_the_first_record(cluster: &Refusing) {
    cluster.refuse(RDKafkaApiKey::Produce, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_only_its_follower_vouches_for_is_sent_again() {
    let cluster = Refusing::start(&["placed.told"], ANSWERS_AFTER);
    let env = TestEnv::on(&tests::postgres::database().await, &Client::new(cluster.bootstrap()));
    // A request for each record.
    let env = env.with("IDEM_KAFKA_BATCH_NUM_MESSAGES", "1");
    migrate(&env).await;
    let mut tx = env.pool.begin().await.unwrap();
    tell(&mut tx, "placed.told", "one", 1).await;
    tell(&mut tx, "placed.told", "other", 2).await;
    tx.commit().await.unwrap();
    refuse_the_first_record(&cluster);
    let relay = Relay::start(&env);
    eventually(LIMIT, "an empty outbox", async || pending(&env).await == 0).await;
    assert_eq!(json!(numbers(&env.kafka.read_all("placed.told").await)), json!({"one": [1], "other": [2]}));
    relay.stop().await;
}

#[idempotent_handler(topic = "placed.orders", group = "placed", retry = [], concurrency = 2)]
async fn placed(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "placed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_only_its_follower_vouches_for_is_sent_again() {
    let cluster = Refusing::start(&["placed.orders", "placed.replay", "placed.dlq"], ANSWERS_AFTER);
    let env = TestEnv::on(&tests::postgres::database().await, &Client::new(cluster.bootstrap()));
    let env = env.with("IDEM_KAFKA_BATCH_NUM_MESSAGES", "1");
    orders::create_tables(&env.pool).await;
    orders::publish(&env.kafka, "placed.orders", &[Plan::Refuse, Plan::Refuse]).await;
    refuse_the_first_record(&cluster);
    let run = Run::start(&env, &["placed"]);
    eventually(LIMIT, "both offsets", async || {
        env.kafka.committed("placed", "placed.orders").await.get(&0).is_some_and(|committed| committed.offset == 2)
    })
    .await;
    let letters = env.kafka.read_all("placed.dlq").await;
    let origins: BTreeSet<_> = letters.iter().map(|letter| letter.header("idem-origin-offset").unwrap()).collect();
    assert_eq!(json!(origins), json!(["0", "1"]), "of {} letters", letters.len());
    run.stop().await.unwrap();
}
