use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(cloudevents)]
struct OrderPaid {
    event_id: EventId,
    r#type: String,
}

fn main() {}
