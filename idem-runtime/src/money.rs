//! The client that a handler's money calls go through.

use std::fmt;

/// Calls a payment provider with an idempotency key. A handler with `money = true` takes one:
///
/// ```
/// use idem_runtime::prelude::*;
///
/// #[derive(serde::Deserialize, Event)]
/// struct OrderConfirmed { event_id: EventId, order_id: i64 }
///
/// #[idempotent_handler(topic = "orders", group = "billing", money = true, operation = "charge")]
/// async fn on_order(_tx: &mut Tx<'_>, event: OrderConfirmed, payments: MoneyClient) -> HandlerResult {
///     println!("{payments:?} will charge order {}", event.order_id);
///     Ok(())
/// }
/// ```
///
/// It has no methods yet, and `run()` refuses a handler that asks for it.
pub struct MoneyClient {
    _private: (),
}

impl fmt::Debug for MoneyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MoneyClient { .. }")
    }
}
