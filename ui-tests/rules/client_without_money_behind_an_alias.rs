use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

type Payments = MoneyClient;

#[idempotent_handler(topic = "orders", group = "billing", timeout = "5s")]
async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed, _payments: Payments) -> HandlerResult {
    Ok(())
}

fn main() {}
