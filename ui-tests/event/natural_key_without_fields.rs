use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(key())]
struct OrderConfirmed {
    order_id: i64,
}

fn main() {}
