//! Parameters may be taken apart, mutable or ignored.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
    order_id: i64,
}

#[idempotent_handler(topic = "orders", group = "apart")]
async fn apart(_: &mut Tx<'_>, OrderConfirmed { order_id, .. }: OrderConfirmed, _: Delivery) -> HandlerResult {
    assert!(order_id > 0);
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "mutable")]
async fn mutable(tx: &mut Tx<'_>, mut event: OrderConfirmed) -> HandlerResult {
    event.order_id += 1;
    let tx: &mut sqlx::PgConnection = tx;
    sqlx::query("SELECT $1").bind(event.order_id).execute(tx).await?;
    Ok(())
}

#[idempotent_handler(topic = "orders", group = "savepoint")]
async fn savepoint(tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    let mut savepoint = sqlx::Connection::begin(&mut **tx).await?;
    sqlx::query("SELECT 1").execute(&mut *savepoint).await?;
    savepoint.commit().await?;
    Ok(())
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 3);
}
