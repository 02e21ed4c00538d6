//! A lifetime may have a name.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "borrow")]
async fn borrow<'a>(_tx: &'a mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "transaction")]
async fn transaction<'c>(_tx: &mut Tx<'c>, _event: OrderConfirmed, _limit: State<u32>) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "both")]
async fn both<'a, 'c: 'a>(_tx: &'a mut Tx<'c>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "bounded")]
async fn bounded<'a, 'c>(_tx: &'a mut Tx<'c>, _event: OrderConfirmed) -> HandlerResult
where
    'c: 'a,
{
    Ok(())
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 4);
}
