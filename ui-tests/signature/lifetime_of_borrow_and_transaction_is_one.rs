use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order<'a>(_tx: &'a mut Tx<'a>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

fn main() {}
