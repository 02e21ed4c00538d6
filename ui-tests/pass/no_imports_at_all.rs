//! Everything by its full path, in a module that imports nothing.

mod handlers {
    #[derive(::serde::Deserialize, ::idem_runtime::Event)]
    pub struct Paid {
        pub event_id: ::idem_runtime::EventId,
    }

    #[::idem_runtime::idempotent_handler(topic = "orders", group = "billing", money = true)]
    pub async fn on_paid(
        _tx: &mut ::idem_runtime::Tx<'_>,
        event: Paid,
        _payments: ::idem_runtime::MoneyClient,
    ) -> ::idem_runtime::HandlerResult {
        let _ = event.event_id;
        Ok(())
    }
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 1);
}
