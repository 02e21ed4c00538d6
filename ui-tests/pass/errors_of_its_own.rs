//! An error type says its class, or how it becomes a `HandlerError`.

use idem_runtime::prelude::*;

#[derive(serde::Deserialize, Event)]
struct OrderConfirmed {
    event_id: EventId,
}

#[derive(Debug, thiserror::Error)]
enum BillingError {
    #[error("order unknown")]
    OrderUnknown,
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

impl Classified for BillingError {
    fn class(&self) -> Class {
        match self {
            Self::OrderUnknown => Class::Permanent,
            Self::Database(error) => error.class(),
        }
    }
}

struct Converted;

impl From<Converted> for HandlerError {
    fn from(_: Converted) -> Self {
        Self::permanent("converted")
    }
}

#[idempotent_handler(topic = "orders", group = "classified")]
async fn classified(tx: &mut Tx<'_>, _event: OrderConfirmed) -> Result<(), BillingError> {
    sqlx::query("SELECT 1").execute(&mut **tx).await?;
    Err(BillingError::OrderUnknown)
}

#[idempotent_handler(topic = "orders", group = "converted")]
async fn converted(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> Result<(), Converted> {
    Err(Converted)
}

#[idempotent_handler(topic = "orders", group = "said-in-place")]
async fn said_in_place(_tx: &mut Tx<'_>, _event: OrderConfirmed) -> HandlerResult {
    let _number: i64 = "x".parse().permanent()?;
    Ok(())
}

fn main() {
    assert_eq!(idem_runtime::__private::registered().len(), 3);
}
