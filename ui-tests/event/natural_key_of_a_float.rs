use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
#[event(key(amount))]
struct OrderConfirmed {
    amount: f64,
}

fn main() {}
