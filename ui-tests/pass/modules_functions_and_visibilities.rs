//! A handler may stand in any module or function, with any visibility, and is found by its name.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
pub struct OrderConfirmed {
    pub event_id: EventId,
}

mod billing {
    use super::OrderConfirmed;
    use idem_runtime::prelude::*;

    #[idempotent_handler(topic = "orders", group = "billing")]
    pub(crate) async fn public(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
        Ok(())
    }

    #[idempotent_handler(topic = "orders", group = "shipping")]
    async fn private(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
        Ok(())
    }
}

#[allow(dead_code, reason = "never called: the handler in it is registered all the same")]
fn elsewhere() {
    #[idempotent_handler(topic = "orders", group = "mail")]
    async fn inner(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
        Ok(())
    }
}

#[idempotent_handler(topic = "orders", group = "match")]
async fn r#match(_tx: &mut Tx<'_>, r#_type: OrderConfirmed) -> HandlerResult {
    Ok(())
}

fn main() {
    let names: Vec<_> = idem_runtime::__private::registered().iter().map(|spec| spec.name).collect();
    let ends = ["::billing::private", "::billing::public", "::inner", "::match"];
    assert_eq!(names.len(), ends.len(), "{names:?}");
    for end in ends {
        assert!(names.iter().any(|name| name.ends_with(end)), "{end} in {names:?}");
    }
    assert!(names.is_sorted());
}
