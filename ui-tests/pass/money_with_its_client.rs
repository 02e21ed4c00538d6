//! `money = true` with its companions; the client under any name and behind any alias.

use idem_runtime::MoneyClient as Payments;
use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

type Refunds = Payments;

#[idempotent_handler(topic = "orders", group = "billing", money = true, operation = "charge", conflict = "in_flight")]
async fn charge(_tx: &mut Tx<'_>, _event: OrderConfirmed, _payments: MoneyClient) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "refunds", money = true)]
async fn refund(_tx: &mut Tx<'_>, _event: OrderConfirmed, _from: Delivery, _refunds: Refunds) -> HandlerResult {
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "raw", money = true)]
async fn r#match(_tx: &mut Tx<'_>, _event: OrderConfirmed, _payments: Payments, _limit: State<u32>) -> HandlerResult {
    Ok(())
}

fn main() {
    let handlers = idem_runtime::__private::registered();
    assert_eq!(handlers.len(), 3);
    let charge = handlers.iter().find(|spec| spec.name.ends_with("::charge")).unwrap();
    let money = charge.money.unwrap();
    assert_eq!((money.operation, format!("{:?}", money.conflict)), (Some("charge"), "InFlight".to_owned()));
}
