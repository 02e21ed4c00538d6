//! The books of the provider: keys, charges, and what goes wrong next.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::Response;

use super::{HttpAnswer, ProviderCharge, ProviderFault, ProviderRequest};

#[derive(Default, Clone)]
pub(super) struct Book {
    pub(super) next: VecDeque<ProviderFault>,
    pub(super) always: Option<ProviderFault>,
    pub(super) lost_share: f64,
    pub(super) latency: Duration,
    pub(super) memory: Option<Duration>,
    pub(super) requests: Vec<ProviderRequest>,
    pub(super) charges: Vec<ProviderCharge>,
    pub(super) lost_answers: u64,
    pub(super) most_at_once: usize,
    pub(super) connections: usize,
    keys: HashMap<String, Remembered>,
    in_progress: HashSet<String>,
}

#[derive(Clone)]
struct Remembered {
    body: Vec<u8>,
    number: usize,
    at: Instant,
}

pub(super) enum Answer {
    Http(HttpAnswer),
    /// Bytes that are no HTTP.
    Garbage,
    /// The end of the connection.
    Dropped,
}

impl Book {
    /// Notes a request, and says what goes wrong with it and how long it takes.
    pub(super) fn arrive(&mut self, request: &ProviderRequest) -> (Option<ProviderFault>, Duration) {
        self.requests.push(request.clone());
        (self.next.pop_front().or_else(|| self.always.clone()), self.latency)
    }

    /// Begins to charge; an answer, if there is nothing to do.
    pub(super) fn begin(&mut self, request: &ProviderRequest) -> Option<Answer> {
        let Some(key) = &request.key else { return Some(plain(400, None)) };
        if let Some(memory) = self.memory {
            self.keys.retain(|_, remembered| remembered.at.elapsed() < memory);
        }
        match self.keys.get(key) {
            Some(remembered) if remembered.body != request.body => Some(plain(422, None)),
            Some(remembered) => Some(charged(remembered.number)),
            None if self.in_progress.contains(key) => Some(plain(409, None)),
            None => {
                self.in_progress.insert(key.clone());
                self.most_at_once = self.most_at_once.max(self.in_progress.len());
                None
            }
        }
    }

    /// Moves the money. Returns the answer, and whether it is lost.
    pub(super) fn charge(&mut self, request: &ProviderRequest) -> (Answer, bool) {
        let key = request.key.clone().unwrap_or_default();
        self.in_progress.remove(&key);
        let body = request.body.clone();
        self.charges.push(ProviderCharge { key: key.clone(), body: body.clone() });
        let number = self.charges.len();
        self.keys.insert(key, Remembered { body, number, at: Instant::now() });
        let is_lost = fastrand::f64() < self.lost_share;
        self.lost_answers += u64::from(is_lost);
        (charged(number), is_lost)
    }

    pub(super) fn forget(&mut self) {
        self.keys.clear();
    }
}

fn charged(number: usize) -> Answer {
    let mut response = Response::new(Full::from(format!("{{\"charge\":{number}}}")));
    *response.status_mut() = hyper::StatusCode::CREATED;
    Answer::Http(response)
}

/// An answer without a charge.
pub(super) fn plain(status: u16, header: Option<(&'static str, &str)>) -> Answer {
    let mut response = Response::new(Full::from(format!("{{\"error\":{status}}}")));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or(hyper::StatusCode::IM_A_TEAPOT);
    if let Some((name, value)) = header
        && let Ok(value) = hyper::header::HeaderValue::from_str(value)
    {
        response.headers_mut().insert(name, value);
    }
    Answer::Http(response)
}
