//! What is said of spans to OpenTelemetry, where somebody listens through `tracing-opentelemetry`.

#[cfg(not(feature = "otlp"))]
pub(super) use self::nobody::*;
#[cfg(feature = "otlp")]
pub(super) use self::somebody::*;

#[cfg(feature = "otlp")]
mod somebody {
    use opentelemetry::trace::{SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use crate::telemetry::trace_context::TraceContext;

    /// What kind of span it is. Not fields of it, as each line of a log would repeat them.
    pub(crate) fn messaging(span: &Span, kind: &'static str, operation: &'static str, topic: &str) {
        span.record("otel.kind", kind);
        span.record("otel.name", format!("{operation} {topic}"));
        span.set_attribute("messaging.system", "kafka");
        span.set_attribute("messaging.operation.name", operation);
        span.set_attribute("messaging.operation.type", operation);
    }

    /// A request to another service.
    pub(crate) fn client(span: &Span, name: &'static str) {
        span.record("otel.kind", "client");
        span.record("otel.name", name);
    }

    /// The span is a child of the one that the context names.
    pub(crate) fn continues(span: &Span, context: &TraceContext) {
        if let Some(parent) = remote(context) {
            // Nobody may be listening, which is no error.
            let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent));
        }
    }

    pub(crate) fn links(span: &Span, context: &TraceContext) {
        if let Some(linked) = remote(context) {
            span.add_link(linked);
        }
    }

    pub(crate) fn links_span(span: &Span, linked: &Span) {
        span.add_link(linked.context().span().span_context().clone());
    }

    pub(crate) fn failed(span: &Span, what: String) {
        span.set_status(Status::error(what));
    }

    /// Of the current span; of the one around it, if it is not recorded itself.
    pub(crate) fn current() -> Option<TraceContext> {
        let of_span = Span::current().context();
        let around = opentelemetry::Context::current();
        let mut contexts = [of_span, around].into_iter().map(|context| context.span().span_context().clone());
        let span = contexts.find(SpanContext::is_valid)?;
        let flags = span.trace_flags() & TraceFlags::SAMPLED;
        let state = span.trace_state().header();
        Some(TraceContext {
            parent: format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), flags).into(),
            state: (!state.is_empty()).then(|| state.into()),
        })
    }

    fn remote(context: &TraceContext) -> Option<SpanContext> {
        let mut fields = context.parent.split('-').skip(1);
        let trace = TraceId::from_hex(fields.next()?).ok()?;
        let span = SpanId::from_hex(fields.next()?).ok()?;
        let flags = TraceFlags::new(u8::from_str_radix(fields.next()?, 16).ok()?);
        let state: TraceState = context.state.as_deref().and_then(|state| state.parse().ok()).unwrap_or_default();
        Some(SpanContext::new(trace, span, flags, true, state))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_context_is_read_as_it_was_written() {
            let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            let context = TraceContext { parent: parent.into(), state: Some("vendor=1".into()) };
            let read = remote(&context).unwrap();
            assert_eq!((read.is_valid(), read.is_remote(), read.is_sampled()), (true, true, true));
            let around = opentelemetry::Context::new().with_remote_span_context(read).attach();
            assert_eq!(current(), Some(context));
            drop(around);
            assert_eq!(current(), None);
        }
    }
}

#[cfg(not(feature = "otlp"))]
mod nobody {
    use tracing::Span;

    use crate::telemetry::trace_context::TraceContext;

    pub(crate) fn messaging(_: &Span, _kind: &'static str, _operation: &'static str, _topic: &str) {}

    pub(crate) fn client(_: &Span, _name: &'static str) {}

    pub(crate) fn continues(_: &Span, _: &TraceContext) {}

    pub(crate) fn links(_: &Span, _: &TraceContext) {}

    pub(crate) fn links_span(_: &Span, _: &Span) {}

    pub(crate) fn failed(_: &Span, _: String) {}

    pub(crate) fn current() -> Option<TraceContext> {
        None
    }
}
