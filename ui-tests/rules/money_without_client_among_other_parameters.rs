use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing", money = true)]
async fn on_order(
    _tx: &mut Tx<'_>,
    _event: OrderConfirmed,
    _from: Delivery,
    _limit: State<u32>,
) -> HandlerResult {
    Ok(())
}

fn main() {}
