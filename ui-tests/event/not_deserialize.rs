use idem_runtime::prelude::*;

#[derive(Event)]
struct OrderConfirmed {
    event_id: EventId,
}

fn main() {}
