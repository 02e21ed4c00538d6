use idem_runtime::prelude::*;

#[idempotent_handler(topic = "orders", group = "billing")]
mod handlers {
}

fn main() {}
