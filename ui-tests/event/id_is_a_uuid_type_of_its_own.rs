use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: MessageId,
}

#[derive(serde::Deserialize)]
struct MessageId(String);

fn main() {}
