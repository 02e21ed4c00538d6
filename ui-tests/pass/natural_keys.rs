//! Fields that tell events apart stand for an id.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(key(order_number, r#type))]
struct OrderEvent {
    order_number: String,
    r#type: String,
    amount: i64,
}

#[derive(serde::Deserialize, Event)]
#[event(key(id))]
struct Numbered<T> {
    id: u64,
    data: T,
    event_id: String,
}

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: &mut Tx<'_>, event: OrderEvent) -> HandlerResult {
    println!("{}", event.amount);
    Ok(())
}

#[idempotent_handler(topic = "numbers", group = "billing")]
async fn on_number(_tx: &mut Tx<'_>, event: Numbered<i64>) -> HandlerResult {
    println!("{} {}", event.data, event.event_id);
    Ok(())
}

fn main() {
    let event = |number, kind, amount| {
        let json = format!(r#"{{"order_number":"{number}","type":"{kind}","amount":{amount}}}"#);
        OrderEvent::decode(json.as_bytes()).unwrap().event_id()
    };
    assert_eq!(event("1", "paid", 7), event("1", "paid", 9));
    assert_ne!(event("1", "paid", 7), event("1", "sent", 7));
    assert_ne!(event("12", "3", 7), event("1", "23", 7));
    assert_eq!(event("1", "paid", 7).unix_millis(), None);
    assert_eq!(idem_runtime::__private::registered().len(), 2);
}
