//! The keys of money calls.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The key of a call: the same over restarts, retry topics and replays, and another one for another
/// call. `operation` is empty for the unnamed call of a handler without one.
///
/// That call's first key is the event's id itself. Every other key is a UUID v8 of the first bytes of
/// the SHA-256 of a domain, the event's id, the group, the operation and the generation, each after
/// its length: 64 bits, big-endian. `generation` counts how often the call was resolved as failed.
pub(crate) fn key(event_id: Uuid, group: &str, operation: &str, generation: u32) -> String {
    if operation.is_empty() && generation == 0 {
        return event_id.hyphenated().to_string();
    }
    let mut hash = Sha256::new();
    let generation = generation.to_be_bytes();
    for part in [&b"idem money key 1"[..], event_id.as_bytes(), group.as_bytes(), operation.as_bytes(), &generation] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    Uuid::new_v8(bytes).hyphenated().to_string()
}

/// The value of the `Idempotency-Key` header.
pub(crate) fn header(key: &str, format: Format) -> String {
    match format {
        Format::Bare => key.to_owned(),
        // A key is hexadecimal digits and hyphens: nothing to escape.
        Format::Quoted => format!("\"{key}\""),
    }
}

/// How a key is written into its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// As most providers want it.
    Bare,
    /// A string of [RFC 8941](https://www.rfc-editor.org/rfc/rfc8941#section-3.3.3), as
    /// draft-ietf-httpapi-idempotency-key-header says.
    Quoted,
}

/// What is compared over the attempts at a call: method, path and body. The event's id goes before
/// them, so that two events with one body are not seen to have it.
pub(crate) fn body_hash(event_id: Uuid, method: &str, path: &str, body: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [event_id.as_bytes(), method.as_bytes(), path.as_bytes(), body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// A JSON value with the keys of its objects sorted and no white space: serializers may write the
/// same value in more than one way, a `HashMap` in another one each time.
pub(crate) fn canonical_json(value: &serde_json::Value) -> String {
    let mut text = String::new();
    write_canonical(&mut text, value);
    text
}

fn write_canonical(text: &mut String, value: &serde_json::Value) {
    use serde_json::Value;
    let list = |text: &mut String, at: usize| {
        if at > 0 {
            text.push(',')
        }
    };
    match value {
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                list(text, at);
                write_canonical(text, item);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            // Sorted here: what order the map has depends on a cargo feature of serde_json.
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            text.push('{');
            for (at, (name, value)) in fields.into_iter().enumerate() {
                list(text, at);
                // Writing into a String can't fail; a string is escaped as a value is.
                let _ = write!(text, "{}:", Value::from(name.as_str()));
                write_canonical(text, value);
            }
            text.push('}');
        }
        // Writing into a String can't fail.
        plain => drop(write!(text, "{plain}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const EVENT: Uuid = Uuid::from_u128(0x0198_c5f4_7a00_7000_8000_0000_0000_0001);

    #[test]
    fn the_first_unnamed_key_is_the_event_id_and_the_others_are_these() {
        let cases = [
            (("billing", "", 0), "0198c5f4-7a00-7000-8000-000000000001"),
            (("billing", "", 1), "bb7eb930-171c-8cee-b591-f7ab41ca9d39"),
            (("billing", "charge", 0), "c16f6870-2ab7-86ca-a83a-988de7a15313"),
            (("billing", "charge", 1), "2207196d-04fe-84a9-822a-b862f1af84eb"),
            (("shipping", "charge", 0), "e64a0ee7-0884-8c8e-a55c-a41409cca960"),
        ];
        for ((group, operation, generation), expected) in cases {
            assert_eq!(key(EVENT, group, operation, generation), expected, "{group} {operation} {generation}");
        }
    }

    #[test]
    fn a_quoted_key_is_a_structured_field_string() {
        assert_eq!(header("0198c5f4", Format::Bare), "0198c5f4");
        assert_eq!(header("0198c5f4", Format::Quoted), "\"0198c5f4\"");
    }

    #[test]
    fn one_json_value_has_one_form() {
        let value = json!({"b": [1, 2.5, null, {"y": true, "x": "é\"\n"}], "a": {}, "B": -1});
        assert_eq!(canonical_json(&value), r#"{"B":-1,"a":{},"b":[1,2.5,null,{"x":"é\"\n","y":true}]}"#);
        let parsed: serde_json::Value = serde_json::from_str(&canonical_json(&value)).unwrap();
        assert_eq!(parsed, value);
    }

    #[test]
    fn a_hash_tells_method_path_and_body_apart() {
        let hashes = [
            body_hash(EVENT, "POST", "/charges", b"1"),
            body_hash(EVENT, "PUT", "/charges", b"1"),
            body_hash(EVENT, "POST", "/charge", b"s1"),
            body_hash(EVENT, "POST", "/charges", b""),
            body_hash(Uuid::nil(), "POST", "/charges", b"1"),
        ];
        assert_eq!(HashSet::from(hashes).len(), 5);
        assert_eq!(hashes[0], body_hash(EVENT, "POST", "/charges", b"1"));
    }

    proptest! {
        #[test]
        fn different_calls_have_different_keys(
            one in ("[a-c]{0,3}", "[a-c]{0,3}", 0_u32..3), other in ("[a-c]{0,3}", "[a-c]{0,3}", 0_u32..3)
        ) {
            let key = |(group, operation, generation): &(String, String, u32)| key(EVENT, group, operation, *generation);
            // The event's own id is the same for all groups: that is what registration is for.
            let bare = |call: &(String, String, u32)| call.1.is_empty() && call.2 == 0;
            prop_assert_eq!(key(&one) == key(&other), one == other || (bare(&one) && bare(&other)));
        }
    }
}
