//! HTTP for money calls: one request, one answer, nothing on its own.

use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Client, Method, Request, Url};

use super::ChargeResponse;
use crate::decide::money::Answer;
use crate::tls;

/// A request that was not looked at yet.
pub(super) struct Outgoing {
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

/// A request that can be sent.
pub(super) struct Prepared {
    request: Request,
    method: &'static str,
    body: Vec<u8>,
}

impl Prepared {
    pub(super) fn method(&self) -> &str {
        self.method
    }

    /// Host and port.
    pub(super) fn server(&self) -> (&str, Option<u16>) {
        let url = self.request.url();
        (url.host_str().unwrap_or_default(), url.port_or_known_default())
    }

    /// Path and query.
    pub(super) fn path(&self) -> String {
        let url = self.request.url();
        url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()))
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }
}

/// Headers that are the library's, or belong to the connection.
const RESERVED: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A longer answer is none: nobody says in one what became of a payment.
const LONGEST_ANSWER: usize = 4 * 1024 * 1024;

/// Longest time for a connection to be made. It is bounded by half of the call's timeout too: a call that
/// runs out of time before it is connected would be taken for one that left.
const CONNECT: Duration = Duration::from_secs(5);

/// The HTTP client of a process.
pub(super) struct Transport {
    client: Client,
}

impl Transport {
    /// Redirects are not followed: they would take a body, and a key, elsewhere. Nothing is sent
    /// twice: reqwest's own retries are off, and below them a request goes to another connection only
    /// if it never left. HTTP/1.1, where a connection that ends says nothing about other requests.
    pub(super) fn new(timeout: Duration) -> Result<Self, String> {
        let tls = tls::client().map_err(|error| format!("money calls have no TLS: {error}"))?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .http1_only()
            .connect_timeout(CONNECT.min(timeout / 2))
            .tcp_nodelay(true)
            .user_agent(concat!("idem/", env!("CARGO_PKG_VERSION")))
            .build();
        let client = client.map_err(|error| format!("money calls have no HTTP client: {}", error.without_url()))?;
        Ok(Self { client })
    }

    /// Looks at a request.
    ///
    /// # Errors
    /// Says what is wrong with it, without a value.
    pub(super) fn prepare(&self, outgoing: Outgoing) -> Result<Prepared, String> {
        let Outgoing { method, url, headers, body } = outgoing;
        let url = Url::parse(&url).map_err(|error| format!("its URL is none: {error}"))?;
        let verb = Method::from_bytes(method.as_bytes()).map_err(|_| "its method is none".to_owned())?;
        let mut request = Request::new(verb, url);
        for (name, value) in headers {
            let wrong = |what: &str| format!("its header `{name}` {what}");
            if RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
                return Err(wrong("is the library's to set"));
            }
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("has no valid name"))?;
            let mut value = HeaderValue::from_bytes(&value).map_err(|_| wrong("has no valid value"))?;
            value.set_sensitive(true);
            request.headers_mut().append(header, value);
        }
        *request.body_mut() = Some(body.clone().into());
        Ok(Prepared { request, method, body })
    }

    /// Sends a request once, and reads the whole answer.
    ///
    /// # Cancel safety
    /// Dropped, it may have left.
    pub(super) async fn send(&self, prepared: Prepared, key: &str) -> Result<ChargeResponse, (Answer, &'static str)> {
        let mut request = prepared.request;
        // A key is hexadecimal digits, hyphens and perhaps quotes.
        let key = HeaderValue::from_str(key).map_err(|_| (Answer::NotSent, "the key can't be sent"))?;
        request.headers_mut().insert(HeaderName::from_static("idempotency-key"), key);
        let mut response = self.client.execute(request).await.map_err(|error| {
            if error.is_connect() {
                (Answer::NotSent, "no connection")
            } else {
                (Answer::Nothing, "the connection broke")
            }
        })?;
        let status = response.status().as_u16();
        let header = |(name, value): (&HeaderName, &HeaderValue)| (name.as_str().to_owned(), value.as_bytes().to_vec());
        let headers = response.headers().iter().map(header).collect();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|_| (Answer::Nothing, "the answer is not whole"))? {
            body.extend_from_slice(&chunk);
            if body.len() > LONGEST_ANSWER {
                return Err((Answer::Nothing, "the answer is too long"));
            }
        }
        Ok(ChargeResponse { status, headers, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(url: &str, header: (&str, &[u8])) -> Result<Prepared, String> {
        let headers = vec![(header.0.to_owned(), header.1.to_vec())];
        let outgoing = Outgoing { method: "POST", url: url.to_owned(), headers, body: b"{}".to_vec() };
        Transport::new(Duration::from_secs(10)).unwrap().prepare(outgoing)
    }

    #[test]
    fn what_the_library_sets_is_not_the_handlers_to_set() {
        for name in ["Idempotency-Key", "idempotency-key", "Host", "Content-Length", "Transfer-Encoding", "Expect"] {
            let error = prepare("http://pay.example/", (name, b"sentinel-4711")).err().unwrap();
            assert!(error.contains(name) && error.contains("the library's") && !error.contains("sentinel"), "{error}");
        }
        for (name, value) in [("a b", &b"x"[..]), ("x", b"a\nb"), ("", b"x")] {
            assert!(prepare("http://pay.example/", (name, value)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn path_and_query_are_what_is_compared_and_not_the_host() {
        let path = |url| prepare(url, ("x-team", b"billing")).unwrap().path();
        assert_eq!(path("https://pay.example/v1/charges?dry=1"), "/v1/charges?dry=1");
        assert_eq!(path("http://127.0.0.1:8080"), "/");
        assert!(prepare("/charges", ("x", b"y")).err().unwrap().contains("URL"));
    }
}
