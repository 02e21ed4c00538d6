//! A handler can be called, passed and wrapped, as it could without the attribute.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
pub struct OrderConfirmed {
    event_id: EventId,
}

/// Documented, inlined, and told to be used.
#[must_use = "the result says whether it failed"]
#[inline]
#[idempotent_handler(topic = "orders", group = "billing")]
pub async fn on_order(tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
    sqlx::query("SELECT $1").bind(event.event_id.uuid()).execute(&mut **tx).await?;
    Ok(())
}

/// Two handlers may share their work.
#[idempotent_handler(topic = "orders-eu", group = "billing")]
pub async fn on_eu_order(tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
    on_order(tx, event).await
}

/// As a test of the user's would do.
#[allow(dead_code, reason = "needs a database to run")]
async fn in_a_test(tx: &mut Tx<'_>) {
    let event = OrderConfirmed { event_id: EventId::now() };
    assert!(on_order(tx, event).await.is_ok());
}

#[allow(dead_code, reason = "only compiled")]
async fn passed<F>(tx: &mut Tx<'_>, handle: F) -> HandlerResult
where
    F: AsyncFn(&mut Tx<'_>, OrderConfirmed) -> HandlerResult,
{
    handle(tx, OrderConfirmed { event_id: EventId::now() }).await
}

#[allow(dead_code, reason = "only compiled")]
async fn passes(tx: &mut Tx<'_>) -> HandlerResult {
    passed(tx, on_order).await
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 2);
}
