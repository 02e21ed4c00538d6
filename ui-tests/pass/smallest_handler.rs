//! The smallest handler is registered under its module's name.

use idem_runtime::prelude::*;

#[derive(Debug, serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
    order_id: i64,
}

#[idempotent_handler(topic = "order-service.order.confirmed", group = "billing")]
async fn on_order_confirmed(tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
    sqlx::query("UPDATE orders SET paid = true WHERE id = $1").bind(event.order_id).execute(&mut **tx).await?;
    Ok(())
}

fn main() {
    let handlers = idem_runtime::__private::registered();
    assert_eq!(handlers.len(), 1);
    let spec = handlers[0];
    assert!(spec.name.ends_with("::on_order_confirmed"), "{}", spec.name);
    assert_eq!((spec.topic, spec.group), ("order-service.order.confirmed", "billing"));
    assert_eq!((spec.file.ends_with(".rs"), spec.line), (true, 12));
    assert_eq!((spec.retry, spec.timeout.as_secs(), spec.concurrency), (None, 20, 1));
}
