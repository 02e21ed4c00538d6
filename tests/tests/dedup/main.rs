//! The dedup table stays correct and small: days are added and emptied, a group that may have forgotten
//! an event says so, and nobody's backlog is taken for forgotten.

mod adopted;
mod emptying;
mod window;

use std::time::Duration;

use idem_runtime::Config;
use idem_runtime::ops::Ops;
use idem_runtime::prelude::*;
use sqlx::PgPool;
use tests::orders::{self, Plan};
use tests::{Record, TestEnv, eventually};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(60);
const DAY: i64 = 86_400_000;

fn ops(env: &TestEnv) -> Ops {
    Ops::new(Config::from_vars(env.variables()).unwrap())
}

/// A window of two days; the groups may differ by an hour.
async fn narrow() -> TestEnv {
    let env = TestEnv::new().await.with("IDEM_DEDUP_WINDOW", "2d").with("IDEM_DEDUP_CLOCK_SKEW", "1h");
    orders::create_tables(&env.pool).await;
    env
}

async fn now(pool: &PgPool) -> i64 {
    let now = "SELECT (extract(epoch FROM now()) * 1000)::bigint";
    sqlx::query_scalar(now).fetch_one(pool).await.unwrap()
}

/// An id of some time on the UTC day so many days ago; the 20th hour, which today may not have come yet.
fn id_at(now: i64, days_ago: i64, number: u64) -> Uuid {
    let evening = now - now % DAY - days_ago * DAY + 20 * 3_600_000 + i64::try_from(number % 1_000).unwrap();
    id_of(if days_ago == 0 { evening.min(now) } else { evening }, number)
}

fn id_of(millis: i64, number: u64) -> Uuid {
    Uuid::from_u128(u128::try_from(millis).unwrap() << 80 | 0x7000_8000_0000_0000_0000 | u128::from(number))
}

/// The name of the partition of the UTC day so many days ago.
async fn day(pool: &PgPool, days_ago: i32) -> String {
    let name = "SELECT idem_partition_of((now() AT TIME ZONE 'UTC')::date - $1)";
    sqlx::query_scalar(name).bind(days_ago).fetch_one(pool).await.unwrap()
}

async fn produce(env: &TestEnv, topic: &str, ids: &[Uuid]) {
    let sent = ids.iter().map(|id| {
        let value = orders::payload(*id, 0, &Plan::Succeed);
        env.kafka.produce(Record::to(topic).key(&id.to_string()).value(&value))
    });
    futures_util::future::join_all(sent.collect::<Vec<_>>()).await;
}

/// As if all that has been processed had been processed so many days earlier.
async fn age(pool: &PgPool, days: i32) {
    let older = "UPDATE processed_event SET processed_at = processed_at - $1 * interval '1 day'";
    sqlx::query(older).bind(days).execute(pool).await.unwrap();
}

/// Waits until the database knows that a group has read everything.
async fn has_read_all(env: &TestEnv, group: &str) {
    let open = "SELECT count(*) FROM consumer_progress WHERE consumer_group = $1 AND topic <> $1 || '.replay' \
                   AND (event_time IS NULL OR topic NOT LIKE $1 || '.retry.%') \
                   AND (caught_up_at IS NULL OR caught_up_at < now() - interval '1 hour')";
    eventually(LIMIT, "the group to have read all", async || {
        let known = "SELECT count(*) FROM consumer_progress WHERE consumer_group = $1";
        let count = async |query: &'static str| {
            sqlx::query_scalar::<_, i64>(query).bind(group).fetch_one(&env.pool).await.unwrap_or(-1)
        };
        count(known).await > 0 && count(open).await == 0
    })
    .await;
}

async fn offset_is(env: &TestEnv, group: &str, topic: &str, offset: i64) {
    eventually(LIMIT, "the offset to pass all", async || {
        let committed = env.kafka.committed(group, topic).await;
        committed.values().map(|committed| committed.offset).sum::<i64>() == offset
    })
    .await;
}

async fn reasons(env: &TestEnv, topic: &str) -> Vec<String> {
    let letters = env.kafka.read_all(topic).await;
    letters.iter().map(|letter| letter.header("idem-reason").unwrap_or_default()).collect()
}

#[derive(Debug, serde::Deserialize, Event)]
#[event(key(invoice))]
struct Invoice {
    invoice: i64,
}
