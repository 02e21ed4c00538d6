use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    #[event(key)]
    order_id: i64,
}

fn main() {}
