//! What can't be handled moves on, where it can be seen, and the partition moves with it.

use std::time::Duration;

use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{Record, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(60);

#[idempotent_handler(topic = "bad.orders", group = "bad")]
async fn bad(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "bad").await
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_records_are_dead_lettered_with_a_reason_and_the_partition_moves() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("bad.orders", 6).await;
    // The origin has more partitions than the dead letter queue: its number must not be copied.
    env.kafka.create_topic("bad.dlq", 1).await;
    let card = "4111111111111111";
    let shape = format!(r#"{{"event_id":"0198c5f4-7a00-7000-8000-000000000001","number":"{card}"}}"#);
    let values: [(Option<&[u8]>, &str); 6] = [
        (None, "null"),
        (Some(b"\xff\xfe"), "unparsable"),
        (Some(b""), "unparsable"),
        (Some(card.as_bytes()), "unparsable"),
        (Some(shape.as_bytes()), "unparsable"),
        (Some(br#"{"number":1}"#), "bad-id"),
    ];
    for (value, _) in &values {
        let record = Record::to("bad.orders").partition(5).key("k").header("trace", Some(b"x"));
        let record = if let Some(value) = value { record.value(value) } else { record };
        env.kafka.produce(record).await;
    }
    let (good, value) = orders::order(1, &Plan::Succeed);
    env.kafka.produce(Record::to("bad.orders").partition(5).value(&value)).await;

    let run = Run::start(&env, &["bad"]);
    eventually(LIMIT, "the good order behind them", async || orders::effect_count(&env.pool, "bad").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "bad", &[good]).await;
    assert_eq!(env.kafka.committed("bad", "bad.orders").await[&5].offset, 7);
    let letters = env.kafka.read_all("bad.dlq").await;
    assert_eq!(letters.len(), values.len());
    for (letter, (offset, (value, reason))) in letters.iter().zip((0..).zip(&values)) {
        assert_eq!(letter.header("idem-reason").as_deref(), Some(*reason));
        assert_eq!(letter.value.as_deref(), *value);
        assert_eq!(letter.key.as_deref(), Some(&b"k"[..]));
        assert_eq!(letter.header("trace").as_deref(), Some("x"));
        assert_eq!(letter.header("idem-origin-topic").as_deref(), Some("bad.orders"));
        assert_eq!(letter.header("idem-origin-partition").as_deref(), Some("5"));
        assert_eq!(letter.header("idem-origin-offset"), Some(i32::to_string(&offset)));
        assert_eq!(letter.header("idem-handler").as_deref(), Some("letters::bad"));
        for (name, text) in &letter.headers {
            let text = text.as_deref().unwrap_or_default();
            assert!(
                !text.windows(4).any(|window| window == b"4111"),
                "{} quotes the payload",
                String::from_utf8_lossy(name)
            );
        }
    }
}

#[idempotent_handler(topic = "foreign.orders", group = "foreign", retry = ["100ms"])]
async fn foreign(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    assert_eq!(delivery.topic.as_ref(), "foreign.orders");
    orders::handle(tx, order, &delivery, "foreign").await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_headers_of_whatever_bytes_change_nothing() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("foreign.orders", 1).await;
    let mut ids = Vec::new();
    for plan in [Plan::Succeed, Plan::FailTimes(1), Plan::Refuse] {
        let (id, value) = orders::order(0, &plan);
        let record = Record::to("foreign.orders")
            .value(&value)
            .header(b"\xff\xfe\x00", Some(b"\x00\xff"))
            .header("", None)
            .header("idem-attempt", Some(b"99"))
            .header("idem-due-at", Some(b"99999999999999"))
            .header("idem-origin-topic", Some(b"elsewhere"))
            .header("traceparent", Some(b"\xc3\x28"));
        env.kafka.produce(record).await;
        ids.push(id);
    }
    let run = Run::start(&env, &["foreign"]);
    eventually(LIMIT, "both good orders", async || orders::effect_count(&env.pool, "foreign").await == 2).await;
    eventually(LIMIT, "the dead letter", async || env.kafka.read_all("foreign.dlq").await.len() == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "foreign", &ids[..2]).await;
    let retried = env.kafka.read_all("foreign.retry.100ms").await;
    let letter = env.kafka.read_all("foreign.dlq").await.remove(0);
    for moved in [&retried[0], &letter] {
        // A name is shown up to its first NUL.
        assert!(moved.headers.contains(&(b"\xff\xfe".to_vec(), Some(b"\x00\xff".to_vec()))), "{:?}", moved.headers);
        assert!(moved.headers.contains(&(Vec::new(), None)));
        assert_eq!(moved.headers.iter().filter(|(name, _)| name == b"idem-attempt").count(), 1);
        assert_eq!(moved.header("idem-attempt").as_deref(), Some("1"));
        assert_eq!(moved.header("idem-origin-topic").as_deref(), Some("foreign.orders"));
    }
}

#[idempotent_handler(topic = "large.orders", group = "large", retry = ["100ms"])]
async fn large(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "large").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_does_not_fit_again_goes_to_the_dead_letters_without_its_value() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("large.orders", 1).await;
    for topic in ["large.retry.100ms", "large.dlq"] {
        env.kafka.create_topic_with_config(topic, 1, &[("max.message.bytes", "20000")]).await;
    }
    let padding = "x".repeat(50_000);
    let mut ids = Vec::new();
    for plan in [Plan::FailTimes(1), Plan::Refuse, Plan::Succeed] {
        let id = EventId::now().uuid();
        let value = serde_json::json!({"event_id": id, "plan": plan, "padding": padding}).to_string();
        env.kafka.produce(Record::to("large.orders").value(&value)).await;
        ids.push(id);
    }
    let run = Run::start(&env, &["large"]);
    eventually(LIMIT, "the order behind them", async || orders::effect_count(&env.pool, "large").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "large", &ids[2..]).await;
    let letters = env.kafka.read_all("large.dlq").await;
    let reasons: Vec<_> = letters.iter().map(|letter| letter.header("idem-reason").unwrap()).collect();
    assert_eq!(reasons, ["exhausted", "permanent"]);
    assert!(letters.iter().all(|letter| letter.value.is_none()));
    assert_eq!(letters[1].header("idem-origin-offset").as_deref(), Some("1"));
}

#[idempotent_handler(topic = "batched.orders", group = "batched", retry = ["100ms"], concurrency = 16)]
async fn batched(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    // Eight events for each cause: more would open the circuit, which is not what this is about.
    const CAUSES: [&str; 8] = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];
    if delivery.attempt == 0 {
        return Err(HandlerError::transient(CAUSES[usize::try_from(delivery.offset).unwrap() % CAUSES.len()]));
    }
    orders::handle(tx, order, &delivery, "batched").await
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_fit_one_by_one_are_retried_also_when_they_leave_together() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("batched.orders", 1).await;
    for topic in ["batched.retry.100ms", "batched.dlq"] {
        env.kafka.create_topic_with_config(topic, 1, &[("max.message.bytes", "2000")]).await;
    }
    let padding = "x".repeat(1_000);
    let mut ids = Vec::new();
    for number in 0..64 {
        let id = EventId::now().uuid();
        let value = serde_json::json!({"event_id": id, "plan": Plan::Succeed, "padding": padding}).to_string();
        env.kafka.produce(Record::to("batched.orders").key(&i32::to_string(&number)).value(&value)).await;
        ids.push(id);
    }
    let run = Run::start(&env, &["batched"]);
    eventually(LIMIT, "all effects", async || orders::effect_count(&env.pool, "batched").await == 64).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "batched", &ids).await;
    assert_eq!(env.kafka.read_all("batched.dlq").await, []);
}

