//! A PgBouncer in transaction mode: refused with the reason, and gone past with a direct address.

use std::time::Duration;

use idem_runtime::prelude::*;
use tests::orders::{self, Order, Plan};
use tests::{PgBouncer, Run, TestEnv, eventually, postgres};

const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
struct Told {
    event_id: EventId,
    number: i64,
}

#[idempotent_handler(topic = "pooled.orders", group = "pooled", retry = ["200ms"])]
async fn pooled(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    let number = order.number;
    orders::handle(tx, order, &delivery, "pooled").await?;
    tx.publish("pooled.told", number, |event_id| Told { event_id, number }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_refused_with_the_reason_and_a_direct_address_leads_past_it() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    for topic in ["pooled.orders", "pooled.told"] {
        env.kafka.create_topic(topic, 1).await;
    }
    let database = env.database_url.rsplit('/').next().unwrap();
    let server = postgres::shared().await.port();
    // As it is by default; and as people set it up so that clients can connect that want something.
    for ignored in ["", "options, extra_float_digits"] {
        let pooler = PgBouncer::start(server, &[("ignore_startup_parameters", ignored)]).await;
        let through = env.clone().with("IDEM_DATABASE_URL", &pooler.url(database, "sentinel"));
        // Twice: what the first left on the server's session does not hide the reason.
        for _ in 0..2 {
            let refused = Run::start(&through, &["pooled"]).ended(LIMIT).await.unwrap_err().to_string();
            assert!(refused.contains("PgBouncer") && refused.contains("IDEM_DATABASE_DIRECT_URL"), "{refused}");
            assert!(!refused.contains("sentinel"), "{refused}");
        }
        let past = through.with("IDEM_DATABASE_DIRECT_URL", &env.database_url);
        let run = Run::start(&past, &["pooled"]);
        let before = orders::effect_count(&env.pool, "pooled").await;
        orders::publish(&env.kafka, "pooled.orders", &[Plan::Succeed, Plan::FailTimes(1)]).await;
        eventually(LIMIT, "the effects", async || orders::effect_count(&env.pool, "pooled").await == before + 2).await;
        let told = async || env.kafka.read_all("pooled.told").await.len();
        eventually(LIMIT, "what was published", async || told().await == before + 2).await;
        run.stop().await.unwrap();
    }
}
