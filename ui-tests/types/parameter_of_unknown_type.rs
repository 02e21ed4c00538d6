use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

struct Rates;

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed, _rates: Rates) -> HandlerResult {
    Ok(())
}

fn main() {}
