use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(cloudevents = true)]
struct OrderPaid {
    id: EventId,
    r#type: String,
}

fn main() {}
