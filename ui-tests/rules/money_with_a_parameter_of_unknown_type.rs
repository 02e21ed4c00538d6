use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

struct Rates;

#[idempotent_handler(topic = "orders", group = "billing", money = true)]
async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed, _rates: Rates, _payments: MoneyClient) -> HandlerResult {
    Ok(())
}

fn main() {}
