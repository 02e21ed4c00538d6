use idem_runtime::prelude::*;

#[idempotent_handler(topic = "orders", group = "billing")]
struct OnOrder;

fn main() {}
