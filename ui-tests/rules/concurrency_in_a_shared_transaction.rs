use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing", transaction = "shared", concurrency = 8)]
async fn on_orders(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

fn main() {}
