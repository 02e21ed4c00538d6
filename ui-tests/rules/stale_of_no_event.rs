use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

struct Plain;

#[idempotent_handler(topic = "orders", group = "billing", stale = "skip")]
async fn on_order(_tx: &mut Tx<'_>, _event: Plain) -> HandlerResult {
    Ok(())
}

fn main() {}
