use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(id)]
struct OrderConfirmed {
    event_id: EventId,
}

fn main() {}
