//! The money calls of one attempt at an event.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::error::RequestError;
use super::{MoneyClient, MoneyError, Provider};
use crate::decide::money::State;
use crate::decide::outcome::Reason;
use crate::decide::{money_key, window};
use crate::error::{Class, Classified, Failure, HandlerError};
use crate::event::EventId;
use crate::handler::{Delivered, Delivery};
use crate::pg::money::record::{self, Certain};
use crate::pg::money::{self as rows, CallId, Place, Places, Settlement};
use crate::probe;
#[cfg(feature = "testing")]
use crate::probe::CrashPoint;
use crate::spec::Money;

/// How long an event's transaction may take to settle its calls, before they are settled beside it.
const SETTLE_AFTER: Duration = Duration::from_millis(100);

/// What the calls of an attempt have in common.
pub(crate) struct Event {
    pub id: EventId,
    pub group: Arc<str>,
    pub spec: Money,
    pub delivery: Delivery,
    /// Where it was read from now: its origin, or one of the group's own topics.
    pub read_from: (Arc<str>, i32, i64),
    /// When the handler's time is up.
    pub deadline: Instant,
    /// The group may have processed the event and forgotten it, and nobody said that it may be handled.
    pub may_be_forgotten: bool,
}

impl Event {
    /// `horizon`: see [`may_be_forgotten`](window::may_be_forgotten).
    pub(crate) fn new(
        id: EventId,
        group: &Arc<str>,
        spec: Money,
        delivered: Delivered<'_>,
        timeout: Duration,
        horizon: Option<i64>,
    ) -> Self {
        let Delivered { record, origin } = delivered;
        let is_allowed = origin.replay.is_some_and(|replay| replay.may_be_expired);
        Self {
            id,
            group: Arc::clone(group),
            spec,
            delivery: delivered.delivery(),
            read_from: (Arc::clone(&record.topic), record.partition, record.offset),
            deadline: Instant::now() + timeout,
            may_be_forgotten: !is_allowed
                && window::may_be_forgotten(id.unix_millis(), origin.timestamp_millis, horizon),
        }
    }

    pub(super) fn places(&self) -> Places {
        let Delivery { topic, partition, offset, timestamp_millis, .. } = &self.delivery;
        let (read_topic, read_partition, read_offset) = &self.read_from;
        // The earlier one: it is the safe one where a clock was wrong.
        let of_id = self.id.unix_millis().and_then(|millis| i64::try_from(millis).ok());
        let origin_millis = timestamp_millis.iter().copied().chain(of_id).min();
        Places {
            origin: Place { topic: Arc::clone(topic), partition: *partition, offset: *offset },
            record: Place { topic: Arc::clone(read_topic), partition: *read_partition, offset: *read_offset },
            origin_millis,
            may_be_forgotten: self.may_be_forgotten,
        }
    }
}

/// One attempt at an event, as its handler's clients share it.
pub(crate) struct Attempt {
    pub(super) provider: Arc<Provider>,
    pub(super) event: Event,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    by_name: BTreeMap<String, Ended>,
    /// The handler has returned.
    over: bool,
}

/// How a call ended.
enum Ended {
    /// It runs, or was dropped.
    NotYet,
    /// What became of it is certain.
    Settled(Certain),
    /// It has to be asked for again, or a person has to decide.
    Open(Class, Option<Reason>, String),
}

/// The attempt as long as its handler runs. Dropped, it is over: a task that the handler left behind
/// makes no call any more.
pub(crate) struct Running(Arc<Attempt>);

impl Running {
    pub(crate) fn new(provider: Arc<Provider>, event: Event) -> Self {
        Self(Arc::new(Attempt { provider, event, calls: Mutex::default() }))
    }

    pub(crate) fn client(&self) -> MoneyClient {
        MoneyClient::new(Arc::clone(&self.0))
    }
}

impl Deref for Running {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().over = true;
    }
}

impl Attempt {
    /// Takes a name for a call. `named`: as the handler says; else the attribute's.
    pub(super) fn take_name(&self, named: Option<String>) -> Result<String, MoneyError> {
        if named.as_deref() == Some("") {
            return Err(RequestError::NoName.into());
        }
        let name = named.unwrap_or_else(|| self.event.spec.operation.unwrap_or_default().to_owned());
        let mut calls = self.lock();
        if calls.over {
            return Err(RequestError::Over.into());
        }
        if calls.by_name.contains_key(&name) {
            return Err(MoneyError::SecondCall);
        }
        calls.by_name.insert(name.clone(), Ended::NotYet);
        Ok(name)
    }

