use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

type Refunds = MoneyClient;

#[idempotent_handler(topic = "orders", group = "billing", money = true)]
async fn on_order(
    _tx: &mut Tx<'_>,
    _event: OrderConfirmed,
    _payments: MoneyClient,
    _refunds: Refunds,
) -> HandlerResult {
    Ok(())
}

fn main() {}
