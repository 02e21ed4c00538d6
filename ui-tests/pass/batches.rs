//! With `batch` the second parameter is a `Vec`, also behind an alias or of a generic event.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct Order<T> {
    event_id: EventId,
    data: T,
}

type Orders = Vec<Order<i64>>;

#[idempotent_handler(topic = "orders", group = "reports", batch = 500)]
async fn on_orders(_tx: &mut Tx<'_>, events: Vec<Order<String>>) -> HandlerResult {
    let _texts: Vec<String> = events.into_iter().map(|event| event.data).collect();
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "sums", batch = 2, transaction = "shared", concurrency = 1)]
async fn on_sums(_tx: &mut Tx<'_>, events: Orders, _limit: State<i64>) -> HandlerResult {
    let _sum: i64 = events.iter().map(|event| event.data).sum();
    Ok(())
}

fn main() {
    let batches: Vec<_> = idem_runtime::__private::registered().iter().map(|spec| spec.batch).collect();
    assert_eq!(batches, [Some(500), Some(2)]);
}
