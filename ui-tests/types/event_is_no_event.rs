use idem_runtime::prelude::*;

struct Plain;

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(_tx: &mut Tx<'_>, _event: Plain) -> HandlerResult {
    Ok(())
}

fn main() {}
