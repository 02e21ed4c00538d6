//! `tracing::instrument` goes on either side of the attribute.

use idem_runtime::prelude::*;

#[derive(Debug, serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[tracing::instrument(skip(_tx))]
#[idempotent_handler(topic = "orders", group = "before")]
async fn before(_tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
    let _ = event.event_id;
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "behind")]
#[tracing::instrument(skip_all, err)]
async fn behind(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    Ok(())
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 2);
}
