use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

struct Plain;

#[idempotent_handler(topic = "orders", group = "billing", batch = 500)]
async fn on_orders(_tx: &mut Tx<'_>, _events: Vec<Plain>) -> HandlerResult {
    Ok(())
}

fn main() {}
