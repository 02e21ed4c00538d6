//! `#[cfg]`, `#[cfg_attr]`, `#[allow]` and `#[expect]` work on a handler, on either side.
#![deny(warnings)]

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    #[allow(dead_code, reason = "read by the library")]
    event_id: EventId,
}

#[cfg(any())]
#[idempotent_handler(topic = "orders", group = "never")]
async fn never(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "never-either")]
#[cfg(any())]
async fn never_either(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

#[cfg_attr(all(), idempotent_handler(topic = "orders", group = "conditional"))]
async fn conditional(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

#[allow(non_snake_case)]
#[idempotent_handler(topic = "orders", group = "allowed")]
async fn onOrder(_tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
    #[allow(unused_variables)]
    let OrderConfirmed { event_id } = event;
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "expected")]
#[expect(unused_variables, reason = "the event is not needed")]
async fn expected(_tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

fn main() {
    let groups: Vec<_> = idem_runtime::__private::registered().iter().map(|spec| spec.group).collect();
    assert_eq!(groups, ["conditional", "expected", "allowed"]);
}
