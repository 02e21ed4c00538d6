//! The spans of events, and the traces that they continue.
//!
//! Fields are named as OpenTelemetry's [conventions for messaging](https://opentelemetry.io/docs/specs/semconv/messaging/)
//! (schema 1.42) name attributes; the library's own begin with `idem.`. Nothing of a key, a value or a header is among
//! them. A span that nobody subscribes to costs a comparison: nothing is formatted, no header is read.

use tracing::Span;
use tracing::field::{Empty, display};

use super::otel;
use super::trace_context::{self, TraceContext};
use crate::decide::outcome::Outcome;
use crate::error::Failure;
use crate::event::EventId;
use crate::handler::Handler;
use crate::kafka::record::Record;
use crate::pg::outbox::Row;

/// An attempt at an event, from its delivery until it is settled. It continues the record's trace.
pub(crate) fn event(group: &str, record: &Record, attempt: u32) -> Span {
    let span = tracing::info_span!(
        "event",
        otel.name = Empty,
        otel.kind = Empty,
        messaging.consumer.group.name = group,
        messaging.destination.name = &*record.topic,
        messaging.destination.partition.id = %record.partition,
        messaging.kafka.offset = record.offset,
        messaging.message.id = Empty,
        idem.handler = Empty,
        idem.attempt = attempt,
        idem.outcome = Empty,
        error.type = Empty,
    );
    if is_recorded(&span) {
        otel::messaging(&span, "consumer", "process", &record.topic);
        if let Some(context) = TraceContext::of(&record.raw_headers()) {
            otel::continues(&span, &context);
        }
    }
    span
}

/// Says of the event's span which event it is, and whose.
pub(crate) fn identified(span: &Span, handler: &Handler, id: EventId) {
    span.record("messaging.message.id", display(id));
    span.record("idem.handler", handler.spec.name);
}

/// Says of the event's span what became of it.
pub(crate) fn settled(span: &Span, settled: &'static str, outcome: &Outcome) {
    span.record("idem.outcome", settled);
    let class = match outcome {
        Outcome::Infrastructure(_) => "infrastructure",
        Outcome::Transient { panicked: true, .. } => "panic",
        Outcome::Transient { .. } => "transient",
        Outcome::Permanent { reason, .. } => reason.as_str(),
        Outcome::TransactionEnded => "transaction-ended",
        _ => return,
    };
    span.record("error.type", class);
    if is_recorded(span) {
        otel::failed(span, outcome.failure().map(Failure::summary).unwrap_or_default());
    }
}

/// An attempt at events that share a transaction. It is linked to the traces of all of them.
pub(crate) fn shared<'a>(group: &str, handler: &Handler, records: impl ExactSizeIterator<Item = &'a Record>) -> Span {
    let count = records.len();
    let mut records = records.peekable();
    let Some(first) = records.peek() else { return Span::none() };
    let span = tracing::info_span!(
        "shared",
        otel.name = Empty,
        otel.kind = Empty,
        messaging.consumer.group.name = group,
        messaging.destination.name = &*first.topic,
        messaging.destination.partition.id = %first.partition,
        messaging.kafka.offset = first.offset,
        messaging.batch.message_count = count,
        idem.handler = handler.spec.name,
        idem.outcome = Empty,
        error.type = Empty,
    );
    if is_recorded(&span) {
        otel::messaging(&span, "consumer", "process", &first.topic);
        for context in records.filter_map(|record| TraceContext::of(&record.raw_headers())) {
            otel::links(&span, &context);
        }
    }
    span
}

/// The event's span belongs to this transaction too.
pub(crate) fn in_transaction(event: &Span, shared: &Span) {
    if is_recorded(event) {
        otel::links_span(event, shared);
    }
}

/// A call to the payment provider, from before its intent is written until its answer is read. Named as OpenTelemetry's
/// [conventions for HTTP clients](https://opentelemetry.io/docs/specs/semconv/http/http-spans/) name it; without the URL,
/// whose path may hold what the payload does.
pub(crate) fn money_call(method: &'static str) -> Span {
    let span = tracing::info_span!(
        "money_call",
        otel.name = Empty,
        otel.kind = Empty,
        http.request.method = method,
        http.response.status_code = Empty,
        server.address = Empty,
        server.port = Empty,
        idem.outcome = Empty,
        error.type = Empty,
    );
    if is_recorded(&span) {
        otel::client(&span, method);
    }
    span
}

/// Says of a money call's span where it goes.
pub(crate) fn calls(span: &Span, (host, port): (&str, Option<u16>)) {
    span.record("server.address", host);
    span.record("server.port", port);
}

/// Says of a money call's span what the provider answered.
pub(crate) fn answered(span: &Span, status: u16) {
    span.record("http.response.status_code", status);
}

/// Says of a money call's span what the handler is told.
pub(crate) fn called(span: &Span, outcome: &'static str, is_done: bool) {
    span.record("idem.outcome", outcome);
    if !is_done {
        span.record("error.type", outcome);
        if is_recorded(span) {
            otel::failed(span, outcome.to_owned());
        }
    }
}

/// The sending of an event of the outbox, until the broker has acknowledged it. It is in the trace of whoever
/// published the event, and so is the record: what consumes it continues that one.
pub(crate) fn send(row: &Row) -> Span {
    let span = tracing::info_span!(
        "send",
        otel.name = Empty,
        otel.kind = Empty,
        messaging.destination.name = &*row.topic,
        messaging.message.id = %row.event_id,
        error.type = Empty,
    );
    if is_recorded(&span) {
        otel::messaging(&span, "producer", "send", &row.topic);
        let bytes = |(name, value): &(String, String)| (name.clone().into_bytes(), Some(value.clone().into_bytes()));
        let headers: Vec<_> = row.headers.iter().map(bytes).collect();
        if let Some(context) = TraceContext::of(&headers) {
            otel::continues(&span, &context);
        }
    }
    span
}

/// The trace that goes on from here: that of the current span, if it is recorded, else that of the record.
pub(crate) fn outgoing(record: &Record) -> Option<TraceContext> {
    otel::current().or_else(|| TraceContext::of(&record.raw_headers()))
}

/// The trace of what is published for one of the events of a batch: the event's own, so that it does not depend on the
/// events beside it.
pub(crate) fn outgoing_from_batch(record: &Record) -> Option<TraceContext> {
    TraceContext::of(&record.raw_headers()).or_else(otel::current)
}

/// The trace of the current span.
pub(crate) fn current() -> Option<TraceContext> {
    otel::current()
}

/// The current span's trace for a record that came without one, so that all attempts at it are in one.
pub(crate) fn begun_here(record: &Record) -> Option<TraceContext> {
    let current = otel::current()?;
    (!trace_context::is_traced(record.raw_headers().into_iter().map(|(name, _)| name))).then_some(current)
}

/// Whether anything has to be done for OpenTelemetry.
fn is_recorded(span: &Span) -> bool {
    cfg!(feature = "otlp") && !span.is_disabled()
}
