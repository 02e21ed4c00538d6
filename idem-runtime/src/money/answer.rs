//! What a money call that went well gives.

use std::fmt;

use serde::de::DeserializeOwned;

use super::MoneyError;

/// A call that was carried out.
#[derive(Debug)]
pub enum Charge {
    /// By this request, or by an earlier one whose answer the provider repeated.
    Applied(ChargeResponse),
    /// By an earlier request, whose answer is not at hand: what the handler wants to know of it, it has
    /// to ask the provider, without a key.
    AlreadyProcessed,
}

/// The provider's answer, a 2xx. It is not recorded anywhere.
pub struct ChargeResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl ChargeResponse {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The first value of a header, in whatever case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice())
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is something else: permanent, as the provider repeats its answer.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, MoneyError> {
        serde_json::from_slice(&self.body).map_err(|_| MoneyError::UnreadableAnswer)
    }
}

impl fmt::Debug for ChargeResponse {
    /// The body may hold personal data: only its size is printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeResponse")
            .field("status", &self.status)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}
