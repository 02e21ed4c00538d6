//! An event whose payload says how its handler behaves, and the table that shows its effects.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_runtime::prelude::*;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{Client, Record};

/// The event of most tests. `plan` says what its handler does.
#[derive(Debug, serde::Deserialize, Event)]
pub struct Order {
    pub event_id: EventId,
    #[serde(default)]
    pub number: i64,
    #[serde(default)]
    pub plan: Plan,
}

/// What the handler does besides writing its effect.
#[derive(Debug, Default, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plan {
    /// Nothing.
    #[default]
    Succeed,
    /// Sleeps before it ends.
    Sleep(u64),
    /// Fails transiently, this often, after its effect.
    FailTimes(u32),
    /// Fails for good, after its effect.
    Refuse,
    /// Runs into a unique violation and returns Ok all the same.
    SwallowError,
    /// Runs COMMIT.
    Commit,
    /// Runs ROLLBACK, and writes something after it.
    Rollback,
    /// Runs COMMIT, and fails.
    CommitAndFail,
    /// Runs COMMIT, and panics.
    CommitAndPanic,
    /// Leaves settings behind on its session.
    SetSession,
    /// Removes the prepared statements of its session.
    Deallocate,
    /// Panics, this often, after its effect.
    PanicTimes(u32),
}

/// Makes the tables that [`handle`] writes to. Neither has a constraint that would hide a second effect.
///
/// # Panics
/// When the database refuses.
pub async fn create_tables(pool: &PgPool) {
    sqlx::raw_sql(
        "CREATE TABLE effect (event_id uuid NOT NULL, consumer_group text NOT NULL, number bigint NOT NULL, \
             seq bigserial, at timestamptz NOT NULL DEFAULT clock_timestamp()); \
         CREATE TABLE taken (name text PRIMARY KEY); INSERT INTO taken VALUES ('taken');",
    )
    .execute(pool)
    .await
    .expect("tables for the effects");
}

/// The transaction that committed each effect of a group, by the order's number.
///
/// # Panics
/// When the database does not answer.
pub async fn transactions(pool: &PgPool, group: &str) -> BTreeMap<i64, i64> {
    sqlx::query_as("SELECT number, xmin::text::bigint FROM effect WHERE consumer_group = $1")
        .bind(group)
        .fetch_all(pool)
        .await
        .expect("the effects")
        .into_iter()
        .collect()
}

/// Does what the order's plan says, for one group.
///
/// # Errors
/// As the plan says.
pub async fn handle(tx: &mut Tx<'_>, order: Order, delivery: &Delivery, group: &str) -> HandlerResult {
    sqlx::query("INSERT INTO effect (event_id, consumer_group, number) VALUES ($1, $2, $3)")
        .bind(order.event_id.uuid())
        .bind(group)
        .bind(order.number)
        .execute(&mut **tx)
        .await?;
    match order.plan {
        Plan::Succeed => {}
        Plan::Sleep(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Plan::FailTimes(times) if delivery.attempt < times => return Err(HandlerError::transient("not yet")),
        Plan::PanicTimes(times) if delivery.attempt < times => panic!("as planned"),
        Plan::FailTimes(_) | Plan::PanicTimes(_) => {}
        Plan::Refuse => return Err(HandlerError::permanent("never")),
        Plan::SwallowError => {
            let violation = sqlx::query("INSERT INTO taken VALUES ('taken')").execute(&mut **tx).await;
            assert!(violation.is_err());
        }
        Plan::Commit => {
            sqlx::raw_sql("COMMIT").execute(&mut **tx).await?;
        }
        Plan::CommitAndFail => {
            sqlx::raw_sql("COMMIT").execute(&mut **tx).await?;
            return Err(HandlerError::transient("as planned"));
        }
        Plan::CommitAndPanic => {
            sqlx::raw_sql("COMMIT").execute(&mut **tx).await?;
            panic!("as planned");
        }
        Plan::SetSession => {
            let settings = "SET search_path = nowhere; SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY";
            sqlx::raw_sql(settings).execute(&mut **tx).await?;
        }
        Plan::Deallocate => {
            sqlx::raw_sql("DEALLOCATE ALL").execute(&mut **tx).await?;
        }
        Plan::Rollback => {
            sqlx::raw_sql("ROLLBACK; SELECT 1").execute(&mut **tx).await?;
        }
    }
    Ok(())
}

/// A fresh order: its id, and its payload.
#[must_use]
pub fn order(number: i64, plan: &Plan) -> (Uuid, Vec<u8>) {
    let id = EventId::now().uuid();
    (id, payload(id, number, plan))
}

/// The payload of an order with this id.
#[must_use]
pub fn payload(id: Uuid, number: i64, plan: &Plan) -> Vec<u8> {
    json!({"event_id": id, "number": number, "plan": plan}).to_string().into_bytes()
}

/// Publishes fresh orders, numbered from 0, each with its number as the key, and returns their ids.
pub async fn publish(kafka: &Client, topic: &str, plans: &[Plan]) -> Vec<Uuid> {
    let mut ids = Vec::with_capacity(plans.len());
    let mut sent = Vec::with_capacity(plans.len());
    for (number, plan) in plans.iter().enumerate() {
        let (id, value) = order(i64::try_from(number).expect("few orders"), plan);
        let key = number.to_string();
        sent.push(kafka.produce(Record::to(topic).key(&key).value(&value)));
        ids.push(id);
    }
    futures_util::future::join_all(sent).await;
    ids
}

/// How often each event took effect in a group.
///
/// # Panics
/// When the database does not answer.
pub async fn effects(pool: &PgPool, group: &str) -> BTreeMap<Uuid, i64> {
    sqlx::query_as("SELECT event_id, count(*) FROM effect WHERE consumer_group = $1 GROUP BY event_id")
        .bind(group)
        .fetch_all(pool)
        .await
        .expect("the effects")
        .into_iter()
        .collect()
}

/// How many events took effect in a group.
///
/// # Panics
/// When the database does not answer.
pub async fn effect_count(pool: &PgPool, group: &str) -> usize {
    effects(pool, group).await.len()
}

/// Panics unless exactly these events took effect, each once.
///
/// # Panics
/// That is what it is for.
pub async fn assert_each_once(pool: &PgPool, group: &str, ids: &[Uuid]) {
    let found = effects(pool, group).await;
    let wanted: BTreeMap<Uuid, i64> = ids.iter().map(|id| (*id, 1)).collect();
    assert_eq!(found, wanted, "effects of group {group}");
}
