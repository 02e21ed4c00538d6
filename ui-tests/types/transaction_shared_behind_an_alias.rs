use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

type Shared<'a, 'c> = &'a Tx<'c>;

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: Shared<'_, '_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

fn main() {}
