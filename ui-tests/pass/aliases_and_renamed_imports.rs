//! Types are known by traits, not by their names.

use idem_runtime::{Event, EventId, HandlerError, State as Shared, Tx as Transaction, idempotent_handler};

type Borrowed<'a, 'c> = &'a mut Transaction<'c>;
type Limit = Shared<u32>;
type Outcome = Result<(), HandlerError>;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

type Confirmed = OrderConfirmed;

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: Borrowed<'_, '_>, _event: Confirmed, _limit: Limit) -> Outcome {
    Ok(())
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 1);
}