#[idempotent_handler(topic = "tiers.orders", group = "tiers", retry = ["300ms", "600ms"])]
async fn tiers(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "tiers").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transient_failure_passes_the_tiers_with_their_delays() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("tiers.orders", 1).await;
    let plans = [Plan::FailTimes(1), Plan::FailTimes(2), Plan::FailTimes(9), Plan::Succeed];
    let ids = orders::publish(&env.kafka, "tiers.orders", &plans).await;
    let run = Run::start(&env, &["tiers"]);
    eventually(LIMIT, "the dead letter", async || env.kafka.read_all("tiers.dlq").await.len() == 1).await;
    eventually(LIMIT, "the others", async || orders::effect_count(&env.pool, "tiers").await == 3).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "tiers", &[ids[0], ids[1], ids[3]]).await;
    assert_eq!(env.kafka.read_all("tiers.retry.300ms").await.len(), 3);
    assert_eq!(env.kafka.read_all("tiers.retry.600ms").await.len(), 2);
    let waited: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM max(at) - min(at))::float8 FROM effect WHERE consumer_group = 'tiers' AND number IN (1, 3)",
    )
    .fetch_one(&env.pool)
    .await
    .unwrap();
    assert!(waited > 0.8, "two failures wait 300 ms and 600 ms, not {waited} s");
}

