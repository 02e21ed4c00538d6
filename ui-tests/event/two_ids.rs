use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    #[event(id)]
    first: EventId,
    #[event(id)]
    second: EventId,
}

fn main() {}
