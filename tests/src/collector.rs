//! A stub of an OpenTelemetry collector, which keeps the spans that it is sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::task::JoinHandle;

type Requests = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

/// Takes spans on a port of its own, until it is dropped.
pub struct Collector {
    /// For `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub url: String,
    requests: Requests,
    server: JoinHandle<()>,
}

/// A span as a test looks at it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenSpan {
    pub service: String,
    pub name: String,
    /// `consumer`, `producer`, or another one's number.
    pub kind: String,
    /// In hexadecimal, as in `traceparent`.
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub state: String,
    /// Trace and span of each link.
    pub links: Vec<(String, String)>,
    pub attributes: BTreeMap<String, String>,
    /// What the status says, if it is an error.
    pub error: Option<String>,
    pub events: usize,
}

impl SeenSpan {
    /// An attribute; empty: there is none.
    #[must_use]
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

impl Collector {
    /// Starts to listen on loopback.
    ///
    /// # Panics
    /// When there is no port.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Requests::default();
        let router = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&requests));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { url, requests, server }
    }

    /// All spans so far.
    #[must_use]
    pub fn spans(&self) -> Vec<SeenSpan> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources
            .flat_map(|resource| {
                let of = resource.resource.iter().flat_map(|resource| &resource.attributes);
                let service = attributes(of).remove("service.name").unwrap_or_default();
                let spans = resource.scope_spans.iter().flat_map(|scope| &scope.spans);
                spans.map(move |span| seen(service.clone(), span))
            })
            .collect()
    }

    /// Everything that was sent, for who looks for what must not be there.
    #[must_use]
    pub fn everything(&self) -> String {
        format!("{:?}", self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn take(State(requests): State<Requests>, body: Bytes) {
    let request = ExportTraceServiceRequest::decode(body).expect("spans as protobuf");
    requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
}

fn seen(service: String, span: &Span) -> SeenSpan {
    SeenSpan {
        service,
        name: span.name.clone(),
        kind: match span.kind {
            3 => "client".to_owned(),
            4 => "producer".to_owned(),
            5 => "consumer".to_owned(),
            other => other.to_string(),
        },
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        state: span.trace_state.clone(),
        links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
        attributes: attributes(&span.attributes),
        error: span.status.as_ref().filter(|status| status.code == 2).map(|status| status.message.clone()),
        events: span.events.len(),
    }
}

fn attributes<'a>(all: impl IntoIterator<Item = &'a KeyValue>) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    all.into_iter().map(|attribute| (attribute.key.clone(), text(&attribute.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
