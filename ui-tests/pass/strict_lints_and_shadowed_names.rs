//! Generated code is clean under strict lints, and relies on no name that is in scope.
#![forbid(unsafe_code)]
#![deny(warnings, missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
#![allow(dead_code, unused_macros, non_camel_case_types, non_upper_case_globals, missing_copy_implementations, clippy::unused_async, reason = "shadows, never used")]

/// Handlers among shadows.
pub mod handlers {
    use idem_runtime::{Delivery, Event, EventId, HandlerResult, State, Tx, idempotent_handler};

    struct Option;
    struct Some;
    struct None;
    struct Result;
    struct Box;
    struct Vec;
    struct Fn;
    struct u8;
    struct core;
    struct std;
    struct Send;
    const event: i32 = 1;
    const tx: i32 = 1;
    macro_rules! line {
        () => {
            compile_error!("shadowed")
        };
    }
    macro_rules! concat {
        () => {
            compile_error!("shadowed")
        };
    }

    /// An event. Its `Deserialize` is elsewhere: serde's derive needs the real `u8`.
    #[derive(Event)]
    pub struct Paid {
        pub(crate) event_id: EventId,
    }

    /// A handler.
    ///
    /// # Errors
    /// Never.
    #[idempotent_handler(topic = "orders", group = "billing", event_type = "paid", retry = ["1s"])]
    pub async fn on_paid(_: &mut Tx<'_>, _: Paid, _: Delivery, _: State<String>) -> HandlerResult {
        HandlerResult::Ok(())
    }

    /// A handler that is about to go.
    ///
    /// # Errors
    /// Never.
    #[deprecated]
    #[idempotent_handler(topic = "orders", group = "shipping")]
    pub async fn on_paid_long_ago(_: &mut Tx<'_>, _: Paid) -> HandlerResult {
        HandlerResult::Ok(())
    }
}

impl<'de> serde::Deserialize<'de> for handlers::Paid {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { event_id: serde::Deserialize::deserialize(deserializer)? })
    }
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 2);
}
