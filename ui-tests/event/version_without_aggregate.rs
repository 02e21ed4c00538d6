use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
    #[event(version)]
    revision: i64,
}

fn main() {}
