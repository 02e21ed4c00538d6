use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[idempotent_handler(topic = "orders", group = "billing")]
async fn on_order(tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    let shared = std::rc::Rc::new(1);
    sqlx::query("SELECT 1").execute(&mut **tx).await?;
    drop(shared);
    Ok(())
}

fn main() {}
