#![doc = include_str!("../outbox.md")]

pub(crate) mod backlog;
mod buffer;
mod check;
mod error;
pub(crate) mod relay;
mod sender;

use std::fmt::Display;
use std::future::{Future, IntoFuture};

use futures_util::future::BoxFuture;
use serde::Serialize;
use sqlx::PgConnection;

pub(crate) use self::buffer::{Buffer, Handled, Parents};
pub use self::error::{PublishError, Unpublishable};
use crate::clock;
use crate::config::Config;
use crate::event::{Event, EventId};
use crate::handler::Tx;
use crate::pg::outbox::{self, Row};
use crate::run::RunError;
use crate::telemetry::spans;
use crate::telemetry::trace_context::{self, TraceContext};

/// Publishes an event in the transaction of a connection, from code that is no handler: it is sent after
/// the transaction has committed, and never if it has not.
///
/// `key` is the Kafka key: the id of the aggregate, since the order of what is published with one key is
/// kept, if each transaction locks the aggregate before it publishes. The closure gets the event's id, a
/// UUID v7 made here, and puts it into the payload.
///
/// ```
/// use idem_runtime::{outbox, prelude::*};
/// use sqlx::Connection;
///
/// #[derive(serde::Serialize, serde::Deserialize, Event)]
/// struct OrderConfirmed { event_id: EventId, order_id: i64, total_cents: i64 }
///
/// async fn confirm(db: &mut sqlx::PgConnection, order_id: i64) -> Result<(), outbox::PublishError> {
///     let mut tx = db.begin().await?;
///     sqlx::query("UPDATE orders SET state = 'confirmed' WHERE id = $1").bind(order_id).execute(&mut *tx).await?;
///     outbox::publish(&mut tx, "order.confirmed", order_id, |event_id| OrderConfirmed {
///         event_id, order_id, total_cents: 4_999,
///     }).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// ```
///
/// # Errors
/// See [`PublishError`]; nothing is written then.
///
/// # Cancel safety
/// Dropping the future in the middle leaves the connection in an unknown state, as with any statement.
pub fn publish<'a, P, F>(
    connection: &'a mut PgConnection,
    topic: &'a str,
    key: impl Display,
    payload: F,
) -> Publish<'a, F>
where
    P: Event + Serialize,
    F: FnOnce(EventId) -> P + Send + 'a,
{
    Publish::new(Target::Connection(connection), topic, key, payload)
}

/// Runs the relay alone, until `shutdown`, SIGTERM or SIGINT: what `idem relay` does. Programs with handlers have one of their own,
/// unless `IDEM_RELAY=false`; of all that run, one is active.
///
/// # Errors
/// When the schema can't be made or the producer's settings are refused. A database or broker that is away is
/// waited for.
pub async fn relay(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), RunError> {
    relay::alone(config, shutdown).await
}

impl<'c> Tx<'c> {
    /// Publishes an event together with what the handler writes: it is sent after the commit, and never
    /// without it. The row is written when the handler has returned, with the commit.
    ///
    /// `key` is the Kafka key, the id of the aggregate. The closure gets the event's id and puts it into the
    /// payload. The id is derived from that of the handled event, so that a handler that has to run again publishes
    /// the same one.
    ///
    /// ```
    /// use idem_runtime::prelude::*;
    ///
    /// #[derive(serde::Deserialize, Event)]
    /// struct OrderConfirmed { event_id: EventId, order_id: i64, total_cents: i64 }
    ///
    /// #[derive(serde::Serialize, serde::Deserialize, Event)]
    /// struct OrderPaid { event_id: EventId, order_id: i64, amount_cents: i64 }
    ///
    /// #[idempotent_handler(topic = "order.confirmed", group = "billing")]
    /// async fn on_confirmed(tx: &mut Tx<'_>, order: OrderConfirmed) -> HandlerResult {
    ///     sqlx::query("UPDATE orders SET paid = true WHERE id = $1").bind(order.order_id).execute(&mut **tx).await?;
    ///     tx.publish("order.paid", order.order_id, |event_id| OrderPaid {
    ///         event_id, order_id: order.order_id, amount_cents: order.total_cents,
    ///     }).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// See [`PublishError`]. A handler with `batch` says which of its events it publishes for: see
    /// [`publish_for`](Self::publish_for).
    pub fn publish<'a, P, F>(&'a mut self, topic: &'a str, key: impl Display, payload: F) -> Publish<'a, F>
    where
        P: Event + Serialize,
        F: FnOnce(EventId) -> P + Send + 'a,
        'c: 'a,
    {
        Publish::new(Target::Event(&mut self.outbox, None), topic, key, payload)
    }

