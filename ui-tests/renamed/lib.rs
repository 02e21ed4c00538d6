//! Cargo.toml calls the runtime `idem`: one line brings its name back for generated code.
#![deny(warnings, missing_docs)]

extern crate idem as idem_runtime;

/// Handlers that know the crate by its new name only.
pub mod handlers {
    use idem::prelude::*;

    /// An event.
    #[derive(serde::Deserialize, Event)]
    #[event(key(order_id))]
    pub struct OrderConfirmed {
        /// The order.
        pub order_id: i64,
    }

    /// A handler.
    #[idempotent_handler(topic = "orders", group = "billing")]
    pub async fn on_order(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn handlers_of_a_renamed_runtime_are_registered() {
        let handlers = idem::__private::registered();
        assert_eq!(handlers.len(), 1);
        assert!(handlers[0].name.ends_with("::handlers::on_order"));
    }
}
