//! `macro_rules!` may give any value of the attribute, and the whole function.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

macro_rules! handler {
    ($name:ident, $topic:literal, $group:literal, $concurrency:literal, $money:literal, [$($tier:literal),*]) => {
        #[idempotent_handler(
            topic = $topic, group = $group, concurrency = $concurrency, money = $money, retry = [$($tier),*],
        )]
        async fn $name(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
            Ok(())
        }
    };
}

handler!(first, "orders", "first", 8, false, ["1s", "1m"]);
handler!(second, r"orders", "second", 1, false, []);

macro_rules! wrapped {
    ($ty:ty, $body:block) => {
        #[idempotent_handler(topic = "orders", group = "third", batch = 10)]
        async fn third(_tx: &mut Tx<'_>, _events: $ty) -> HandlerResult $body
    };
}

wrapped!(Vec<OrderConfirmed>, { Ok(()) });

fn main() {
    let handlers = idem_runtime::__private::registered();
    assert_eq!(handlers.iter().map(|spec| spec.concurrency).collect::<Vec<_>>(), [8, 1, 1]);
    assert_eq!(handlers[0].retry.map(<[_]>::len), Some(2));
}
