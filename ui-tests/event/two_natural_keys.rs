use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(key(order_id))]
#[event(key(kind))]
struct OrderConfirmed {
    order_id: i64,
    kind: String,
}

fn main() {}