#[idempotent_handler(topic = "shared.orders", group = "shared-a", retry = ["200ms"])]
async fn shared_a(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "shared-a").await
}

#[idempotent_handler(topic = "shared.orders", group = "shared-b", retry = ["200ms"])]
async fn shared_b(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, Order { plan: Plan::Succeed, ..order }, &delivery, "shared-b").await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_group_that_failed_sees_the_retry() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("shared.orders", 1).await;
    let ids = orders::publish(&env.kafka, "shared.orders", &[Plan::FailTimes(1)]).await;
    let run = Run::start(&env, &["shared-a", "shared-b"]);
    eventually(LIMIT, "the retry", async || orders::effect_count(&env.pool, "shared-a").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "shared-a", &ids).await;
    orders::assert_each_once(&env.pool, "shared-b", &ids).await;
    assert_eq!(env.kafka.read_all("shared-a.retry.200ms").await.len(), 1);
    assert_eq!(env.kafka.read_all("shared-b.retry.200ms").await, []);
}

#[idempotent_handler(topic = "refused.orders", group = "refused", retry = ["100ms"])]
async fn refused(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "refused").await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_offset_is_committed_before_the_dead_letter_is_acknowledged() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("refused.orders", 1).await;
    let first = orders::publish(&env.kafka, "refused.orders", &[Plan::Succeed]).await;
    let run = Run::start(&env, &["refused"]);
    let committed =
        async || env.kafka.committed("refused", "refused.orders").await.get(&0).map(|committed| committed.offset);
    eventually(LIMIT, "the first order", async || committed().await == Some(1)).await;
    env.kafka.delete_topic("refused.dlq").await;
    let rest = orders::publish(&env.kafka, "refused.orders", &[Plan::Refuse, Plan::Succeed]).await;
    let ids = [first, rest].concat();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(committed().await, Some(1), "the letter is not acknowledged");
    assert!(!run.is_over());
    env.kafka.create_topic("refused.dlq", 1).await;
    eventually(LIMIT, "the offset to pass", async || committed().await == Some(3)).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "refused", &[ids[0], ids[2]]).await;
    assert!(!env.kafka.read_all("refused.dlq").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_topics_are_named_in_one_error_when_they_may_not_be_created() {
    let env = TestEnv::new().await.with("IDEM_CREATE_TOPICS", "false").with("IDEM_RETRY", "1s");
    env.kafka.create_topic("uncreated.orders", 3).await;
    let error = Run::start(&env, &["uncreated"]).ended(LIMIT).await.expect_err("topics are missing").to_string();
    for topic in ["uncreated.retry.1s", "uncreated.replay", "uncreated.dlq"] {
        assert!(error.contains(&format!("topic `{topic}` is missing: create it (3 partitions")), "{error}");
    }
    assert!(error.contains("retention.ms=-1"), "{error}");
}

#[idempotent_handler(topic = "uncreated.orders", group = "uncreated")]
async fn uncreated(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "uncreated").await
}

#[derive(Debug, serde::Deserialize, Event)]
struct Cancelled {
    event_id: EventId,
}

#[idempotent_handler(topic = "typed.orders", group = "typed", event_type = "created")]
async fn typed_created(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "typed").await
}