    /// `certain`: what became of it for good. A refusal is not, where an earlier request may have been carried out.
    pub(super) fn ended<T>(self: &Arc<Self>, name: String, result: &Result<T, MoneyError>, certain: Option<Certain>) {
        let ended = match (result, certain) {
            (_, Some(certain)) => {
                if certain.settlement.is_some() {
                    self.settle_soon();
                }
                Ended::Settled(certain)
            }
            (Err(error), None) => Ended::Open(error.class(), error.reason(), error.to_string()),
            (Ok(_), None) => return,
        };
        self.lock().by_name.insert(name, ended);
    }

    /// Most events are committed at once, and settle their calls themselves. For a handler that takes its time, or
    /// is stopped.
    fn settle_soon(self: &Arc<Self>) {
        let attempt = Arc::clone(self);
        tokio::spawn(probe::mortal(async move {
            tokio::time::sleep(SETTLE_AFTER).await;
            // The attempt itself tries again, where its event fails.
            let _ = attempt.settle().await;
        }));
    }

    /// Where a commit is late, the calls are settled by then, and the process may die: a point for tests, at which
    /// nothing happens otherwise.
    pub(crate) async fn late_commit(&self) {
        #[cfg(feature = "testing")]
        if !self.certain().is_empty() {
            if probe::dies_at(CrashPoint::AfterSettling) {
                let _ = self.settle().await;
            }
            probe::at(CrashPoint::AfterSettling).await;
        }
    }

    /// Notes that the event's transaction is committed, and with it what its calls came to.
    pub(crate) fn noted(&self) {
        for ended in self.lock().by_name.values_mut() {
            if let Ended::Settled(certain) = ended {
                certain.settlement = None;
            }
        }
    }

    /// Settles what the event's transaction did not settle.
    ///
    /// # Errors
    /// The database's. What is not settled is asked for again, with the same key.
    pub(crate) async fn settle(&self) -> Result<(), sqlx::Error> {
        for (name, certain) in self.certain() {
            let Some(settlement) = certain.settlement else { continue };
            let id = CallId { event_id: self.event.id.uuid(), group: &self.event.group, operation: &name };
            let is_settled = self.settle_call(&id, &settlement).await?;
            if !is_settled && certain.state == State::Applied {
                let key = money_key::key(id.event_id, id.group, id.operation, certain.generation);
                tracing::error!(
                    key,
                    "a money call was carried out after it had been resolved otherwise: look at it at the provider"
                );
            }
            if let Some(Ended::Settled(certain)) = self.lock().by_name.get_mut(&name) {
                certain.settlement = None;
            }
        }
        Ok(())
    }

    /// Settles one call. `false`: the record says otherwise.
    pub(super) async fn settle_call(&self, id: &CallId<'_>, settlement: &Settlement) -> Result<bool, sqlx::Error> {
        rows::settle(&self.provider.pool, id, settlement).await.inspect_err(|error| {
            tracing::warn!(%error, "the answer to a money call could not be recorded; it will be asked for again");
        })
    }

    /// The handler has returned: no call is made after this.
    pub(crate) fn end(&self) {
        self.lock().over = true;
    }

    /// The failure of a handler that returned `Ok` although a call of its has to be asked for again.
    /// No call is made after this.
    pub(crate) fn swallowed(&self) -> Option<HandlerError> {
        let mut calls = self.lock();
        calls.over = true;
        calls
            .by_name
            .values()
            .find_map(|ended| match ended {
                Ended::Settled(_) => None,
                Ended::NotYet => Some((Class::Transient, None, "it was not waited for".to_owned())),
                Ended::Open(class, reason, text) => Some((*class, *reason, text.clone())),
            })
            .map(|(class, reason, text)| {
                HandlerError::of_class(class, Failure::with_safe_text(Swallowed(text)).because(reason))
            })
    }

    /// The statements that note in the event's transaction that its effects belong to the calls of this attempt, and
    /// settle them; none if there are none.
    pub(crate) fn statements(&self, is_prepared: bool) -> String {
        let certain = self.certain();
        if certain.is_empty() {
            return String::new();
        }
        record::statements(self.event.id.uuid(), &self.event.group, &certain, is_prepared)
    }

    fn certain(&self) -> Vec<(String, Certain)> {
        let certain = |(name, ended): (&String, &Ended)| match ended {
            Ended::Settled(certain) => Some((name.clone(), certain.clone())),
            Ended::NotYet | Ended::Open(..) => None,
        };
        self.lock().by_name.iter().filter_map(certain).collect()
    }

    /// A panic inside leaves the map as it was: it changes in one step per call.
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the handler returned Ok, and what became of a money call is open: {0}")]
struct Swallowed(String);
