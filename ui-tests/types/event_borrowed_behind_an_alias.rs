use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

type Borrowed<'a> = &'a OrderConfirmed;

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: &mut Tx<'_>, _event: Borrowed<'_>) -> HandlerResult {
    Ok(())
}

fn main() {}
