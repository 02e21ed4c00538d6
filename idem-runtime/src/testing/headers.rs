//! Record headers of any bytes, for the tests of this workspace.

use rdkafka::message::{BorrowedMessage, Message, OwnedHeaders};

use crate::RawHeader;
use crate::kafka::headers;

/// Headers for a record to produce.
#[must_use]
pub fn write(raw: &[RawHeader]) -> OwnedHeaders {
    headers::from_raw(raw)
}

/// The headers of a record. A name ends at its first zero byte: librdkafka gives no length.
#[must_use]
pub fn read(message: &BorrowedMessage<'_>) -> Vec<RawHeader> {
    message.headers().map(headers::read).unwrap_or_default()
}
