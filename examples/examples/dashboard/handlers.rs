//! Three groups that read the same orders.

use std::time::Duration;

use idem_runtime::prelude::*;

pub const TOPIC: &str = "shop.order.confirmed";

pub const TABLES: &str = "CREATE TABLE payment (number bigint NOT NULL, amount bigint NOT NULL); \
                          CREATE TABLE parcel (number bigint NOT NULL); \
                          CREATE TABLE turnover (amount bigint NOT NULL)";

#[derive(Debug, serde::Deserialize, serde::Serialize, Event)]
pub struct Order {
    pub event_id: EventId,
    pub number: i64,
    pub amount: i64,
}

#[idempotent_handler(
    topic = "shop.order.confirmed",
    group = "billing",
    money = true,
    operation = "charge",
    retry = ["1s", "5s"],
    concurrency = 8
)]
async fn charge(tx: &mut Tx<'_>, order: Order, payments: MoneyClient) -> HandlerResult {
    payments.post("/charges").json(&order).send().await?;
    // Charged, and then it turns out that the order can't be booked: somebody has to look at it.
    if order.number % 401 == 400 {
        return Err(HandlerError::permanent("the account is closed"));
    }
    sqlx::query("INSERT INTO payment VALUES ($1, $2)").bind(order.number).bind(order.amount).execute(&mut **tx).await?;
    Ok(())
}

#[idempotent_handler(topic = "shop.order.confirmed", group = "shipping", retry = ["1s", "5s"], concurrency = 4)]
async fn ship(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    tokio::time::sleep(Duration::from_millis(5)).await;
    match order.number % 60 {
        59 => return Err(HandlerError::permanent("the address does not exist")),
        7 if delivery.attempt == 0 => return Err(HandlerError::transient("the carrier does not answer")),
        _ => {}
    }
    sqlx::query("INSERT INTO parcel VALUES ($1)").bind(order.number).execute(&mut **tx).await?;
    Ok(())
}

#[idempotent_handler(topic = "shop.order.confirmed", group = "statistics", transaction = "shared", retry = ["1s", "5s"])]
async fn count(tx: &mut Tx<'_>, order: Order) -> HandlerResult {
    sqlx::query("INSERT INTO turnover VALUES ($1)").bind(order.amount).execute(&mut **tx).await?;
    Ok(())
}
