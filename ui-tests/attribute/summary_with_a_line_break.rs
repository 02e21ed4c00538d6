use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing", summary = "charges\nan order")]
async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

fn main() {}
