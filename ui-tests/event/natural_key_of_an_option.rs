use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(key(order_id))]
struct OrderConfirmed {
    order_id: Option<i64>,
}

fn main() {}
