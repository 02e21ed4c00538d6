//! Broker, database and payment provider, which end with this process.

use std::time::Duration;

use idem_runtime::testing::{MockBroker, Postgres, Provider};

use crate::Error;
use crate::handlers::{GROUP, RETRIES, TOPIC};

const PARTITIONS: i32 = 4;
/// Answers that the provider loses after charging.
const LOST: f64 = 0.05;
/// How long it takes to charge.
const LATENCY: Duration = Duration::from_millis(50);

pub struct Servers {
    pub provider: Provider,
    pub database_url: String,
    broker: MockBroker,
    _postgres: Postgres,
}

impl Servers {
    pub async fn start() -> Result<Self, Error> {
        eprintln!("starting PostgreSQL (downloaded first if this machine has none)");
        let postgres = Postgres::start().await?;
        let database_url = postgres.create_database("money").await?;
        let broker = MockBroker::start()?;
        // The mock cluster creates no topics for clients, so the group's own are made here too.
        let retries = RETRIES.iter().map(|delay| format!("{GROUP}.retry.{delay}"));
        for topic in retries.chain([TOPIC.to_owned(), format!("{GROUP}.replay"), format!("{GROUP}.dlq")]) {
            broker.create_topic(&topic, PARTITIONS)?;
        }
        let provider = Provider::start().await?;
        provider.lose_answers(LOST);
        provider.charge_in(LATENCY);
        Ok(Self { provider, database_url, broker, _postgres: postgres })
    }

    pub fn brokers(&self) -> &str {
        self.broker.bootstrap_servers()
    }

    /// The environment of a consumer process.
    pub fn variables(&self) -> [(&'static str, String); 7] {
        [
            ("IDEM_DATABASE_URL", self.database_url.clone()),
            ("IDEM_KAFKA_BROKERS", self.brokers().to_owned()),
            // After a crash the group waits until the old member's session has run out.
            ("IDEM_KAFKA_SESSION_TIMEOUT_MS", "2500".to_owned()),
            ("IDEM_KAFKA_HEARTBEAT_INTERVAL_MS", "500".to_owned()),
            ("IDEM_SHUTDOWN_GRACE", "10s".to_owned()),
            // Two processes side by side, and one port by default.
            ("IDEM_ADMIN_ADDR", "off".to_owned()),
            ("IDEM_MONEY_BASE_URL", self.provider.url()),
        ]
    }
}
