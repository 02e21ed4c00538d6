//! A browser without scripts: it keeps a cookie, and sends the forms that it is shown.

use std::net::TcpListener;
use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;

/// Looks at one site.
pub struct Browser {
    base: String,
    client: reqwest::Client,
    cookie: Option<String>,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Shown {
    pub status: StatusCode,
    pub text: String,
    pub location: Option<String>,
    pub headers: reqwest::header::HeaderMap,
}

impl Shown {
    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {}", self.text))
    }

    /// The value of a hidden field.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn field(&self, name: &str) -> String {
        let marker = format!("name=\"{name}\" value=\"");
        let found = self.text.split_once(&marker).and_then(|(_, rest)| rest.split_once('"'));
        found.unwrap_or_else(|| panic!("no field {name} in {}", self.text)).0.to_owned()
    }
}

impl Browser {
    /// Looks at a site such as `127.0.0.1:9464`.
    ///
    /// # Panics
    /// When there is no client.
    #[must_use]
    pub fn new(addr: &str) -> Self {
        // The client asks for one, though it speaks plain HTTP only.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let client = client.timeout(Duration::from_secs(40)).build().expect("a plain client");
        Self { base: format!("http://{addr}"), client, cookie: None }
    }

    /// A request that this browser would send.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.cookie {
            Some(cookie) => request.header("cookie", cookie),
            None => request,
        }
    }

    /// Looks at a page. None: nobody answers.
    pub async fn look(&self, path: &str) -> Option<Shown> {
        let answer = self.request(Method::GET, path).send().await.ok()?;
        Some(shown(answer).await)
    }

    /// Looks at a page that is there.
    ///
    /// # Panics
    /// When nobody answers.
    pub async fn get(&self, path: &str) -> Shown {
        self.look(path).await.unwrap_or_else(|| panic!("nobody answers at {}{path}", self.base))
    }

    /// Sends a form.
    ///
    /// # Panics
    /// When nobody answers.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Shown {
        let form = self.request(Method::POST, path).header("origin", &self.base).form(fields);
        shown(form.send().await.unwrap_or_else(|error| panic!("{path}: {error}"))).await
    }

    /// Logs in, and keeps the session.
    ///
    /// # Panics
    /// When the token is wrong.
    pub async fn log_in(&mut self, name: &str, token: &str) {
        let answer = self.post("/login", &[("name", name), ("token", token)]).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
        let cookie = answer.headers["set-cookie"].to_str().expect("a cookie is text");
        self.cookie = cookie.split(';').next().map(str::to_owned);
    }
}

/// What an answer is.
pub async fn shown(answer: reqwest::Response) -> Shown {
    let (status, headers) = (answer.status(), answer.headers().clone());
    let location = headers.get("location").and_then(|to| to.to_str().ok()).map(str::to_owned);
    Shown { status, text: answer.text().await.unwrap_or_default(), location, headers }
}

/// An address that is free now.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_addr() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}