#[idempotent_handler(topic = "typed.orders", group = "typed", event_type = "cancelled")]
async fn typed_cancelled(tx: &mut Tx<'_>, event: Cancelled, delivery: Delivery) -> HandlerResult {
    let order = Order { event_id: event.event_id, number: -1, plan: Plan::Succeed };
    orders::handle(tx, order, &delivery, "typed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_of_one_topic_are_told_apart_by_the_event_type() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("typed.orders", 1).await;
    for (unmatched, letters, end) in [("skip", 0, 4), ("dlq", 2, 8)] {
        let env = env.clone().with("IDEM_UNMATCHED", unmatched);
        let types = [r#""created""#, r#""cancelled""#, r#""shipped""#, "null"];
        let ids = types.map(|_| EventId::now().uuid());
        for (id, event_type) in ids.iter().zip(types) {
            let value = format!(r#"{{"event_id":"{id}","event_type":{event_type}}}"#);
            env.kafka.produce(Record::to("typed.orders").value(&value)).await;
        }
        let run = Run::start(&env, &["typed"]);
        eventually(LIMIT, "the offset to pass all", async || {
            env.kafka.committed("typed", "typed.orders").await.get(&0).is_some_and(|committed| committed.offset == end)
        })
        .await;
        run.stop().await.unwrap();
        let effects = orders::effects(&env.pool, "typed").await;
        assert_eq!(ids.map(|id| effects.get(&id).copied()), [Some(1), Some(1), None, None]);
        let cancelled: i64 = sqlx::query_scalar("SELECT number FROM effect WHERE event_id = $1")
            .bind(ids[1])
            .fetch_one(&env.pool)
            .await
            .unwrap();
        assert_eq!(cancelled, -1, "its own handler took it");
        let found = env.kafka.read_all("typed.dlq").await;
        assert_eq!(found.len(), letters);
        assert!(found.iter().all(|letter| letter.header("idem-reason").as_deref() == Some("unmatched")));
    }
}

#[idempotent_handler(topic = "orphaned.orders", group = "orphaned", retry = ["1s"])]
async fn orphaned(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "orphaned").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_whose_handler_is_gone_is_dead_lettered_not_skipped() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("orphaned.orders", 1).await;
    env.kafka.create_topic("orphaned.retry.1s", 1).await;
    let origin = [("topic", "retired.orders"), ("partition", "3"), ("offset", "7")];
    let (_, value) = orders::order(0, &Plan::Succeed);
    let mut record = Record::to("orphaned.retry.1s").value(&value).header("idem-attempt", Some(b"1"));
    for (name, value) in origin {
        record = record.header(format!("idem-origin-{name}"), Some(value.as_bytes()));
    }
    env.kafka.produce(record).await;
    // One that says nothing of its origin, and one whose clock was far ahead.
    env.kafka.produce(Record::to("orphaned.retry.1s").value(&value)).await;
    let (late, value) = orders::order(1, &Plan::Succeed);
    let record = Record::to("orphaned.retry.1s")
        .value(&value)
        .header("idem-attempt", Some(b"1"))
        .header("idem-due-at", Some(b"99999999999999"))
        .header("idem-origin-topic", Some(b"orphaned.orders"))
        .header("idem-origin-partition", Some(b"0"))
        .header("idem-origin-offset", Some(b"0"));
    env.kafka.produce(record).await;
    let run = Run::start(&env, &["orphaned"]);
    eventually(LIMIT, "the third", async || orders::effect_count(&env.pool, "orphaned").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "orphaned", &[late]).await;
    let letters = env.kafka.read_all("orphaned.dlq").await;
    let reasons: Vec<_> = letters.iter().map(|letter| letter.header("idem-reason").unwrap()).collect();
    assert_eq!(reasons, ["unmatched", "unparsable"]);
    assert_eq!(letters[0].header("idem-origin-topic").as_deref(), Some("retired.orders"));
}

#[idempotent_handler(topic = "stamped.orders", group = "stamped")]
async fn stamped(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "stamped").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timestamp_that_is_no_time_stops_nothing() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    let any_time = [("message.timestamp.after.max.ms", "9223372036854775807")];
    env.kafka.create_topic_with_config("stamped.orders", 1, &any_time).await;
    let (id, value) = orders::order(0, &Plan::Succeed);
    env.kafka.produce(Record::to("stamped.orders").value(&value).timestamp(1_764_000_000_000_000_000)).await;
    let run = Run::start(&env, &["stamped"]);
    eventually(LIMIT, "the offset", async || {
        env.kafka.committed("stamped", "stamped.orders").await.get(&0).is_some_and(|committed| committed.offset == 1)
    })
    .await;
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "stamped", &[id]).await;
}
