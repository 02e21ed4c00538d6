//! A registered handler, and what its function may ask for.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;

use crate::error::HandlerResult;
use crate::event::{DecodeError, DecodedEvent, EventId, EventVersion, PayloadSchema, TypeField};
use crate::kafka::record::{Origin, Record};
use crate::money::{self, MoneyClient};
use crate::outbox::Buffer;
use crate::spec::HandlerSpec;
use crate::telemetry::trace_context::TraceContext;

/// The transaction that holds the dedup row and everything the handler writes.
///
/// It dereferences to [`PgConnection`], so `&mut **tx` is what sqlx wants. `tx.begin()` (from
/// [`sqlx::Connection`]) is a savepoint. There is no commit: the library commits after the handler,
/// and a handler that runs `COMMIT` or `ROLLBACK` itself stops `run()`.
///
/// ```
/// use idem_runtime::prelude::*;
///
/// async fn mark_paid(tx: &mut Tx<'_>, order: i64) -> HandlerResult {
///     sqlx::query("UPDATE orders SET paid = true WHERE id = $1").bind(order).execute(&mut **tx).await?;
///     Ok(())
/// }
/// ```
pub struct Tx<'c> {
    pub(crate) connection: &'c mut PgConnection,
    /// What the handler publishes.
    pub(crate) outbox: Buffer<'c>,
}

impl Deref for Tx<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection
    }
}

impl DerefMut for Tx<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection
    }
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx { .. }")
    }
}

/// A value given to [`Builder::state`](crate::Builder::state), shared by every call of a handler.
///
/// `T` must be `Send + Sync + 'static`. That a value of the type was given is checked before the
/// first event is consumed.
pub struct State<T> {
    value: Arc<dyn Any + Send + Sync>,
    // `fn() -> T` keeps `State<T>` Send whatever T is: the builder is where the bound belongs.
    of: PhantomData<fn() -> T>,
}

impl<T: 'static> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.downcast_ref().unwrap_or_else(|| unreachable!("made by States::get for this type only"))
    }
}

impl<T> Clone for State<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), of: PhantomData }
    }
}

impl<T> fmt::Debug for State<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State<{}>", std::any::type_name::<T>())
    }
}

/// The values given to the builder, by type.
#[derive(Default, Clone)]
pub(crate) struct States {
    by_type: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl States {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.by_type.insert(TypeId::of::<T>(), Arc::new(value));
    }

    pub(crate) fn contains(&self, of: TypeId) -> bool {
        self.by_type.contains_key(&of)
    }

    fn get<T: 'static>(&self) -> Option<State<T>> {
        let value = Arc::clone(self.by_type.get(&TypeId::of::<T>())?);
        Some(State { value, of: PhantomData })
    }
}

/// A record header: name and value, both any bytes; a value may be absent.
pub type RawHeader = (Vec<u8>, Option<Vec<u8>>);

/// Where an event came from: the record on its origin topic, also when it is read again from a
/// retry topic.
#[derive(Clone)]
#[non_exhaustive]
pub struct Delivery {
    /// The origin topic.
    pub topic: Arc<str>,
    /// The partition of the origin topic.
    pub partition: i32,
    /// The offset in that partition.
    pub offset: i64,
    /// The record's key, any bytes.
    pub key: Option<Arc<[u8]>>,
    /// The record's headers in order; names and values are any bytes.
    pub headers: Arc<[RawHeader]>,
    /// The origin record's timestamp, milliseconds since the Unix epoch.
    pub timestamp_millis: Option<i64>,
    /// How often the event has failed before: 0 for the first delivery.
    pub attempt: u32,
    /// The W3C `traceparent` that came with the record, when there was exactly one well-formed one.
    pub traceparent: Option<Arc<str>>,
    /// The W3C `tracestate` beside it.
    pub tracestate: Option<Arc<str>>,
}

impl Delivery {
    /// The first value of the header with this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(n, _)| n == name.as_bytes()).and_then(|(_, value)| value.as_deref())
    }

    #[cfg_attr(not(feature = "money"), allow(dead_code, reason = "money calls carry it on"))]
    pub(crate) fn trace(&self) -> Option<TraceContext> {
        Some(TraceContext { parent: self.traceparent.clone()?, state: self.tracestate.clone() })
    }
}

