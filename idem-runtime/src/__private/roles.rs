//! One function per role of a parameter, and of the result.

use std::any::TypeId;
use std::future::Future;
use std::marker::PhantomData;

use futures_util::future::{BoxFuture, FutureExt};

use super::Payload;
use super::rules::{Client, NeedsNoMoney, NoClient};
use crate::error::{HandlerError, HandlerResult};
use crate::event::{DecodeError, DecodedEvent, Event, EventId, EventVersion};
use crate::handler::{Decode, DecodeFn, Decoded, Delivery, ParamSource, State, StateNeed, Tx};
use crate::money::MoneyClient;

// ---- The transaction ----

/// What the first parameter of a handler may be.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler's transaction",
    label = "a handler borrows its transaction: `tx: &mut Tx<'_>`",
    note = "the library commits it, together with the dedup row, after the handler has returned"
)]
pub trait TxArg<'a, 'c> {
    #[doc(hidden)]
    fn lend(tx: &'a mut Tx<'c>) -> Self;
}

impl<'a, 'c> TxArg<'a, 'c> for &'a mut Tx<'c> {
    fn lend(tx: &'a mut Tx<'c>) -> Self {
        tx
    }
}

/// Lends the transaction. Without the trait, deref coercion would accept `&mut PgConnection`.
pub fn tx<'a, 'c, T>(tx: &'a mut Tx<'c>) -> T
where
    T: TxArg<'a, 'c>,
{
    T::lend(tx)
}

// ---- The event ----

/// How the handler's events are decoded and handed over: `A` is the argument, `E` the event, `V`
/// whether it has a version.
pub struct EventSlot<A, E, V> {
    decode: Decode,
    take: fn(Payload) -> A,
    of: PhantomData<fn() -> (E, V)>,
}

/// The role of the second parameter.
#[must_use]
pub fn event<E>() -> EventSlot<E, E, E::Versions>
where
    E: Event,
{
    EventSlot { decode: decoding::<E>(decode_one::<E>), take: of_its_type, of: PhantomData }
}

/// What the second parameter of a handler with `batch` may be.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no batch of events",
    label = "with `batch` a handler takes `Vec<E>`",
    note = "without `batch` it takes one event by value"
)]
pub trait Batch {
    #[doc(hidden)]
    type Event: Event;
    #[doc(hidden)]
    fn whole(events: Vec<Self::Event>) -> Self;
}

impl<E: Event> Batch for Vec<E> {
    type Event = E;

    fn whole(events: Vec<E>) -> Self {
        events
    }
}

/// The role of the second parameter with `batch`.
#[must_use]
pub fn events<B>() -> EventSlot<B, B::Event, <B::Event as Event>::Versions>
where
    B: Batch,
{
    EventSlot {
        decode: decoding::<B::Event>(decode_alone::<B::Event>),
        take: |payload| B::whole(of_its_type(payload)),
        of: PhantomData,
    }
}

fn decoding<E: Event>(one: DecodeFn) -> Decode {
    Decode {
        one,
        many: none_yet::<E>,
        type_field: E::TYPE_FIELD,
        type_name: std::any::type_name::<E>(),
        schema: E::schema(),
    }
}

fn decode_one<E: Event>(payload: &[u8]) -> Result<DecodedEvent, DecodeError> {
    let event = E::decode(payload)?;
    Ok(DecodedEvent { id: event.event_id(), version: event.version(), event: Box::new(event) })
}

/// A batch of one.
fn decode_alone<E: Event>(payload: &[u8]) -> Result<DecodedEvent, DecodeError> {
    let event = E::decode(payload)?;
    Ok(DecodedEvent { id: event.event_id(), version: event.version(), event: Box::new(vec![event]) })
}

fn none_yet<E: Event>() -> Box<dyn Decoded> {
    Box::new(Events::<E>(Vec::new()))
}

struct Events<E>(Vec<E>);

