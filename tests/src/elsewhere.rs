//! A handler in a library crate, which a test binary only links.

use idem_runtime::prelude::*;

use crate::orders::{self, Order};

#[idempotent_handler(topic = "elsewhere.orders", group = "elsewhere")]
async fn elsewhere(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "elsewhere").await
}
