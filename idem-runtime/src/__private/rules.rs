//! What the attribute demands of the types together. Each rule is one call, at the value of its key.

use std::marker::PhantomData;

use super::roles::{EventSlot, ParamSlot};

// ---- money ----

/// A parameter that is a `MoneyClient`.
pub enum Client {}

/// Any other parameter.
pub enum NoClient {}

/// A parameter that asks for nothing that costs money.
#[diagnostic::on_unimplemented(
    message = "a handler without `money = true` can't ask for a `MoneyClient`",
    label = "add `money = true` to the attribute",
    note = "a call that moves money is recorded before it leaves, and never made twice"
)]
pub trait NeedsNoMoney {}

impl NeedsNoMoney for NoClient {}

/// The type of the handler's name, for errors.
#[must_use]
pub fn name<H>() -> PhantomData<H> {
    PhantomData
}

/// `money = true`: exactly one of the parameters is a client.
pub fn money<H, L>(_handler: PhantomData<H>, _params: L)
where
    L: Params,
    L::Clients: SomeClient<H>,
    L::Clients: OneClient<H>,
{
}

/// A list of parameters, `(first, (second, ()))`, and how many clients it has.
pub trait Params {
    #[doc(hidden)]
    type Clients;
}

impl Params for () {
    type Clients = Zero;
}

impl<P, M: AddTo<R::Clients>, R: Params> Params for (ParamSlot<P, M>, R) {
    type Clients = M::Sum;
}

/// Counts in types.
pub enum Zero {}
/// One.
pub enum One {}
/// More than one.
pub enum Many {}

/// One parameter more.
pub trait AddTo<N> {
    #[doc(hidden)]
    type Sum;
}

impl<N> AddTo<N> for NoClient {
    type Sum = N;
}

impl AddTo<Zero> for Client {
    type Sum = One;
}

impl AddTo<One> for Client {
    type Sum = Many;
}

impl AddTo<Many> for Client {
    type Sum = Many;
}

/// At least one client.
#[diagnostic::on_unimplemented(
    message = "the handler `{H}` has `money = true` and no `MoneyClient`",
    label = "add a parameter `payments: MoneyClient`, or remove `money = true`"
)]
pub trait SomeClient<H> {}

impl<H> SomeClient<H> for One {}
impl<H> SomeClient<H> for Many {}

/// At most one client.
#[diagnostic::on_unimplemented(
    message = "the handler `{H}` has more than one `MoneyClient`",
    label = "keep one: it makes any number of calls"
)]
pub trait OneClient<H> {}

impl<H> OneClient<H> for Zero {}
impl<H> OneClient<H> for One {}

// ---- stale ----

/// An event with a version and an aggregate.
pub enum Versioned {}

/// An event without.
pub enum Unversioned {}

/// Whether an event can be stale.
#[diagnostic::on_unimplemented(
    message = "`{E}` has no version, so it can't be stale",
    label = "mark two fields of `{E}`: `#[event(version)]` and `#[event(aggregate)]`"
)]
pub trait HasVersion<E> {}

impl<E> HasVersion<E> for Versioned {}

/// `stale`: the event has a version.
pub fn stale<A, E, V>(_event: EventSlot<A, E, V>)
where
    V: HasVersion<E>,
{
}
