use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
    #[serde(skip)]
    shared: std::marker::PhantomData<*const ()>,
}

fn main() {}
