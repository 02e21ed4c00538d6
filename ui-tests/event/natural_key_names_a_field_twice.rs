use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(key(order_id, order_id))]
struct OrderConfirmed {
    order_id: i64,
}

fn main() {}