    /// The same for one of the events of a handler with `batch`: the id of what is published is derived from
    /// that event's, so it does not depend on which others were handled with it.
    ///
    /// ```
    /// # use idem_runtime::prelude::*;
    /// # #[derive(serde::Deserialize, Event)]
    /// # struct OrderConfirmed { event_id: EventId, order_id: i64, total_cents: i64 }
    /// # #[derive(serde::Serialize, serde::Deserialize, Event)]
    /// # struct OrderPaid { event_id: EventId, order_id: i64, amount_cents: i64 }
    /// #[idempotent_handler(topic = "order.confirmed", group = "billing", batch = 500)]
    /// async fn on_confirmed(tx: &mut Tx<'_>, orders: Vec<OrderConfirmed>) -> HandlerResult {
    ///     for order in &orders {
    ///         tx.publish_for(order, "order.paid", order.order_id, |event_id| OrderPaid {
    ///             event_id, order_id: order.order_id, amount_cents: order.total_cents,
    ///         }).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// See [`PublishError`]; also when the event is none of those that are handled.
    pub fn publish_for<'a, P, F>(
        &'a mut self,
        event: &impl Event,
        topic: &'a str,
        key: impl Display,
        payload: F,
    ) -> Publish<'a, F>
    where
        P: Event + Serialize,
        F: FnOnce(EventId) -> P + Send + 'a,
        'c: 'a,
    {
        Publish::new(Target::Event(&mut self.outbox, Some(event.event_id())), topic, key, payload)
    }
}

/// An event about to be published: `.await` it.
#[must_use = "nothing is published before it is awaited"]
pub struct Publish<'a, F> {
    target: Target<'a>,
    topic: &'a str,
    key: String,
    payload: F,
    event_id: Option<EventId>,
    event_type: Option<String>,
    occurred_at_millis: Option<i64>,
    headers: Vec<(String, String)>,
}

/// Where the row goes.
enum Target<'a> {
    Connection(&'a mut PgConnection),
    /// With the event that it is published for, if that was said. `dyn`, as the buffer's own lifetime is
    /// nobody's business.
    Event(&'a mut (dyn Outgoing + 'a), Option<EventId>),
}

/// What [`Buffer`] does for a handler.
trait Outgoing: Send {
    fn id_for(&mut self, parent: Option<EventId>, what: buffer::What<'_>) -> Result<EventId, Unpublishable>;
    fn push(&mut self, parent: Option<EventId>, row: Row);
}

impl<'a, F> Publish<'a, F> {
    fn new(target: Target<'a>, topic: &'a str, key: impl Display, payload: F) -> Self {
        Self {
            target,
            topic,
            key: key.to_string(),
            payload,
            event_id: None,
            event_type: None,
            occurred_at_millis: None,
            headers: Vec::new(),
        }
    }

    /// The event's id, in place of one that is made.
    pub fn event_id(self, id: EventId) -> Self {
        Self { event_id: Some(id), ..self }
    }

    /// What kind of event it is: the header `idem-event-type`. Without it that is the payload's `event_type`, which
    /// must be the same where there are both.
    pub fn event_type(self, event_type: impl Into<String>) -> Self {
        Self { event_type: Some(event_type.into()), ..self }
    }

    /// When it happened, in milliseconds since the Unix epoch: the timestamp of the Kafka record. Without it
    /// that is now. A topic deletes records by it.
    pub fn occurred_at_millis(self, millis: i64) -> Self {
        Self { occurred_at_millis: Some(millis), ..self }
    }

    /// One more header of the record. A handler's events continue the trace of the handled one by themselves
    /// (`traceparent` and `tracestate`), unless a `traceparent` is given here.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl<'a, P, F> IntoFuture for Publish<'a, F>
where
    P: Event + Serialize,
    F: FnOnce(EventId) -> P + Send + 'a,
{
    /// The event's id.
    type Output = Result<EventId, PublishError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.write())
    }
}

impl<'a, F> Publish<'a, F> {
    async fn write<P>(self) -> Result<EventId, PublishError>
    where
        P: Event + Serialize,
        F: FnOnce(EventId) -> P + Send + 'a,
    {
        let topic = self.topic;
        let refused = |problem| PublishError::Unpublishable { topic: topic.to_owned(), problem };
        let Self { mut target, key, payload, event_id, event_type, occurred_at_millis, headers, .. } = self;
        check::names(topic, &key, &headers).map_err(refused)?;
        let id = match (event_id, &mut target) {
            (Some(id), _) => id,
            (None, Target::Connection(_)) => EventId::now(),
            (None, Target::Event(outgoing, parent)) => {
                let what = buffer::What { topic, key: &key, event_type: event_type.as_deref() };
                outgoing.id_for(*parent, what).map_err(refused)?
            }
        };
        let checked = check::payload(&payload(id), id, event_type.as_deref()).map_err(refused)?;
        let occurred_at_millis =
            occurred_at_millis.unwrap_or_else(|| i64::try_from(clock::unix_millis()).unwrap_or(i64::MAX));
        let mut row = Row {
            event_id: checked.id.uuid(),
            topic: topic.to_owned(),
            key,
            payload: checked.bytes,
            headers,
            occurred_at_millis,
        };
        row.headers.extend(checked.event_type.map(|event_type| (check::EVENT_TYPE.to_owned(), event_type)));
        match target {
            Target::Connection(connection) => {
                continue_trace(&mut row, spans::current);
                outbox::insert(connection, &[row]).await?;
            }
            Target::Event(outgoing, parent) => outgoing.push(parent, row),
        }
        Ok(checked.id)
    }
}

/// Unless whoever publishes has given the event a trace of its own.
fn continue_trace(row: &mut Row, trace: impl FnOnce() -> Option<TraceContext>) {
    if !trace_context::is_traced(row.headers.iter().map(|(name, _)| name))
        && let Some(trace) = trace()
    {
        row.headers.extend(trace.headers().map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
