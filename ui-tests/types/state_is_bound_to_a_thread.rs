use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed, _limit: State<std::rc::Rc<u32>>) -> HandlerResult {
    Ok(())
}

fn main() {}
