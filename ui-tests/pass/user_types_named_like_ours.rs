//! Types of the user's that are named like those of the library or of std.

use idem_runtime::{Event, EventId, HandlerResult, Tx as Transaction, idempotent_handler};

#[derive(Debug)]
#[allow(dead_code, reason = "only a name")]
struct Tx;
#[allow(dead_code, reason = "only a name")]
struct String;
#[allow(dead_code, reason = "only a name")]
struct Result;
#[allow(dead_code, reason = "only a name")]
struct Ok;
#[allow(dead_code, reason = "only a name")]
struct Box;
#[allow(dead_code, reason = "only a name")]
struct Handler;
#[allow(dead_code, reason = "only a name")]
struct MoneyClient;
#[allow(dead_code, reason = "only a name")]
enum Order {
    Partition,
}
#[allow(dead_code, reason = "only a name")]
enum Expired {
    Dlq,
}

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing", expired = "dlq", timeout = "1s")]
async fn on_order(_tx: &mut Transaction<'_>, event: OrderConfirmed) -> HandlerResult {
    let _ = event.event_id;
    HandlerResult::Ok(())
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 1);
}
