//! Broker and database, which end with this process.

use idem_runtime::testing::{MockBroker, Postgres, free_port};

use crate::Error;
use crate::handlers::{CONFIRMED, GROUPS, PAID, RETRIES};

pub const PARTITIONS: i32 = 4;

pub struct Servers {
    pub database_url: String,
    broker: MockBroker,
    service_port: u16,
    _postgres: Postgres,
}

impl Servers {
    pub async fn start() -> Result<Self, Error> {
        eprintln!("starting PostgreSQL (downloaded first if this machine has none)");
        let postgres = Postgres::start().await?;
        let database_url = postgres.create_database("orders").await?;
        let broker = MockBroker::start()?;
        // The mock cluster creates no topics for clients, so the groups' own are made here too.
        let own = |group: &'static str| {
            let retries = RETRIES.map(|delay| format!("{group}.retry.{delay}"));
            retries.into_iter().chain([format!("{group}.replay"), format!("{group}.dlq")])
        };
        for topic in GROUPS.into_iter().flat_map(own).chain([CONFIRMED.to_owned(), PAID.to_owned()]) {
            broker.create_topic(&topic, PARTITIONS)?;
        }
        Ok(Self { database_url, broker, service_port: free_port()?, _postgres: postgres })
    }

    pub fn brokers(&self) -> &str {
        self.broker.bootstrap_servers()
    }

    fn service_address(&self) -> String {
        format!("127.0.0.1:{}", self.service_port)
    }

    pub fn service_url(&self) -> String {
        format!("http://{}", self.service_address())
    }

    /// The environment of both processes.
    pub fn variables(&self) -> [(&'static str, String); 8] {
        [
            ("IDEM_DATABASE_URL", self.database_url.clone()),
            ("IDEM_ADMIN_ADDR", "off".to_owned()),
            ("IDEM_KAFKA_BROKERS", self.brokers().to_owned()),
            // After a crash the group waits until the old member's session has run out, and the next relay until
            // nothing late of the old one can come.
            ("IDEM_KAFKA_SESSION_TIMEOUT_MS", "2500".to_owned()),
            ("IDEM_KAFKA_HEARTBEAT_INTERVAL_MS", "500".to_owned()),
            ("IDEM_RELAY_TIMEOUT", "1s".to_owned()),
            ("IDEM_SHUTDOWN_GRACE", "10s".to_owned()),
            ("SERVICE_ADDRESS", self.service_address()),
        ]
    }
}
