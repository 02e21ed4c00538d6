//! Record headers whose names are any bytes.
//!
//! rdkafka takes and gives header names as `str`, and panics when a record has another one. Kafka
//! allows any bytes, so tests have to write and read them: this module asks librdkafka itself.

use std::ffi::CStr;
use std::ptr;

use rdkafka::bindings::{rd_kafka_header_add, rd_kafka_header_get_all, rd_kafka_message_headers};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, OwnedHeaders};
use rdkafka::types::{RDKafkaHeaders, RDKafkaRespErr};

/// A header's name and value.
pub type HeaderBytes = (Vec<u8>, Option<Vec<u8>>);

/// Headers for a record to produce.
pub(crate) fn write(headers: &[HeaderBytes]) -> OwnedHeaders {
    let owned = OwnedHeaders::new_with_capacity(headers.len());
    // A reference to rdkafka's borrowed headers is librdkafka's own pointer.
    let native = ptr::from_ref::<BorrowedHeaders>(owned.as_borrowed()).cast_mut().cast::<RDKafkaHeaders>();
    for (name, value) in headers {
        let (value, size) = match value {
            Some(value) => (value.as_ptr().cast(), value.len().cast_signed()),
            None => (ptr::null(), 0),
        };
        // SAFETY: `native` is alive and not shared while `owned` is ours alone; name and value are
        // copied by the call, within the sizes given.
        let added = unsafe { rd_kafka_header_add(native, name.as_ptr().cast(), name.len().cast_signed(), value, size) };
        assert_eq!(added, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR, "librdkafka refused a header");
    }
    owned
}

/// The headers of a record. A name ends at its first zero byte: librdkafka gives no length.
pub(crate) fn read(message: &BorrowedMessage<'_>) -> Vec<HeaderBytes> {
    let mut native = ptr::null_mut();
    // SAFETY: the message is alive, and owns what `native` is set to.
    let found = unsafe { rd_kafka_message_headers(message.ptr(), &raw mut native) };
    if found != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Vec::new();
    }
    let header = |index| {
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: `native` lives as long as the message; an index past the end is an error code.
        let found = unsafe { rd_kafka_header_get_all(native, index, &raw mut name, &raw mut value, &raw mut size) };
        (found == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).then(|| {
            // SAFETY: librdkafka ends names with a zero byte.
            let name = unsafe { CStr::from_ptr(name) }.to_bytes().to_vec();
            // SAFETY: a value that is not null has `size` bytes.
            let value =
                (!value.is_null()).then(|| unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size) }.to_vec());
            (name, value)
        })
    };
    (0..).map_while(header).collect()
}
