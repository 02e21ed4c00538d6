//! An event that costs money, and the desk where a test publishes bills and looks what became of them.

use std::time::Duration;

use idem_runtime::prelude::*;
use idem_runtime::testing::{Provider, ProviderFault};
use idem_runtime::{Charge, Config, MoneyError};
use serde_json::json;
use tests::orders;
use tests::{Kafka, ReadRecord, Record, Run, TestEnv, cli, eventually};
use uuid::Uuid;

pub const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, serde::Deserialize, Event)]
pub struct Bill {
    pub event_id: EventId,
    #[serde(default)]
    pub plan: Plan,
}

/// What the handler does besides charging and writing its effect.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plan {
    #[default]
    Charge,
    /// Has the attempt in the body.
    ChangeBody,
    /// Two calls without a name.
    TwoUnnamed,
    /// A second call with a name.
    Refund,
    /// Ignores every failure of the call.
    Swallow,
    /// Does not wait for the call.
    GiveUpWaiting,
    /// Runs into a unique violation after the call, while there is the row for it.
    Violate,
    /// Writes its effect also when the payment was declined.
    TakeDecline,
    /// Leaves another `search_path` in the transaction.
    LeavePath,
    /// Makes a call whose name is empty.
    EmptyName,
}

pub async fn handle(tx: &mut Tx<'_>, bill: Bill, payments: MoneyClient, from: &Delivery, group: &str) -> HandlerResult {
    let body = match bill.plan {
        Plan::ChangeBody => json!({"event": bill.event_id, "at": from.attempt}),
        _ => json!({"event": bill.event_id}),
    };
    let call = payments.post("/charges").json(&body).send();
    match bill.plan {
        Plan::Swallow => drop(call.await),
        Plan::GiveUpWaiting => drop(tokio::time::timeout(Duration::from_millis(100), call).await),
        Plan::TakeDecline => match call.await {
            Ok(Charge::Applied(_) | Charge::AlreadyProcessed) | Err(MoneyError::Refused { status: 402, .. }) => {}
            Err(error) => return Err(error.into()),
        },
        _ => drop(call.await?),
    }
    match bill.plan {
        Plan::TwoUnnamed => drop(payments.post("/charges").json(&json!({"second": true})).send().await?),
        Plan::Refund => drop(payments.operation("refund").post("/refunds").json(&body).send().await?),
        Plan::EmptyName => drop(payments.operation("").post("/refunds").send().await?),
        Plan::Violate => {
            sqlx::query("INSERT INTO taken VALUES ('taken')").execute(&mut **tx).await?;
        }
        _ => {}
    }
    sqlx::query("INSERT INTO effect (event_id, consumer_group, number) VALUES ($1, $2, 0)")
        .bind(bill.event_id.uuid())
        .bind(group)
        .execute(&mut **tx)
        .await?;
    if bill.plan == Plan::LeavePath {
        sqlx::query("SET LOCAL search_path TO pg_catalog").execute(&mut **tx).await?;
    }
    Ok(())
}

/// Handlers of groups of their own; the topic is the group's name and `.bills`.
#[macro_export]
macro_rules! money_handlers {
    ($($name:ident: $group:literal on $topic:literal $(, $key:ident = $value:tt)*;)*) => {$(
        #[idempotent_handler(topic = $topic, group = $group, money = true $(, $key = $value)*)]
        async fn $name(tx: &mut Tx<'_>, bill: $crate::bill::Bill, payments: MoneyClient, from: Delivery) -> HandlerResult {
            $crate::bill::handle(tx, bill, payments, &from, $group).await
        }
    )*};
}

/// A row of `money_call`.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    pub key: String,
    pub operation: String,
    pub generation: i32,
    pub state: String,
    pub attempt: i32,
    pub recorded: bool,
}

pub struct Desk {
    pub group: &'static str,
    pub topic: String,
    pub env: TestEnv,
    pub provider: Provider,
}

impl Desk {
    pub async fn open(group: &'static str) -> Self {
        Self::on(group, TestEnv::new().await).await
    }

    pub async fn on(group: &'static str, env: TestEnv) -> Self {
        let provider = Provider::start().await.unwrap();
        let env = env.with("IDEM_MONEY_BASE_URL", &provider.url());
        orders::create_tables(&env.pool).await;
        let topic = format!("{group}.bills");
        env.kafka.create_topic(&topic, 1).await;
        Self { group, topic, env, provider }
    }

