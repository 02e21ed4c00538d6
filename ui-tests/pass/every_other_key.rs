//! `transaction`, `order`, `expired`, `stale` and `summary` are handed to the runtime as they were written.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct StockChanged {
    event_id: EventId,
    #[event(aggregate)]
    article: String,
    #[event(version)]
    revision: u32,
}

#[idempotent_handler(topic = "a", group = "shared", transaction = "shared", expired = "process", summary = "counts")]
async fn shared(_tx: &mut Tx<'_>, _event: StockChanged) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "b", group = "ordered", order = "key", retry = ["1s"], stale = "skip")]
async fn ordered(_tx: &mut Tx<'_>, event: StockChanged) -> HandlerResult {
    println!("{} {}", event.article, event.revision);
    Ok(())
}

#[idempotent_handler(topic = "c", group = "batched", batch = 10, stale = "skip")]
async fn batched(_tx: &mut Tx<'_>, _events: Vec<StockChanged>) -> HandlerResult {
    Ok(())
}

fn main() {
    let handlers = idem_runtime::__private::registered();
    let seen: Vec<String> = handlers
        .iter()
        .map(|spec| {
            format!("{:?} {:?} {:?} {} {:?}", spec.transaction, spec.order, spec.expired, spec.stale, spec.summary)
        })
        .collect();
    assert_eq!(
        seen,
        [
            "Shared Partition Dlq true None",
            "Own Key Dlq true None",
            "Shared Partition Process false Some(\"counts\")",
        ]
    );
}
