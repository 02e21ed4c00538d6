//! Spans, as a collector sees them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use idem_runtime::EventId;
use idem_runtime::testing::Provider;
use serde_json::json;
use tests::collector::SeenSpan;
use tests::{Collector, Program, Record, TestEnv, eventually, eventually_some};

const LIMIT: Duration = Duration::from_secs(60);
const TOPICS: [&str; 5] = ["shop.orders", "shop.paid", "shop.counted", "shop.reported", "shop.enveloped"];
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PRODUCER: &str = "00f067aa0ba902b7";

/// Everything that must not be in a span says so.
const SECRET: &str = "sentinel-4711";

fn start(env: &TestEnv, arguments: &[&str]) -> Program {
    Program::start(Path::new(env!("CARGO_BIN_EXE_shop")), arguments, &env.variables())
}

struct Shop {
    env: TestEnv,
    collector: Collector,
    provider: Provider,
    program: Program,
}

impl Drop for Shop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the program said:\n{}", self.program.output().join("\n"));
        }
    }
}

impl Shop {
    async fn open(env: TestEnv) -> Self {
        let (collector, provider) = (Collector::start().await, Provider::start().await.unwrap());
        for topic in TOPICS {
            env.kafka.create_topic(topic, 1).await;
        }
        let env = env
            .with("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)
            .with("OTEL_EXPORTER_OTLP_HEADERS", &format!("authorization={SECRET}"))
            .with("OTEL_SERVICE_NAME", "shop")
            .with("IDEM_MONEY_BASE_URL", &provider.url())
            .with("RUST_LOG", "idem_runtime=info,shop=info");
        let program = start(&env, &["--logs"]);
        Self { env, collector, provider, program }
    }

    /// Publishes an order, and returns its id.
    async fn order(&self, plan: &str, trace: Option<(&str, &str)>) -> String {
        let id = EventId::now().to_string();
        let value = json!({"event_id": id, "amount": 7, "card": SECRET, "plan": plan, "lines": [{"article": SECRET}]});
        let value = value.to_string();
        let mut record = Record::to("shop.orders").key(SECRET).value(&value);
        record = record.header("x-secret", Some(SECRET.as_bytes()));
        if let Some((trace, span)) = trace {
            record = record.header("traceparent", Some(format!("00-{trace}-{span}-01").as_bytes()));
            record = record.header("tracestate", Some(b"vendor=opaque"));
        }
        self.env.kafka.produce(record).await;
        id
    }

    /// The spans with these attributes, once there are so many.
    async fn spans(&self, count: usize, of: &[(&str, &str)]) -> Vec<SeenSpan> {
        let is_one = |span: &SeenSpan| of.iter().all(|(name, value)| span.attribute(name) == *value);
        let what = format!("{count} spans with {of:?}");
        eventually_some(LIMIT, &what, async || {
            let found: Vec<_> = self.collector.spans().into_iter().filter(is_one).collect();
            (found.len() >= count).then_some(found)
        })
        .await
    }

    async fn span(&self, of: &[(&str, &str)]) -> SeenSpan {
        self.spans(1, of).await.remove(0)
    }
}

const GROUP: &str = "messaging.consumer.group.name";
const TOPIC: &str = "messaging.destination.name";
const ID: &str = "messaging.message.id";
const OUTCOME: &str = "idem.outcome";

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_over_outboxes_is_one_trace_and_shows_nothing_of_its_payload() {
    let env = TestEnv::new().await.with("OTEL_BSP_SCHEDULE_DELAY", "100");
    let mut shop = Shop::open(env).await;
    let id = shop.order("succeed", Some((TRACE, PRODUCER))).await;

    let checkout = shop.span(&[(GROUP, "shop-checkout"), (OUTCOME, "done")]).await;
    assert_eq!((&*checkout.name, &*checkout.kind, &*checkout.service), ("process shop.orders", "consumer", "shop"));
    assert_eq!((&*checkout.trace, &*checkout.parent, &*checkout.state), (TRACE, PRODUCER, "vendor=opaque"));
    assert_eq!((&checkout.error, checkout.events), (&None, 0));
    let offset = checkout.attribute("messaging.kafka.offset").to_owned();
    let expected = [
        ("messaging.system", "kafka"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        (GROUP, "shop-checkout"),
        (TOPIC, "shop.orders"),
        ("messaging.destination.partition.id", "0"),
        ("messaging.kafka.offset", &offset),
        (ID, &id),
        ("idem.handler", "shop::checkout"),
        ("idem.attempt", "0"),
        (OUTCOME, "done"),
    ];
    let expected: BTreeMap<_, _> = expected.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    assert_eq!(checkout.attributes, expected);

    // The call to the provider, the relay and who consumes what was published continue the handler's span.
    let charge = shop.provider.requests().remove(0);
    let sent = |name: &str| charge.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone());
    let call = shop.span(&[("http.request.method", "POST"), (OUTCOME, "applied")]).await;
    assert_eq!((&*call.name, &*call.kind, &*call.trace, &call.parent), ("POST", "client", TRACE, &checkout.id));
    assert_eq!(call.attribute("http.response.status_code"), "201");
    assert_eq!(
        format!("http://{}:{}", call.attribute("server.address"), call.attribute("server.port")),
        shop.provider.url()
    );
    assert_eq!(sent("traceparent"), Some(format!("00-{TRACE}-{}-01", call.id)));
    assert_eq!(sent("tracestate").as_deref(), Some("vendor=opaque"));
    let paid = shop.span(&[(TOPIC, "shop.paid"), ("messaging.operation.name", "send")]).await;
    assert_eq!((&*paid.name, &*paid.kind), ("send shop.paid", "producer"));
    assert_eq!((&*paid.trace, &paid.parent), (TRACE, &checkout.id));
    let paid_id = paid.attribute(ID).to_owned();
    let shipped = shop.span(&[(GROUP, "shop-shipping"), (ID, &paid_id), (OUTCOME, "done")]).await;
    assert_eq!((&*shipped.trace, &shipped.parent), (TRACE, &checkout.id));

    // A shared transaction is linked to its events' traces, and their spans to it.
    let shared = shop.span(&[(GROUP, "shop-counts"), ("messaging.batch.message_count", "1")]).await;
    assert_eq!(shared.links, [(TRACE.to_owned(), checkout.id.clone())]);
    assert_eq!((&*shared.parent, shared.attribute(OUTCOME)), ("", "done"));
    let counted = shop.span(&[(GROUP, "shop-counts"), (ID, &paid_id), (OUTCOME, "done")]).await;
    assert_eq!((&*counted.trace, &counted.parent), (TRACE, &checkout.id));
    assert_eq!(counted.links, [(shared.trace.clone(), shared.id.clone())]);
    let told = shop.span(&[(GROUP, "shop-told"), (TOPIC, "shop.counted"), (OUTCOME, "done")]).await;
    assert_eq!((&*told.trace, &told.parent), (TRACE, &counted.id));

    // With `batch` there is one span, and what is published continues its own event's trace.
    let batch = shop.span(&[(GROUP, "shop-report"), ("messaging.batch.message_count", "1")]).await;
    assert_eq!(batch.links, [(TRACE.to_owned(), checkout.id.clone())]);
    eventually(LIMIT, "the report", async || !shop.env.kafka.read_all("shop.reported").await.is_empty()).await;
    let reported = shop.env.kafka.read_all("shop.reported").await.remove(0);
    assert_eq!(reported.header("traceparent"), Some(format!("00-{TRACE}-{}-01", checkout.id)));

    // A record without a trace begins one, and all attempts at it are in that.
    let id = shop.order("fail-once", None).await;
    let failed = shop.span(&[(ID, &id), (OUTCOME, "retry")]).await;
    assert_eq!((&*failed.parent, failed.attribute("error.type")), ("", "transient"));
    assert!(failed.error.as_ref().is_some_and(|what| !what.is_empty()), "{failed:?}");
    let again = shop.span(&[(ID, &id), (OUTCOME, "done")]).await;
    assert_eq!((&*again.name, again.attribute("idem.attempt")), ("process shop-checkout.retry.200ms", "1"));
    assert_eq!((&again.trace, &again.parent), (&failed.trace, &failed.id));

    // A dead letter keeps the trace that it came with.
    let id = shop.order("refuse", Some((TRACE, PRODUCER))).await;
    let refused = shop.span(&[(ID, &id), (OUTCOME, "dead-letter")]).await;
    assert_eq!((&*refused.trace, refused.attribute("error.type")), (TRACE, "permanent"));
    let letters = shop.env.kafka.read_all("shop-checkout.dlq").await;
    assert_eq!(letters[0].header("traceparent"), Some(format!("00-{TRACE}-{PRODUCER}-01")));

    shop.program.terminate();
    assert!(shop.program.wait(LIMIT).await.success());

    // Without a subscriber of its own the variable alone is enough. Nothing leaves before the end, and then all of it.
    shop.program = start(&shop.env.clone().with("OTEL_BSP_SCHEDULE_DELAY", "600000"), &[]);
    let before = shop.collector.spans().len();
    let id = shop.order("succeed", Some((TRACE, PRODUCER))).await;
    let processed =
        "SELECT count(*) FROM processed_event WHERE consumer_group = 'shop-checkout' AND event_id = $1::uuid";
    eventually(LIMIT, "the effect", async || {
        sqlx::query_scalar::<_, i64>(processed).bind(&id).fetch_one(&shop.env.pool).await.unwrap() > 0
    })
    .await;
    assert_eq!(shop.collector.spans().len(), before);
    shop.program.terminate();
    assert!(shop.program.wait(LIMIT).await.success());
    let last = shop.spans(1, &[(ID, &id), (GROUP, "shop-checkout")]).await.remove(0);
    assert_eq!((&*last.trace, last.attribute(OUTCOME)), (TRACE, "done"));

    let everything = shop.collector.everything();
    assert!(!everything.contains(SECRET), "{everything}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_whose_subscriber_exports_nothing_is_told() {
    let env = TestEnv::new().await.with("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let mut program = Program::start(Path::new(env!("CARGO_BIN_EXE_consumer")), &["asked"], &env.variables());
    program.line("idem_runtime::otlp::layer()", LIMIT).await;
    program.kill().await;
}
