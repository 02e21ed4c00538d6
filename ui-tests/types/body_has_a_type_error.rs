use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
    let _id: u32 = event.event_id;
    Ok(())
}

fn main() {}
