use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed<'a> {
    event_id: EventId,
    name: &'a str,
}

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed<'_>) -> HandlerResult {
    Ok(())
}

fn main() {}
