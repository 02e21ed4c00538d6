//! A payment provider inside the process.

mod book;

use std::convert::Infallible;
use std::fmt;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::TestingError;
use book::{Answer, Book};

/// A payment provider: a real HTTP server on the loopback interface that charges once for each
/// `Idempotency-Key`, answers 409 while a request with the same key is in progress and 422 when the
/// body is another one, and can misbehave in every way that providers do.
///
/// Any method and path charges. The answer is 201 with `{"charge": 1}`; a key that is remembered gets
/// its first answer again.
///
/// ```no_run
/// # async fn example() -> Result<(), idem_runtime::testing::TestingError> {
/// use idem_runtime::testing::{Provider, ProviderFault};
///
/// let provider = Provider::start().await?;
/// provider.next(ProviderFault::DropAfter);
/// println!("IDEM_MONEY_BASE_URL={}", provider.url());
/// // .. let events be handled ..
/// assert_eq!(provider.charges().len(), 1);
/// # Ok(())
/// # }
/// ```
pub struct Provider {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
    accept: JoinHandle<()>,
}

/// See [`Provider::save`].
pub(super) struct Saved(Book);

/// How a request goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum ProviderFault {
    /// The connection ends before anything is charged.
    DropBefore,
    /// It is charged, and then the connection ends: the answer is lost.
    DropAfter,
    /// It is charged, and answered so much later.
    AnswerAfter(Duration),
    /// It is charged so much later; until then the key is in use.
    ChargeAfter(Duration),
    /// Not charged; this status.
    Status(u16),
    /// Not charged; 429 with this `Retry-After`.
    RetryAfter(String),
    /// Not charged; 307 to the same path of the same server.
    Redirect,
    /// It is charged, and what comes back is no HTTP.
    Garbage,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct ProviderRequest {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The raw value of `Idempotency-Key`.
    pub key: Option<String>,
    /// All headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Money that moved.
#[derive(Debug, Clone)]
pub struct ProviderCharge {
    /// The raw value of `Idempotency-Key`.
    pub key: String,
    /// The body of its request.
    pub body: Vec<u8>,
}

impl Provider {
    /// Starts a provider, which ends when this value is dropped. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> Result<Self, TestingError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(|_| TestingError::NoPort)?;
        let address = listener.local_addr().map_err(|_| TestingError::NoPort)?;
        let book = Arc::new(Mutex::new(Book::default()));
        let accept = tokio::spawn(accept(listener, Arc::clone(&book)));
        Ok(Self { address, book, accept })
    }

    /// The value for `IDEM_MONEY_BASE_URL`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets one more of the next requests go wrong; several come one after another.
    pub fn next(&self, fault: ProviderFault) {
        self.book().next.push_back(fault);
    }

    /// Lets every request go wrong for which nothing else was said, or none any more.
    pub fn always(&self, fault: Option<ProviderFault>) {
        self.book().always = fault;
    }

    /// Loses this share of the answers after charging, from 0 to 1.
    pub fn lose_answers(&self, share: f64) {
        self.book().lost_share = share;
    }

    /// How long it takes to charge.
    pub fn charge_in(&self, latency: Duration) {
        self.book().latency = latency;
    }

    /// How long it remembers a key; for ever, if nothing is said.
    pub fn remember_keys_for(&self, time: Duration) {
        self.book().memory = Some(time);
    }

    /// Forgets all keys, as after their time.
    pub fn forget_keys(&self) {
        self.book().forget();
    }

    /// What arrived, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<ProviderRequest> {
        self.book().requests.clone()
    }

    /// What was charged, in order.
    #[must_use]
    pub fn charges(&self) -> Vec<ProviderCharge> {
        self.book().charges.clone()
    }

    /// How many requests were being charged at once, at most.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.book().most_at_once
    }

    /// How many connections were accepted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.book().connections
    }

    /// How many answers were lost after charging.
    #[must_use]
    pub fn lost_answers(&self) -> u64 {
        self.book().lost_answers
    }

    /// What it knows and will do, to be put back with [`restore`](Self::restore).
    pub(super) fn save(&self) -> Saved {
        Saved(self.book().clone())
    }

    pub(super) fn restore(&self, saved: &Saved) {
        *self.book() = saved.0.clone();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("address", &self.address).finish_non_exhaustive()
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, book: Arc<Mutex<Book>>) {
    while let Ok((stream, _)) = listener.accept().await {
        lock(&book).connections += 1;
        tokio::spawn(connection(stream, Arc::clone(&book)));
    }
}

async fn connection(stream: TcpStream, book: Arc<Mutex<Book>>) {
    let _ = stream.set_nodelay(true);
    // A second handle, for what HTTP has no word for.
    let Ok((stream, raw)) = stream.into_std().and_then(|stream| Ok((stream.try_clone()?, stream))) else { return };
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let service = service_fn(|request| async {
        let request = received(request).await;
        // A task of its own: a client that leaves stops nothing.
        let answer = tokio::spawn(serve(Arc::clone(&book), request)).await;
        match answer.unwrap_or(Answer::Dropped) {
            Answer::Http(response) => return Ok::<_, Infallible>(response),
            Answer::Garbage => drop(std::io::Write::write_all(&mut &raw, b"\x16\x03\x01 no HTTP\r\n\r\n")),
            Answer::Dropped => {}
        }
        let _ = raw.shutdown(Shutdown::Both);
        Ok(Response::new(Full::default()))
    });
    // What a client does wrong is its own affair.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn received(request: Request<Incoming>) -> ProviderRequest {
    let (head, body) = request.into_parts();
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    ProviderRequest {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        key: head.headers.get("idempotency-key").map(text),
        headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default(),
    }
}

async fn serve(book: Arc<Mutex<Book>>, request: ProviderRequest) -> Answer {
    let (fault, latency) = lock(&book).arrive(&request);
    match &fault {
        Some(ProviderFault::DropBefore) => return Answer::Dropped,
        Some(ProviderFault::Status(status)) => return book::plain(*status, None),
        Some(ProviderFault::RetryAfter(when)) => return book::plain(429, Some(("retry-after", when))),
        Some(ProviderFault::Redirect) => return book::plain(307, Some(("location", &request.path))),
        _ => {}
    }
    let begun = lock(&book).begin(&request);
    let (answer, is_lost) = match begun {
        Some(answer) => (answer, false),
        None => {
            let wait = if let Some(ProviderFault::ChargeAfter(wait)) = fault { wait } else { latency };
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            lock(&book).charge(&request)
        }
    };
    match fault {
        Some(ProviderFault::DropAfter) => {
            lock(&book).lost_answers += 1;
            Answer::Dropped
        }
        Some(ProviderFault::Garbage) => Answer::Garbage,
        Some(ProviderFault::AnswerAfter(wait)) => {
            tokio::time::sleep(wait).await;
            answer
        }
        _ if is_lost => Answer::Dropped,
        _ => answer,
    }
}

type HttpAnswer = Response<Full<Bytes>>;
