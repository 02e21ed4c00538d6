use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

type Orders = Vec<OrderConfirmed>;

#[idempotent_handler(topic = "orders", group = "billing", timeout = "5s")]
async fn on_orders(_tx: &mut Tx<'_>, _events: Orders) -> HandlerResult {
    Ok(())
}

fn main() {}
