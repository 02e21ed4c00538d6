use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    #[event(id = 1)]
    message: EventId,
}

fn main() {}
