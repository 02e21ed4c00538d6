use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
    #[event(aggregate)]
    order_id: i64,
    #[event(version)]
    revision: String,
}

fn main() {}
