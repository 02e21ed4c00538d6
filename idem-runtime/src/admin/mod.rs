//! The admin server: probes, metrics, JSON, and the page for people.
//!
//! `access.rs` says who may see and change what; `overview.rs` gathers what is shown; `view/` makes HTML of it,
//! as pure functions; `pages.rs` and `api.rs` answer requests, and `changes.rs` does what they order. Everything
//! about the servers is asked through `ops/`, over connections of its own: a page never takes one from a group.

mod access;
mod api;
mod changes;
mod connections;
mod overview;
mod pages;
mod rates;
mod view;

use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::sync::{Semaphore, oneshot};

use self::access::Access;
use self::changes::Failed;
use self::rates::Rates;
use crate::config::{AdminSettings, Config};
use crate::health::Health;
use crate::ops::Ops;
use crate::telemetry::{AGE_BUCKETS, DURATION_BUCKETS, Registry};

/// A server that has its port and answers nobody yet.
pub(crate) struct Bound {
    listener: TcpListener,
    settings: AdminSettings,
}

/// Takes the port. The error is a sentence for the operator.
pub(crate) fn bind(settings: &AdminSettings) -> Result<Bound, String> {
    let addr = settings.addr;
    let listener = TcpListener::bind(addr).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    match listener {
        Ok(listener) => Ok(Bound { listener, settings: settings.clone() }),
        Err(error) => Err(format!(
            "IDEM_ADMIN_ADDR: can't listen on {addr} ({}): name another port, such as 127.0.0.1:9465, or `off`",
            error.kind()
        )),
    }
}

/// What requests are answered from.
pub(crate) struct Site {
    config: Arc<Config>,
    ops: Ops,
    health: Health,
    registry: Arc<Registry>,
    rates: Rates,
    access: Access,
    metrics: Option<PrometheusHandle>,
    /// One request at a time reads a dead letter queue: each makes a client, and keeps what it counts.
    reading: Semaphore,
}

impl Site {
    /// A group of this program: another one's queue is for that one's page, which knows what is restricted.
    fn own<'a>(&self, group: &'a str) -> Result<&'a str, Failed> {
        let is_own = self.registry.groups().iter().any(|own| &*own.name == group);
        if is_own { Ok(group) } else { Err(Failed::NotOwn) }
    }
}

impl Bound {
    /// Answers requests until the sender of `ended` is dropped; then connections without a request are closed.
    pub(crate) async fn serve(
        self,
        config: Arc<Config>,
        health: Health,
        registry: Arc<Registry>,
        ended: oneshot::Receiver<()>,
    ) {
        let Self { listener, settings } = self;
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the admin server can't listen"),
        };
        let addr = listener.local_addr().unwrap_or(settings.addr);
        tracing::info!(%addr, "admin server: http://{addr}/");
        let site = Arc::new(Site {
            ops: Ops::new((*config).clone()),
            config,
            health,
            registry,
            rates: Rates::default(),
            access: Access::new(addr, settings.token),
            metrics: record_metrics(),
            reading: Semaphore::new(1),
        });
        tokio::select! {
            () = connections::serve(listener, router(Arc::clone(&site)), async { drop(ended.await) }) => {}
            () = keep_up(&site) => {}
        }
    }
}

/// Makes this process's metrics readable. None: the program has a recorder of its own, which they go to.
pub(crate) fn record_metrics() -> Option<PrometheusHandle> {
    static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full("idem_handler_duration_seconds".to_owned()), &DURATION_BUCKETS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Full("idem_event_age_seconds".to_owned()), &AGE_BUCKETS)
            });
        let recorder = builder.ok()?.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        Some(handle)
    };
    HANDLE.get_or_init(install).clone()
}

/// Samples the counters, and empties the histograms' buffers, which nobody may come to read.
async fn keep_up(site: &Site) {
    let mut tick = tokio::time::interval(rates::EVERY);
    loop {
        tick.tick().await;
        site.rates.sample(&site.registry.groups());
        if let Some(metrics) = &site.metrics {
            metrics.run_upkeep();
        }
    }
}

/// Longest time for an answer that reads whole topics; the `idem` command has no such bound.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest time for a whole request, its body included.
const WHOLE: Duration = Duration::from_secs(60);

fn router(site: Arc<Site>) -> Router {
    let pages = Router::new()
        .route("/", get(pages::overview))
        .route("/style.css", get(pages::style))
        .route("/login", get(pages::login).post(pages::log_in))
        .route("/logout", post(pages::log_out))
        .route("/dlq", get(pages::letters))
        .route("/dlq/letter", get(pages::letter).post(pages::payload))
        .route("/dlq/replay", post(pages::try_replay))
        .route("/dlq/replay/confirm", post(pages::replay))
        .route("/money/resolve", get(pages::call).post(pages::resolve))
        .route("/outbox/release", get(pages::parked).post(pages::release))
        .route("/groups/resume", post(pages::resume))
        .route("/metrics", get(api::metrics))
        .route("/api/overview", get(api::overview))
        .route("/api/status", get(api::status))
        .route("/api/partitions", get(api::partitions))
        .route("/api/money", get(api::money))
        .route("/api/money/resolve", post(api::resolve))
        .route("/api/outbox", get(api::outbox))
        .route("/api/outbox/release", post(api::release))
        .route("/api/dlq", get(api::letters))
        .route("/api/dlq/letter", get(api::letter))
        .route("/api/dlq/replay", post(api::replay))
        .route("/api/groups/resume", post(api::resume))
        .layer(middleware::from_fn_with_state(Arc::clone(&site), access::guard));
    // Whoever runs the program asks these, and has no token.
    let probes = Router::new().route("/healthz", get(api::healthz)).route("/readyz", get(api::readyz));
    pages.merge(probes).layer(middleware::from_fn(headers)).with_state(site)
}

/// No script at all, no foreign resource, no frame, nothing kept.
const HEADERS: [(header::HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // Not `no-referrer`: forms would come without an origin.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

async fn headers(request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(WHOLE, next.run(request)).await;
    let mut response = answered.unwrap_or_else(|_elapsed| StatusCode::REQUEST_TIMEOUT.into_response());
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
