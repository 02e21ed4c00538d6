//! An event with the names of CloudEvents.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(cloudevents)]
struct OrderPaid {
    id: EventId,
    r#type: String,
    data: i64,
}

#[idempotent_handler(topic = "payments", group = "shipping", event_type = "order.paid")]
async fn on_paid(_tx: &mut Tx<'_>, event: OrderPaid) -> HandlerResult {
    println!("{} {} {}", event.id, event.r#type, event.data);
    Ok(())
}

fn main() {
    let id = EventId::now();
    let event = OrderPaid { id, r#type: "order.paid".to_owned(), data: 1 };
    assert_eq!(event.event_id(), id);
}