impl<E: Event> Decoded for Events<E> {
    fn push(&mut self, payload: &[u8]) -> Result<(EventId, Option<EventVersion>), DecodeError> {
        let event = E::decode(payload)?;
        let of = (event.event_id(), event.version());
        self.0.push(event);
        Ok(of)
    }

    fn retain(&mut self, keep: &[bool]) {
        let mut keep = keep.iter();
        self.0.retain(|_| keep.next() == Some(&true));
    }

    fn together(self: Box<Self>) -> Payload {
        Box::new(self.0)
    }

    fn singly(self: Box<Self>) -> Box<dyn Iterator<Item = Payload> + Send> {
        Box::new(self.0.into_iter().map(|event| Box::new(event) as Payload))
    }
}

fn of_its_type<T: 'static>(payload: Payload) -> T {
    match payload.downcast() {
        Ok(value) => *value,
        Err(_) => unreachable!("made by the decoder of the same slot"),
    }
}

impl<A, E, V> EventSlot<A, E, V> {
    /// How records' values are decoded.
    #[must_use]
    pub fn decode(self) -> Decode {
        self.decode
    }

    /// The argument itself.
    #[must_use]
    pub fn take(self, payload: Payload) -> A {
        (self.take)(payload)
    }
}

impl<A, E, V> Clone for EventSlot<A, E, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, E, V> Copy for EventSlot<A, E, V> {}

// ---- Further parameters ----

/// What a handler may ask for behind its event.
#[diagnostic::on_unimplemented(
    message = "a handler can't ask for `{Self}`",
    label = "use `State<{Self}>` and give the value to the builder",
    note = "behind the event a handler takes `State<T>`, `Delivery` and `MoneyClient`, in any order"
)]
pub trait Param: Sized + 'static {
    /// Whether it is a `MoneyClient`: `Client` or `NoClient`.
    #[doc(hidden)]
    type Money;
    #[doc(hidden)]
    fn need() -> Option<StateNeed>;
    #[doc(hidden)]
    fn take(source: ParamSource<'_>) -> Self;
}

/// What a `State` may hold.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be a state: handlers on many threads share it",
    label = "make it `Send + Sync`: an atomic, a `Mutex` or an `Arc` inside",
    note = "`State<T>` lends one value to every call"
)]
pub trait Shared: Send + Sync + 'static {}

// Its bounds would be reported one by one.
#[diagnostic::do_not_recommend]
impl<T: Send + Sync + 'static> Shared for T {}

impl<T: Shared> Param for State<T> {
    type Money = NoClient;

    fn need() -> Option<StateNeed> {
        Some(StateNeed { id: TypeId::of::<T>(), type_name: std::any::type_name::<T>() })
    }

    fn take(source: ParamSource<'_>) -> Self {
        source.state()
    }
}

impl Param for MoneyClient {
    type Money = Client;

    fn need() -> Option<StateNeed> {
        None
    }

    fn take(source: ParamSource<'_>) -> Self {
        source.money()
    }
}

impl Param for Delivery {
    type Money = NoClient;

    fn need() -> Option<StateNeed> {
        None
    }

    fn take(source: ParamSource<'_>) -> Self {
        source.delivery()
    }
}

/// How one further parameter is made, and what it needs from the builder.
pub struct ParamSlot<P, M> {
    need: fn() -> Option<StateNeed>,
    take: fn(ParamSource<'_>) -> P,
    of: PhantomData<fn() -> M>,
}

/// The role of the third and every later parameter.
#[must_use]
pub fn param<P>() -> ParamSlot<P, P::Money>
where
    P: Param,
{
    ParamSlot { need: P::need, take: P::take, of: PhantomData }
}

/// The same for a handler without `money = true`.
#[must_use]
pub fn param_without_money<P>() -> ParamSlot<P, P::Money>
where
    P: Param,
    P::Money: NeedsNoMoney,
{
    param()
}

impl<P, M> ParamSlot<P, M> {
    /// What must have been given to the builder.
    #[must_use]
    pub fn need(self) -> Option<StateNeed> {
        (self.need)()
    }

