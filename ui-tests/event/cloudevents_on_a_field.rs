use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderPaid {
    #[event(cloudevents)]
    event_id: EventId,
}

fn main() {}
