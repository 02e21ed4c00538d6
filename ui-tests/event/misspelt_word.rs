use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    #[event(ident)]
    message: EventId,
}

fn main() {}