    pub fn run(&self) -> Run {
        Run::start(&self.env, &[self.group])
    }

    /// Publishes a bill with a key of its own.
    pub async fn bill(&self, plan: Plan) -> Uuid {
        let id = EventId::now().uuid();
        self.publish(id, plan, None).await;
        id
    }

    pub async fn publish(&self, id: Uuid, plan: Plan, timestamp: Option<i64>) {
        let value = json!({"event_id": id, "plan": plan}).to_string();
        let key = id.to_string();
        let record = Record::to(&self.topic).key(&key).value(&value);
        let record = if let Some(millis) = timestamp { record.timestamp(millis) } else { record };
        self.env.kafka.produce(record).await;
    }

    pub fn next(&self, faults: &[ProviderFault]) {
        faults.iter().for_each(|fault| self.provider.next(fault.clone()));
    }

    pub async fn effects(&self) -> usize {
        orders::effect_count(&self.env.pool, self.group).await
    }

    pub async fn until_effects(&self, count: usize) {
        eventually(LIMIT, &format!("{count} effects"), async || self.effects().await == count).await;
    }

    pub async fn letters(&self) -> Vec<ReadRecord> {
        self.env.kafka.read_all(&format!("{}.dlq", self.group)).await
    }

    /// Waits for so many dead letters, and returns the reason of the last one.
    pub async fn until_letters(&self, count: usize) -> String {
        eventually(LIMIT, &format!("{count} dead letters"), async || self.letters().await.len() == count).await;
        self.letters().await.pop().and_then(|letter| letter.header("idem-reason")).unwrap()
    }

    /// Waits until the group is done with everything that was published.
    pub async fn until_offset(&self, offset: i64) {
        eventually(LIMIT, &format!("offset {offset}"), async || {
            let committed = self.env.kafka.committed(self.group, &self.topic).await;
            committed.get(&0).is_some_and(|committed| committed.offset == offset)
        })
        .await;
    }

    pub async fn rows(&self) -> Vec<Row> {
        let rows = "SELECT key, operation, generation, state, attempt, recorded_at IS NOT NULL AS recorded \
                      FROM money_call WHERE consumer_group = $1 ORDER BY created_at, generation";
        let rows: Vec<(String, String, i32, String, i32, bool)> =
            sqlx::query_as(rows).bind(self.group).fetch_all(&self.env.pool).await.unwrap();
        let row = |(key, operation, generation, state, attempt, recorded)| Row {
            key,
            operation,
            generation,
            state,
            attempt,
            recorded,
        };
        rows.into_iter().map(row).collect()
    }

    /// Lets requests whose answer is missing, and the last ones, seem older.
    pub async fn age(&self, interval: &str) {
        let aged = "UPDATE money_call SET unsure_since = unsure_since - $1::interval, \
                           unsure_at = unsure_at - $1::interval, attempted_at = attempted_at - $1::interval";
        sqlx::query(aged).bind(interval).execute(&self.env.pool).await.unwrap();
    }

    /// The keys as they arrived at the provider, in order.
    pub fn keys(&self) -> Vec<String> {
        self.provider.requests().into_iter().map(|request| request.key.unwrap_or_default()).collect()
    }

    pub fn charges(&self) -> usize {
        self.provider.charges().len()
    }

    pub fn ops(&self) -> idem_runtime::ops::Ops {
        idem_runtime::ops::Ops::new(Config::from_vars(self.env.variables()).unwrap())
    }

    pub async fn replay(&self) {
        use idem_runtime::ops::{replay, silent};
        let report = replay::replay(&self.ops(), self.group, &replay::Options::default(), &mut silent).await.unwrap();
        assert_eq!(report.replayed, 1, "{report:?}");
    }

    pub async fn idem(&self, args: &[&str]) -> cli::Said {
        cli::idem(self.env.variables(), args).await
    }
}

/// Settings for tests that compress time.
pub async fn env_with(variables: &[(&str, &str)]) -> TestEnv {
    let env = TestEnv::on(&tests::postgres::database().await, Kafka::shared().await);
    variables.iter().fold(env, |env, (name, value)| env.with(name, value))
}