impl fmt::Debug for Delivery {
    /// Key and headers may hold personal data: only their sizes are printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .field("key_bytes", &self.key.as_ref().map(|key| key.len()))
            .field("headers", &self.headers.len())
            .field("timestamp_millis", &self.timestamp_millis)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// A record and where it was first read. The [`Delivery`] is made of it only when a handler asks for one.
#[derive(Clone, Copy)]
pub(crate) struct Delivered<'a> {
    pub record: &'a Record,
    pub origin: &'a Origin,
}

impl Delivered<'_> {
    pub(crate) fn delivery(self) -> Delivery {
        let Self { record, origin } = self;
        let headers = record.raw_headers();
        let trace = TraceContext::of(&headers);
        Delivery {
            topic: Arc::clone(&origin.topic),
            partition: origin.partition,
            offset: origin.offset,
            key: record.key.as_deref().map(Into::into),
            traceparent: trace.as_ref().map(|trace| Arc::clone(&trace.parent)),
            tracestate: trace.and_then(|trace| trace.state),
            headers: headers.into(),
            timestamp_millis: origin.timestamp_millis,
            attempt: origin.attempt,
        }
    }
}

/// What a handler's parameters are made from.
#[derive(Clone, Copy)]
pub struct ParamSource<'a> {
    pub(crate) states: &'a States,
    /// With `batch`, of its first event.
    pub(crate) delivered: Delivered<'a>,
    pub(crate) money: Option<&'a money::Running>,
}

impl<'a> ParamSource<'a> {
    pub(crate) fn state<T: 'static>(self) -> State<T> {
        self.states.get().unwrap_or_else(|| unreachable!("run() checks every state before it consumes"))
    }

    pub(crate) fn money(self) -> MoneyClient {
        self.money.unwrap_or_else(|| unreachable!("a client needs `money = true`, which the types check")).client()
    }

    pub(crate) fn delivery(self) -> Delivery {
        self.delivered.delivery()
    }
}

/// A value the handler needs from the builder.
#[derive(Debug, Clone, Copy)]
pub struct StateNeed {
    pub(crate) id: TypeId,
    pub(crate) type_name: &'static str,
}

/// Decodes a record's value into what the handler takes: the event, or with `batch` a `Vec` of it alone.
pub type DecodeFn = fn(&[u8]) -> Result<DecodedEvent, DecodeError>;

/// How a handler's events are decoded.
#[derive(Clone, Copy)]
pub struct Decode {
    pub(crate) one: DecodeFn,
    pub(crate) many: fn() -> Box<dyn Decoded>,
    pub(crate) type_field: TypeField,
    /// The event's type, as the compiler calls it.
    pub(crate) type_name: &'static str,
    #[cfg_attr(not(feature = "schemars"), allow(dead_code, reason = "there is none"))]
    pub(crate) schema: Option<PayloadSchema>,
}

/// Decoded events of one handler, in order. Only their type is erased, and only once for all of them.
pub trait Decoded: Send {
    /// Decodes one more.
    ///
    /// # Errors
    /// When the value is no such event; then none is added.
    fn push(&mut self, payload: &[u8]) -> Result<(EventId, Option<EventVersion>), DecodeError>;

    /// Drops those that are not to be kept.
    fn retain(&mut self, keep: &[bool]);

    /// All at once, as a handler with `batch` takes them.
    fn together(self: Box<Self>) -> Box<dyn Any + Send>;

    /// One after the other, as the other handlers take them.
    fn singly(self: Box<Self>) -> Box<dyn Iterator<Item = Box<dyn Any + Send>> + Send>;
}

/// Calls the user's function with the erased event.
///
/// A closure rather than a function pointer: it carries how each parameter is made.
pub type CallFn = Arc<
    dyn for<'a> Fn(&'a mut Tx<'_>, Box<dyn Any + Send>, ParamSource<'a>) -> BoxFuture<'a, HandlerResult> + Send + Sync,
>;

/// A handler as the pipeline drives it.
#[derive(Clone)]
pub struct Handler {
    pub(crate) spec: HandlerSpec,
    pub(crate) decode: Decode,
    pub(crate) call: CallFn,
    pub(crate) needs: Vec<StateNeed>,
}

/// What `#[idempotent_handler]` submits to the inventory.
pub struct Registration {
    pub(crate) build: fn() -> Handler,
}

impl Registration {
    /// Called by generated code only.
    #[must_use]
    pub const fn new(build: fn() -> Handler) -> Self {
        Self { build }
    }
}

inventory::collect!(Registration);
