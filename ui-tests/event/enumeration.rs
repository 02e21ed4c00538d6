use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
enum OrderEvent {
    Confirmed { event_id: EventId },
}

fn main() {}
