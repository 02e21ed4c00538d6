//! Handlers of one name in two modules have two names; their places are their own.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
pub struct OrderConfirmed {
    pub event_id: EventId,
}

mod billing {
    use super::*;

    #[idempotent_handler(topic = "orders", group = "billing")]
    async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
        Ok(())
    }
}

mod shipping {
    use super::*;

    /// The attribute stands three lines above the name.
    #[idempotent_handler(topic = "orders", group = "shipping")]
    #[allow(unused_variables)]
    #[inline]
    async fn on_order(tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult {
        Ok(())
    }
}

fn main() {
    let handlers = idem_runtime::__private::registered();
    let names: Vec<_> = handlers.iter().map(|spec| spec.name.split_once("::").unwrap().1).collect();
    assert_eq!(names, ["billing::on_order", "shipping::on_order"]);
    assert_eq!(handlers.iter().map(|spec| spec.line).collect::<Vec<_>>(), [14, 26]);
    assert!(handlers.iter().all(|spec| spec.file.ends_with("one_name_in_two_modules.rs")));
}