    /// The argument for one call.
    #[must_use]
    pub fn take(self, source: ParamSource<'_>) -> P {
        (self.take)(source)
    }
}

impl<P, M> Clone for ParamSlot<P, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, M> Copy for ParamSlot<P, M> {}

// ---- What comes back ----

/// What a handler may return.
#[diagnostic::on_unimplemented(
    message = "a handler can't return `{Self}`",
    label = "return `HandlerResult`, or `Result<(), E>` with an `E: Classified`",
    note = "the result decides whether the event is done, retried or dead-lettered"
)]
pub trait Outcome {
    #[doc(hidden)]
    fn into_result(self) -> HandlerResult;
}

impl<E> Outcome for Result<(), E>
where
    HandlerError: From<E>,
{
    fn into_result(self) -> HandlerResult {
        self.map_err(HandlerError::from)
    }
}

/// How the handler's output becomes a result.
pub struct OutputSlot<O> {
    convert: fn(O) -> HandlerResult,
}

/// The role of the return type.
#[must_use]
pub fn output<O>() -> OutputSlot<O>
where
    O: Outcome,
{
    OutputSlot { convert: O::into_result }
}

/// The handler's future, without its type. `Send` is asked of the future itself: behind an
/// `async move` the error would no longer be at the handler.
pub fn erase<'a, F>(future: F, output: OutputSlot<F::Output>) -> BoxFuture<'a, HandlerResult>
where
    F: Future + Send + 'a,
    F::Output: 'a,
{
    Box::pin(future.map(output.convert))
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;
    use crate::event::EventId;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Paid {
        event_id: EventId,
    }

    impl Event for Paid {
        type Versions = crate::__private::Unversioned;

        fn event_id(&self) -> EventId {
            self.event_id
        }

        fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
            decode(payload)
        }
    }

    const PAID: &[u8] = br#"{"event_id":"0198c5f4-7a00-7000-8000-000000000001"}"#;

    #[test]
    fn an_event_passes_through_its_slot() {
        let slot = event::<Paid>();
        let decoded = (slot.decode().one)(PAID).unwrap();
        assert_eq!(slot.take(decoded.event), Paid { event_id: decoded.id });
        assert!((slot.decode().one)(b"1").is_err());
    }

    #[test]
    fn events_of_a_shared_transaction_pass_one_by_one() {
        let slot = event::<Paid>();
        let mut decoded = (slot.decode().many)();
        let ids: Vec<EventId> = (0..3).map(|_| decoded.push(PAID).unwrap().0).collect();
        assert!(decoded.push(b"1").is_err());
        decoded.retain(&[true, false, true]);
        let events: Vec<Paid> = decoded.singly().map(|payload| slot.take(payload)).collect();
        assert_eq!(events, [Paid { event_id: ids[0] }, Paid { event_id: ids[2] }]);
    }

    #[test]
    fn a_batch_passes_through_its_slot() {
        let slot = events::<Vec<Paid>>();
        let mut decoded = (slot.decode().many)();
        for payload in [PAID, b"1", PAID, PAID] {
            assert_eq!(decoded.push(payload).is_ok(), payload == PAID);
        }
        decoded.retain(&[true, true, false]);
        assert_eq!(slot.take(decoded.together()).len(), 2);
        assert_eq!(slot.take((slot.decode().one)(PAID).unwrap().event).len(), 1, "a batch of one");
    }

    #[test]
    fn only_a_state_needs_something_of_the_builder() {
        let need = param::<State<String>>().need().unwrap();
        assert_eq!((need.id, need.type_name), (TypeId::of::<String>(), "alloc::string::String"));
        assert!(param::<Delivery>().need().is_none());
        assert!(param::<MoneyClient>().need().is_none());
    }

    #[test]
    fn a_future_keeps_its_result() {
        let refused = async { Err::<(), _>(HandlerError::permanent("no")) };
        let result = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(erase(refused, output()));
        assert_eq!(result.unwrap_err().to_string(), "permanent: no");
    }
}
