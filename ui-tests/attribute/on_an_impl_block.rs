use idem_runtime::prelude::*;

struct Billing;

#[idempotent_handler(topic = "orders", group = "billing")]
impl Billing {}

fn main() {}
