// The client that a handler's money calls go through; the page of its rules is `rules.md`.
//
// `call.rs` drives one call: intent, request, answer. `intents.rs` writes the intents, and `attempt.rs` knows the calls of one
// attempt at an event. What an answer means is in `decide/money.rs`, the record in `pg/money.rs`.

mod answer;
mod attempt;
mod call;
mod error;
mod intents;
pub(crate) mod start;
#[cfg_attr(not(feature = "money"), path = "no_transport.rs")]
mod transport;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use answer::{Charge, ChargeResponse};
use attempt::Attempt;
pub(crate) use attempt::{Event, Running};
pub use error::MoneyError;
use error::RequestError;
use intents::Intents;
use sqlx::PgPool;
use transport::Transport;

use crate::config::Config;
use crate::decide::money_key::{self, Format};
use crate::pg::session::Pools;

/// Calls a payment provider with an idempotency key. A handler with `money = true` takes one:
///
/// ```
/// use idem_runtime::prelude::*;
/// use idem_runtime::{Charge, MoneyError};
///
/// #[derive(serde::Deserialize, Event)]
/// struct OrderConfirmed { event_id: EventId, order_id: i64, amount: i64 }
///
/// #[idempotent_handler(topic = "orders", group = "billing", money = true, operation = "charge")]
/// async fn on_order(tx: &mut Tx<'_>, event: OrderConfirmed, payments: MoneyClient) -> HandlerResult {
///     let body = serde_json::json!({"order": event.order_id, "amount": event.amount});
///     let state = match payments.post("/charges").json(&body).send().await {
///         Ok(Charge::Applied(_) | Charge::AlreadyProcessed) => "paid",
///         Err(MoneyError::Refused { status: 402, .. }) => "declined",
///         Err(error) => return Err(error.into()),
///     };
///     sqlx::query("UPDATE orders SET state = $1 WHERE id = $2")
///         .bind(state)
///         .bind(event.order_id)
///         .execute(&mut **tx)
///         .await?;
///     Ok(())
/// }
/// ```
///
/// The key of a call is the same over restarts, retry topics and replays. [`money`](self) has all
/// rules: what each status means, what is recorded, and what an operator resolves.
#[derive(Clone)]
pub struct MoneyClient {
    attempt: Arc<Attempt>,
    /// `None`: the handler's own.
    operation: Option<String>,
}

impl MoneyClient {
    fn new(attempt: Arc<Attempt>) -> Self {
        Self { attempt, operation: None }
    }

    /// The client for another call of the same event, with a key of its own. The name must be the
    /// same in every attempt at the event: don't number calls by chance. It can't be empty.
    #[must_use]
    pub fn operation(&self, name: impl Into<String>) -> Self {
        Self { attempt: Arc::clone(&self.attempt), operation: Some(name.into()) }
    }

    /// A POST to a path below `IDEM_MONEY_BASE_URL`, or to an absolute URL.
    pub fn post(&self, url: impl AsRef<str>) -> MoneyRequest {
        self.request("POST", url.as_ref())
    }

    /// A PUT, as [`post`](Self::post).
    pub fn put(&self, url: impl AsRef<str>) -> MoneyRequest {
        self.request("PUT", url.as_ref())
    }

    /// A PATCH, as [`post`](Self::post).
    pub fn patch(&self, url: impl AsRef<str>) -> MoneyRequest {
        self.request("PATCH", url.as_ref())
    }

    /// A DELETE, as [`post`](Self::post).
    pub fn delete(&self, url: impl AsRef<str>) -> MoneyRequest {
        self.request("DELETE", url.as_ref())
    }

    fn request(&self, method: &'static str, url: &str) -> MoneyRequest {
        MoneyRequest {
            attempt: Arc::clone(&self.attempt),
            operation: self.operation.clone(),
            method,
            url: url.to_owned(),
            headers: Vec::new(),
            body: Ok(Vec::new()),
            timeout: None,
        }
    }
}

impl fmt::Debug for MoneyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MoneyClient").field("operation", &self.operation).finish_non_exhaustive()
    }
}

/// A request to the provider. Nothing leaves before [`send`](Self::send), and nothing without a key.
#[must_use = "nothing leaves before `send`"]
pub struct MoneyRequest {
    attempt: Arc<Attempt>,
    operation: Option<String>,
    method: &'static str,
    url: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Result<Vec<u8>, RequestError>,
    timeout: Option<Duration>,
}

impl MoneyRequest {
    /// A JSON body. The keys of its objects are sorted, so that a map is the same in every attempt.
    pub fn json<T: serde::Serialize + ?Sized>(mut self, value: &T) -> Self {
        let value = serde_json::to_value(value).map_err(|_| RequestError::Body("JSON"));
        self.body = value.map(|value| money_key::canonical_json(&value).into_bytes());
        self.content_type("application/json")
    }

    /// A form, its fields in the order of the value's. A field that is a `HashMap` has another order
    /// each time, and is refused as changed: use a struct, a list of pairs or a `BTreeMap`.
    pub fn form<T: serde::Serialize + ?Sized>(mut self, value: &T) -> Self {
        self.body =
            serde_urlencoded::to_string(value).map(String::into_bytes).map_err(|_| RequestError::Body("a form"));
        self.content_type("application/x-www-form-urlencoded")
    }

    /// Any body; give its `Content-Type` with [`header`](Self::header).
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Ok(body.into());
        self
    }

    /// One more header. `Idempotency-Key` and what belongs to the connection are the library's: a
    /// request with one of them is refused.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// `Authorization: Bearer ..`.
    pub fn bearer_auth(self, token: impl AsRef<str>) -> Self {
        let value = format!("Bearer {}", token.as_ref());
        self.header("authorization", value)
    }

    /// Longest time for the whole call, in place of `IDEM_MONEY_TIMEOUT`; never more than is left of
    /// the handler's own timeout, and less than a minute. It covers connecting too: one that is shorter than
    /// half of `IDEM_MONEY_TIMEOUT` may end before the connection is made, which then counts as a request whose
    /// answer is missing.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn content_type(mut self, value: &str) -> Self {
        self.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
        self.header("content-type", value)
    }

    /// Records the call, sends it, and records its answer.
    ///
    /// # Errors
    /// See [`MoneyError`]. `?` in a handler routes the event by it.
    ///
    /// # Cancel safety
    /// Dropped after it began, the call may have been carried out: it stays recorded as unknown, the
    /// handler's success is not believed, and the next attempt sends the same key.
    pub async fn send(self) -> Result<Charge, MoneyError> {
        let attempt = Arc::clone(&self.attempt);
        call::send(&attempt, self).await
    }
}

impl fmt::Debug for MoneyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MoneyRequest").field("method", &self.method).finish_non_exhaustive()
    }
}

/// What the money calls of a process share.
pub(crate) struct Provider {
    transport: Transport,
    pool: PgPool,
    intents: Intents,
    base_url: Option<String>,
    timeout: Duration,
    key_ttl: Duration,
    key_format: Format,
}

impl Provider {
    /// Makes the HTTP client; connects to nothing yet.
    ///
    /// # Errors
    /// One sentence that says what this process lacks.
    pub(crate) fn new(config: &Config, pools: &Pools) -> Result<Self, String> {
        Ok(Self {
            transport: Transport::new(config.money_timeout)?,
            intents: Intents::start(&pools.intents, config.money_key_ttl),
            pool: pools.money.clone(),
            base_url: config.money_base_url.clone(),
            timeout: config.money_timeout,
            key_ttl: config.money_key_ttl,
            key_format: config.money_key_format,
        })
    }
}
