//! Delivering events to a handler.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use sqlx::PgConnection;

use super::database::refused;
use super::process::{Ended, Process};
use super::{Harness, Published};
use crate::clock;
use crate::config::Config;
use crate::handler::{Handler, RawHeader, States};
use crate::kafka::consumer::Partition;
use crate::kafka::names;
use crate::kafka::record::{Origin, Record};
use crate::money;
use crate::probe::{CrashPoint, World};
use crate::registry;
use crate::run::{Problems, RunError};
use crate::spec::HandlerSpec;
use crate::testing::TestingError;

/// A handler on the bench, and what it is given.
#[derive(Clone)]
pub struct HandlerTest<'h> {
    pub(super) bench: &'h Harness,
    pub(super) name: String,
    states: States,
    settings: Vec<(String, String)>,
    key: Option<Vec<u8>>,
    headers: Vec<RawHeader>,
}

/// How the delivery of an event ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// How, after all retries.
    pub end: End,
    /// The tiers that it waited in before. No time passed: the clock went on to when it was due.
    pub waits: Vec<Duration>,
}

/// Where an event ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// Its handler has handled it, and its effects are committed.
    Done,
    /// It was done before: nothing ran.
    Duplicate,
    /// No handler takes its `event_type`; or it is expired, and its handler has `expired = "skip"`; or its handler has
    /// `stale = "skip"`, and has applied its version or a later one.
    Skipped,
    /// It is a dead letter.
    DeadLetter {
        /// The header `idem-reason`, such as `permanent` or `exhausted`.
        reason: String,
        /// The header `idem-error`.
        error: String,
    },
}

/// What a process of the test is given to do.
#[derive(Clone)]
pub(super) struct Hand {
    partition: Partition,
    /// `None`: a parked event of the partition.
    record: Option<Record>,
    waits: Vec<Duration>,
}

/// How far an event came.
pub(super) enum Driven {
    To(Delivered),
    /// The process died with this in its hand, which is delivered again.
    Died(Hand),
}

impl<'h> HandlerTest<'h> {
    pub(super) fn new(bench: &'h Harness, name: &str) -> Self {
        let (settings, headers) = (Vec::new(), Vec::new());
        Self { bench, name: name.to_owned(), states: States::default(), settings, key: None, headers }
    }

