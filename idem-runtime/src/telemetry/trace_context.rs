//! [W3C Trace Context](https://www.w3.org/TR/trace-context/), as headers of a record carry it.

use std::sync::Arc;

use crate::handler::RawHeader;
use crate::kafka::names::{TRACEPARENT, TRACESTATE};

/// Where in a trace a record was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// `traceparent`, well-formed.
    pub parent: Arc<str>,
    /// `tracestate`: what tracing systems say to themselves.
    pub state: Option<Arc<str>>,
}

/// The longest `tracestate` that has to be passed on.
const LONGEST_STATE: usize = 512;

impl TraceContext {
    /// Of headers with exactly one well-formed `traceparent`; what else is there is nobody's trace.
    pub(crate) fn of(headers: &[RawHeader]) -> Option<Self> {
        let parent = only(headers, TRACEPARENT).filter(|text| is_traceparent(text))?;
        let state = only(headers, TRACESTATE).filter(|text| is_tracestate(text));
        Some(Self { parent: parent.into(), state: state.map(Into::into) })
    }

    /// The headers that carry it on.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [(TRACEPARENT, &*self.parent)].into_iter().chain(self.state.as_deref().map(|state| (TRACESTATE, state)))
    }
}

/// Whether headers say anything of a trace, well-formed or not: a second `traceparent` would make both void.
pub(crate) fn is_traced(mut names: impl Iterator<Item = impl AsRef<[u8]>>) -> bool {
    names.any(|name| name.as_ref().eq_ignore_ascii_case(TRACEPARENT.as_bytes()))
}

/// The value of the one header of this name.
fn only<'a>(headers: &'a [RawHeader], name: &str) -> Option<&'a str> {
    let mut values = headers.iter().filter(|(of, _)| of == name.as_bytes());
    let (Some((_, Some(value))), None) = (values.next(), values.next()) else { return None };
    std::str::from_utf8(value).ok()
}

fn is_traceparent(text: &str) -> bool {
    let hex = |field: &str, len| {
        field.len() == len && field.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
    };
    let some_id = |field: &str, len| hex(field, len) && field.bytes().any(|byte| byte != b'0');
    let fields: Vec<&str> = text.split('-').collect();
    matches!(fields[..], ["00", trace, parent, flags] if some_id(trace, 32) && some_id(parent, 16) && hex(flags, 2))
}

fn is_tracestate(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST_STATE && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn header(name: &str, value: &[u8]) -> RawHeader {
        (name.as_bytes().to_vec(), Some(value.to_vec()))
    }

    #[test]
    fn only_one_well_formed_trace_context_is_taken() {
        assert!(TraceContext::of(&[header("traceparent", GOOD)]).is_some());
        assert!(TraceContext::of(&[header("traceparent", GOOD), header("traceparent", GOOD)]).is_none());
        for bad in [
            &b""[..],
            b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            b"00-00000000000000000000000000000000-b7ad6b7169203331-01",
            b"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            b"\xff\xff",
        ] {
            assert!(TraceContext::of(&[header("traceparent", bad)]).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_state_goes_with_its_parent_unless_it_is_malformed() {
        let state = |value: &[u8]| TraceContext::of(&[header("traceparent", GOOD), header("tracestate", value)]);
        let context = state(b"vendor=1,other=a:b").unwrap();
        assert_eq!(
            context.headers().collect::<Vec<_>>(),
            [("traceparent", std::str::from_utf8(GOOD).unwrap()), ("tracestate", "vendor=1,other=a:b")]
        );
        for bad in [&b""[..], b"a=\n", "a=ö".as_bytes(), &[b'a'; 513], b"\xff"] {
            assert_eq!(state(bad).unwrap().state, None, "{bad:?}");
        }
        assert_eq!(TraceContext::of(&[header("tracestate", b"vendor=1")]), None, "no state without a parent");
    }
}
