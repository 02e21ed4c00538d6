//! Generic events, raw field names, events made by a macro.

use idem_runtime::prelude::*;
use serde::Deserialize;

#[derive(Deserialize, Event)]
struct Envelope<T: Clone>
where
    T: PartialEq,
{
    event_id: EventId,
    data: T,
}

#[derive(Deserialize, Event)]
struct Raw {
    #[event(id)]
    r#type: EventId,
}

macro_rules! event {
    ($name:ident, $id:ident, $ty:ty, $topic:literal, $handler:ident) => {
        #[derive(Deserialize, Event)]
        struct $name {
            #[event(id)]
            $id: $ty,
        }

        #[idempotent_handler(topic = $topic, group = "billing")]
        async fn $handler(_tx: &mut Tx<'_>, _event: $name) -> HandlerResult {
            Ok(())
        }
    };
}

event!(Made, id, EventId, "made", on_made);

#[idempotent_handler(topic = "numbers", group = "billing")]
async fn on_number(_tx: &mut Tx<'_>, event: Envelope<i64>) -> HandlerResult {
    let _ = event.data;
    Ok(())
}

#[idempotent_handler(topic = "texts", group = "billing")]
async fn on_text(_tx: &mut Tx<'_>, event: Envelope<String>) -> HandlerResult {
    let _ = event.data;
    Ok(())
}

fn main() {
    const ID: &str = "0198c5f4-7a00-7000-8000-000000000001";
    let event = Raw::decode(format!(r#"{{"type":"{ID}"}}"#).as_bytes()).unwrap();
    assert_eq!(event.event_id().to_string(), ID);
    assert!(Envelope::<i64>::decode(br#"{"event_id":"no","data":1}"#).is_err());
    assert_eq!(idem_runtime::__private::registered().len(), 3);
}
