//! In place of HTTP, where the program does without the cargo feature `money`.

use super::ChargeResponse;
use crate::decide::money::Answer;

#[allow(dead_code, reason = "nobody sends it")]
pub(super) struct Outgoing {
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

/// There is none.
pub(super) enum Prepared {}

impl Prepared {
    pub(super) fn method(&self) -> &str {
        match *self {}
    }

    pub(super) fn server(&self) -> (&str, Option<u16>) {
        match *self {}
    }

    pub(super) fn path(&self) -> String {
        match *self {}
    }

    pub(super) fn body(&self) -> &[u8] {
        match *self {}
    }
}

/// There is none.
pub(super) enum Transport {}

impl Transport {
    pub(super) fn new(_: std::time::Duration) -> Result<Self, String> {
        Err("money calls need the cargo feature `money` of idem-runtime, which is on by default".to_owned())
    }

    pub(super) fn prepare(&self, _: Outgoing) -> Result<Prepared, String> {
        match *self {}
    }

    pub(super) async fn send(&self, _: Prepared, _: &str) -> Result<ChargeResponse, (Answer, &'static str)> {
        match *self {}
    }
}
