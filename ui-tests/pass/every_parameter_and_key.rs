//! Every key and every kind of parameter, in any order.

use std::time::Duration;

use idem_runtime::prelude::*;

struct Rates(i64);

#[derive(serde::Deserialize, Event)]
struct Priced {
    #[event(id)]
    #[serde(rename = "messageId")]
    message: EventId,
    amount: i64,
}

#[idempotent_handler(
    topic = "shop.priced",
    group = "ledger",
    event_type = "priced",
    retry = ["250ms", "1m"],
    timeout = "5s",
    concurrency = 8,
    transaction = "own",
    order = "partition",
    expired = "dlq",
    money = false,
)]
async fn on_priced(
    tx: &mut Tx<'_>,
    Priced { amount, message: _ }: Priced,
    from: Delivery,
    rates: State<Rates>,
    _more: State<String>,
) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO ledger (cents, partition) VALUES ($1, $2)")
        .bind(amount * rates.0)
        .bind(from.partition)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

fn main() {
    let [spec] = idem_runtime::__private::registered()[..] else { panic!("one handler") };
    assert_eq!(spec.event_type, Some("priced"));
    assert_eq!(spec.retry, Some(&[Duration::from_millis(250), Duration::from_secs(60)][..]));
    assert_eq!((spec.timeout, spec.concurrency), (Duration::from_secs(5), 8));
}
