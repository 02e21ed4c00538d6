//! Reading and copying record headers whose names may be any bytes.
//!
//! The one module with `unsafe`: the binding's own reader unwraps a header's name as UTF-8 and
//! panics on foreign bytes, and its writer takes names as `&str` only.
#![allow(unsafe_code, reason = "see the module's documentation")]

use std::ffi::{CStr, CString};
use std::ptr;

use rdkafka::bindings as ffi;
use rdkafka::message::{BorrowedHeaders, Header, Headers, OwnedHeaders};

use crate::handler::RawHeader;

/// The native list behind a header collection.
fn native(headers: &BorrowedHeaders) -> *mut ffi::rd_kafka_headers_t {
    // rdkafka makes a `&BorrowedHeaders`, a type without a size, by casting the native pointer and
    // casts it back the same way. A test of this module would fail if that ever changed.
    ptr::from_ref(headers).cast_mut().cast()
}

/// All headers in their order. A name ends at its first NUL byte, as librdkafka gives it out.
pub(crate) fn read(headers: &BorrowedHeaders) -> Vec<RawHeader> {
    entries(headers).map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect()
}

/// How many bytes names and values have together.
pub(crate) fn size(headers: &BorrowedHeaders) -> usize {
    entries(headers).map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len)).sum()
}

fn entries(headers: &BorrowedHeaders) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    let list = native(headers);
    (0..headers.count()).filter_map(move |index| {
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0_usize);
        // SAFETY: `list` is alive as long as the borrow; the out-parameters are valid places.
        let status = unsafe { ffi::rd_kafka_header_get_all(list, index, &mut name, &mut value, &mut size) };
        if status != ffi::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR || name.is_null() {
            return None;
        }
        // SAFETY: librdkafka ends every name with a NUL and keeps it alive with the list.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let value = (!value.is_null()).then(|| {
            // SAFETY: librdkafka gives the address and size of the value, alive with the list.
            unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size) }
        });
        Some((name, value))
    })
}

/// The headers without those of the given names, and `add` behind the rest. All others keep every byte.
pub(crate) fn replace(headers: Option<&OwnedHeaders>, names: &[&str], add: &[(&str, &[u8])]) -> OwnedHeaders {
    let mut kept = headers.cloned().unwrap_or_default();
    for name in names {
        let Ok(name) = CString::new(*name) else { continue };
        // SAFETY: `kept` is our own copy, which nobody else reads; the name is a C string. It
        // takes out all headers of the name; a name that is not there changes nothing.
        let _ = unsafe { ffi::rd_kafka_header_remove(native(kept.as_borrowed()), name.as_ptr()) };
    }
    for &(key, value) in add {
        kept = kept.insert(Header { key, value: Some(value) });
    }
    kept
}

/// Headers made from raw ones, whose names and values may be any bytes.
pub(crate) fn from_raw(raw: &[RawHeader]) -> OwnedHeaders {
    let headers = OwnedHeaders::new();
    for (name, value) in raw {
        let (value, size) = match value {
            // An empty slice's pointer is dangling but not null, which librdkafka would take as no value.
            Some(value) => (value.as_ptr().cast::<std::os::raw::c_void>(), value.len() as isize),
            None => (ptr::null(), 0),
        };
        // SAFETY: `headers` is ours alone; librdkafka copies name and value with the given sizes.
        let status = unsafe {
            ffi::rd_kafka_header_add(
                native(headers.as_borrowed()),
                name.as_ptr().cast(),
                name.len() as isize,
                value,
                size,
            )
        };
        // Only a list that is read-only refuses one, or no memory.
        assert_eq!(status, ffi::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(name: &[u8], value: Option<&[u8]>) -> RawHeader {
        (name.to_vec(), value.map(<[u8]>::to_vec))
    }

    #[test]
    fn foreign_bytes_survive() {
        let foreign = [
            raw(b"\xff\xfe", Some(b"\x00\x01")),
            raw(b"", Some(b"")),
            raw("größe".as_bytes(), None),
            raw(b"idem\xff", Some(b"not ours")),
        ];
        assert_eq!(read(from_raw(&foreign).as_borrowed()), foreign);
        let copied = replace(Some(&from_raw(&foreign)), &["idem-attempt"], &[("idem-attempt", b"1")]);
        let mut expected = foreign.to_vec();
        expected.push(raw(b"idem-attempt", Some(b"1")));
        assert_eq!(read(copied.as_borrowed()), expected);
    }

    #[test]
    fn own_headers_are_replaced_however_often_they_stand_there() {
        let old = [
            raw(b"idem-attempt", Some(b"1")),
            raw(b"trace", Some(b"x")),
            raw(b"idem-attempt", Some(b"2")),
            raw(b"idem-attempts", None),
        ];
        let new = replace(Some(&from_raw(&old)), &["idem-attempt"], &[("idem-attempt", b"3")]);
        let kept = [raw(b"trace", Some(b"x")), raw(b"idem-attempts", None), raw(b"idem-attempt", Some(b"3"))];
        assert_eq!(read(new.as_borrowed()), kept);
    }

    #[test]
    fn no_headers_are_a_start_too() {
        assert_eq!(read(replace(None, &["idem-attempt"], &[]).as_borrowed()), []);
    }
}
