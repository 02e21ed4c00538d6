#![doc = include_str!("otlp.md")]

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Key, Value};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::{config, kafka, tls};

/// Why spans can't be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// Requests leave from the runtime, which was not there.
    #[error("spans are exported from a tokio runtime: call `otlp::layer()` in one, such as below `#[tokio::main]`")]
    NoRuntime,
    /// There is no client.
    #[error("spans can't be exported, as there is no HTTP client: {0}")]
    Client(String),
    /// A variable of OpenTelemetry has a value that can't be used. It is not told which one: an endpoint may hold a password.
    #[error(
        "spans can't be exported: an OTEL_EXPORTER_OTLP_ variable has a value that can't be used: the endpoint is to be a URL \
         such as http://127.0.0.1:4318, the protocol http/protobuf, and there is no compression"
    )]
    Setting,
}

/// A layer, for any subscriber that has a registry.
pub type SpanLayer<S> = Box<dyn Layer<S> + Send + Sync>;

/// Spans go to the collector that `OTEL_EXPORTER_OTLP_ENDPOINT` names. `None`, which is a layer too: none is named.
///
/// To be called in the runtime that [`run`](crate::run()) is called in: requests leave from there. What was not exported yet when a run
/// ends is exported then, within five seconds.
///
/// # Errors
/// See [`OtlpError`]. A collector that is away is no error: spans are thrown away, and OpenTelemetry says so in the log.
pub fn layer<S>() -> Result<Option<SpanLayer<S>>, OtlpError>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    if !config::has_otlp_endpoint() {
        return Ok(None);
    }
    let tracer = match PROVIDER.get() {
        Some(provider) => provider,
        None => {
            let made = provider()?;
            PROVIDER.get_or_init(|| made)
        }
    }
    .tracer("idem");
    let layer = tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false);
    // What is logged may hold anything; a span has the fields that somebody gave it.
    let spans = filter_fn(|metadata| metadata.is_span() && *metadata.level() <= Level::INFO);
    Ok(Some(layer.with_filter(spans.with_max_level_hint(LevelFilter::INFO)).boxed()))
}

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

fn provider() -> Result<SdkTracerProvider, OtlpError> {
    let exporter = SpanExporter::builder().with_http().with_http_client(Client::new()?).build();
    let exporter = exporter.map_err(|_| OtlpError::Setting)?;
    let resource = Resource::builder().build();
    let is_named = match resource.get(&Key::from_static_str("service.name")) {
        Some(Value::String(name)) => !name.as_str().starts_with("unknown_service"),
        _ => false,
    };
    let resource =
        if is_named { resource } else { Resource::builder().with_service_name(config::program_name()).build() };
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// Before a run: a program without a subscriber gets one, so that the variable alone is enough.
pub(crate) fn begin() {
    if !config::has_otlp_endpoint() || PROVIDER.get().is_some() {
        return;
    }
    if tracing::dispatcher::has_been_set() {
        tracing::warn!(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and no span is exported: the program's subscriber needs \
             `.with(idem_runtime::otlp::layer()?)`"
        );
        return;
    }
    match layer() {
        Ok(layer) => drop(Registry::default().with(layer).try_init()),
        // Nobody would read a log.
        Err(error) => eprintln!("{error}"),
    }
}

const FAREWELL: Duration = Duration::from_secs(5);

/// After a run: what was not exported yet is.
pub(crate) async fn end() {
    if let Some(provider) = PROVIDER.get() {
        let flushed = kafka::on_thread(|| provider.force_flush());
        let _ = tokio::time::timeout(FAREWELL, flushed).await;
    }
}

/// How long a collector has for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The exporter has a thread without a runtime; its requests leave from the program's.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
}

impl Client {
    fn new() -> Result<Self, OtlpError> {
        let runtime = Handle::try_current().map_err(|_| OtlpError::NoRuntime)?;
        let tls = tls::client().map_err(|error| OtlpError::Client(error.to_string()))?;
        // A redirect would take headers elsewhere, and a token may be among them.
        let nowhere = reqwest::redirect::Policy::none();
        let http =
            reqwest::Client::builder().tls_backend_preconfigured(tls).redirect(nowhere).timeout(PATIENCE).build();
        let http = http.map_err(|error| OtlpError::Client(error.without_url().to_string()))?;
        Ok(Self { http, runtime })
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'async_trait>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'a: 'async_trait,
        Self: 'async_trait,
    {
        let http = self.http.clone();
        let sent = self.runtime.spawn(async move {
            let response = http.execute(request.try_into()?).await.map_err(reqwest::Error::without_url)?;
            let status = response.status();
            let body = response.bytes().await.map_err(reqwest::Error::without_url)?;
            let mut response = Response::new(body);
            *response.status_mut() = status;
            Ok(response)
        });
        Box::pin(async move { sent.await? })
    }
}
