use idem::prelude::*;

#[derive(serde::Deserialize)]
struct OrderConfirmed {
    order_id: i64,
}

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
    println!("{}", event.order_id);
    Ok(())
}

fn main() {}
