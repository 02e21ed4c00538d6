use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing", money = true, batch = 500)]
async fn on_orders(_tx: &mut Tx<'_>, _events: Vec<OrderConfirmed>, _payments: MoneyClient) -> HandlerResult {
    Ok(())
}

fn main() {}