    /// As [`Builder::state`](crate::Builder::state).
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// A setting by its environment variable, such as `("IDEM_RETRY", "1s,10m")`. The environment itself is
    /// not read.
    #[must_use]
    pub fn setting(mut self, variable: &str, value: &str) -> Self {
        self.settings.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// The key of the events' records; none, if nothing is said.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// A header of the events' records.
    #[must_use]
    pub fn header(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Delivers an event, and leads it over all its retries to where it ends. The tiers' time passes at
    /// once.
    ///
    /// An event of the same content is the same record: delivering it again is what Kafka does after a
    /// rebalance.
    ///
    /// # Errors
    /// When the handler does not exist, lacks a state or ends the transaction itself; or when the event
    /// waits for the database, the broker or the provider.
    pub async fn deliver<E: Serialize + ?Sized>(&self, event: &E) -> Result<Delivered, TestingError> {
        match self.drive(&self.world(None), self.hand(event)?).await? {
            Driven::To(delivered) => Ok(delivered),
            Driven::Died(_) => unreachable!("nowhere to die"),
        }
    }

    /// Delivers an event to a process that dies at a point: its connections close, and what is not
    /// committed is rolled back. [`deliver`](Self::deliver) then is the redelivery.
    ///
    /// # Errors
    /// Those of [`deliver`](Self::deliver); and when the event ends without coming to the point.
    pub async fn crash<E: Serialize + ?Sized>(&self, point: CrashPoint, event: &E) -> Result<(), TestingError> {
        match self.drive(&self.world(Some((point, 1))), self.hand(event)?).await? {
            Driven::Died(_) => Ok(()),
            Driven::To(delivered) => Err(TestingError::NotReached { point, ended: format!("{:?}", delivered.end) }),
        }
    }

    pub(super) fn world(&self, crash: Option<(CrashPoint, usize)>) -> Arc<World> {
        World::new(self.bench.ahead_millis(), crash)
    }

    /// The record of an event, as it is delivered first.
    pub(super) fn hand<E: Serialize + ?Sized>(&self, event: &E) -> Result<Hand, TestingError> {
        let topic = self.spec()?.topic;
        let payload = serde_json::to_vec(event).map_err(TestingError::Event)?;
        let (key, headers) = (self.key.clone(), self.headers.clone());
        let record = self.bench.record(Published { topic, key, payload, headers });
        let partition = Partition { topic: topic.into(), number: 0 };
        Ok(Hand { partition, record: Some(record), waits: Vec::new() })
    }

    /// Leads an event to its end, a process for each attempt.
    pub(super) async fn drive(&self, world: &Arc<World>, mut hand: Hand) -> Result<Driven, TestingError> {
        let main = Partition { topic: self.spec()?.topic.into(), number: 0 };
        loop {
            let mut process = self.process().await?;
            let end = match process.handle(world, &hand.partition, hand.record.clone()).await? {
                Ended::Died => return Ok(Driven::Died(hand)),
                Ended::Behind | Ended::Settled("retry") => None,
                Ended::Settled("done") => Some(End::Done),
                Ended::Settled("duplicate") => Some(End::Duplicate),
                Ended::Settled("dead-letter") => {
                    let letter = self.bench.topics.last_new(&process.config, &process.group).await?;
                    Some(End::dead_letter(letter.as_ref()))
                }
                Ended::Settled(_) => Some(End::Skipped),
            };
            let due = if process.group.ordered { self.parked_due(&process).await? } else { None };
            match (end, due) {
                (Some(end), None) => return Ok(Driven::To(Delivered { end, waits: hand.waits })),
                (end, Some(due)) => {
                    if end.is_none() {
                        let tier = process.group.tiers(self.spec()?.name).get(hand.waits.len()).copied();
                        hand.waits.extend(tier);
                    }
                    (hand.partition, hand.record) = (main.clone(), None);
                    self.pass_to(world, due);
                }
                (None, None) => {
                    let record = self.bench.topics.last_new(&process.config, &process.group).await?;
                    let Some(record) = record else { return Err(TestingError::Stuck(Vec::new())) };
                    hand.waits.extend(names::retry_delay(&process.group.name, &record.topic));
                    let origin = Origin::of_own(&record.raw_headers());
                    self.pass_to(world, origin.and_then(|origin| origin.due_at_millis).unwrap_or_default());
                    hand.partition = Partition { topic: Arc::clone(&record.topic), number: record.partition };
                    hand.record = Some(record);
                }
            }
        }
    }

    /// A process that knows the handlers of the group; the database has the library's tables after this.
    pub(super) async fn process(&self) -> Result<Process, TestingError> {
        let group = self.spec()?.group;
        let handlers: Vec<Handler> =
            registry::handlers().into_iter().filter(|handler| handler.spec.group == group).collect();
        let (database, brokers) = (self.bench.database_url(), self.bench.topics.brokers().to_owned());
        let own = [
            ("IDEM_DATABASE_URL", database),
            ("IDEM_KAFKA_BROKERS", brokers),
            ("IDEM_CLIENT_ID", "idem-test".to_owned()),
            ("IDEM_POOL_SIZE", "4".to_owned()),
            ("IDEM_MONEY_BASE_URL", self.bench.provider.url()),
        ];
        let own = own.into_iter().map(|(variable, value)| (variable.to_owned(), value));
        let mut problems = registry::problems(&handlers, &self.states);
        match Config::from_vars(own.chain(self.settings.clone())) {
            Ok(config) => {
                problems.extend(money::start::problems(&config, &handlers));
                if problems.is_empty() {
                    let ready = self.bench.ready().get(group).copied();
                    let process = Process::start(config, self.states.clone(), handlers, ready).await?;
                    self.bench.ready().insert(group, process.group.lineage);
                    self.bench.topics.create(&process.group)?;
                    return Ok(process);
                }
            }
            Err(errors) => problems.extend(errors.0.iter().map(ToString::to_string)),
        }
        Err(TestingError::Run(RunError::Setup(Problems(problems))))
    }

    /// What the attribute says of the handler.
    fn spec(&self) -> Result<HandlerSpec, TestingError> {
        let handlers = registry::handlers();
        let is_meant =
            |name: &str| name.strip_suffix(&*self.name).is_some_and(|path| path.is_empty() || path.ends_with("::"));
        let mut found = handlers.iter().filter(|handler| is_meant(handler.spec.name));
        match (found.next(), found.next()) {
            (Some(handler), None) => Ok(handler.spec),
            (Some(one), Some(other)) => {
                Err(TestingError::NoHandler(format!("`{}` may be {} or {}", self.name, one.spec.name, other.spec.name)))
            }
            (None, _) => {
                let names: Vec<&str> = handlers.iter().map(|handler| handler.spec.name).collect();
                let linked = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Err(TestingError::NoHandler(format!(
                    "no handler `{}` is linked into the test, which has: {linked}. One in a crate that nothing names is \
                     not linked: add `use that_crate as _;`",
                    self.name
                )))
            }
        }
    }

    /// When the next parked event of the topic is due, milliseconds since the Unix epoch.
    async fn parked_due(&self, process: &Process) -> Result<Option<u64>, TestingError> {
        let mut connection: PgConnection = self.bench.connect().await?;
        let due: Option<i64> = sqlx::query_scalar(
            "SELECT (extract(epoch FROM min(due_at)) * 1000)::bigint FROM ( \
                 SELECT DISTINCT ON (key) due_at FROM parked_event WHERE consumer_group = $1 AND topic = $2 \
                  ORDER BY key, record_offset) AS head",
        )
        .bind(&*process.group.name)
        .bind(self.spec()?.topic)
        .fetch_one(&mut connection)
        .await
        .map_err(refused("read parked events"))?;
        Ok(due.and_then(|due| due.try_into().ok()))
    }

    /// Lets time pass until then.
    fn pass_to(&self, world: &World, due_millis: u64) {
        world.pass_to(due_millis.saturating_sub(clock::unix_millis()));
        self.bench.ahead.fetch_max(world.ahead_millis(), Ordering::Relaxed);
    }
}

impl End {
    fn dead_letter(letter: Option<&Record>) -> Self {
        let headers = letter.map(Record::raw_headers).unwrap_or_default();
        let text = |name: &str| {
            let found = headers.iter().find(|(found, _)| found == name.as_bytes());
            let value = found.and_then(|(_, value)| value.as_deref()).unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        };
        Self::DeadLetter { reason: text(names::REASON), error: text(names::ERROR) }
    }
}

impl fmt::Debug for HandlerTest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerTest").field("name", &self.name).finish_non_exhaustive()
    }
}
