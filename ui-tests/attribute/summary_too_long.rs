use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing", summary = "charges a confirmed order, and tells the warehouse, the customer, the accountant and everybody else who has asked to be told of it")]
async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

fn main() {}
