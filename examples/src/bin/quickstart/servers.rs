//! Broker and database: the ones that the environment names, else some of one's own.

use idem_runtime::testing::{MockBroker, Postgres};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use crate::error::QuickstartError;
use crate::handlers::{GROUPS, RETRIES, TOPIC};
use crate::progress::Progress;
use crate::topics;

const PARTITIONS: i32 = 4;

/// The servers of the demonstration. Those that it started end with it.
pub struct Servers {
    database: Database,
    broker: Broker,
}

enum Database {
    Own { url: String, _server: Box<Postgres> },
    Existing(String),
}

enum Broker {
    Mock(MockBroker),
    Existing(String),
}

impl Servers {
    /// Starts what the environment does not name, and creates the topic that is published to.
    pub async fn start(progress: &Progress) -> Result<Self, QuickstartError> {
        let database = match std::env::var("IDEM_DATABASE_URL") {
            Ok(url) => Database::Existing(url),
            Err(_) => {
                progress.say("starting PostgreSQL (downloaded first if this machine has none)");
                let server = Postgres::start().await?;
                Database::Own { url: server.create_database("quickstart").await?, _server: Box::new(server) }
            }
        };
        let broker = match std::env::var("IDEM_KAFKA_BROKERS") {
            Ok(brokers) => Broker::Existing(brokers),
            Err(_) => Broker::Mock(MockBroker::start()?),
        };
        let servers = Self { database, broker };
        servers.create_topics().await?;
        Ok(servers)
    }

    pub fn database_url(&self) -> &str {
        match &self.database {
            Database::Own { url, .. } | Database::Existing(url) => url,
        }
    }

    pub fn brokers(&self) -> &str {
        match &self.broker {
            Broker::Mock(broker) => broker.bootstrap_servers(),
            Broker::Existing(brokers) => brokers,
        }
    }

    /// The environment of the consumer process.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("IDEM_DATABASE_URL", self.database_url().to_owned()),
            ("IDEM_KAFKA_BROKERS", self.brokers().to_owned()),
            ("IDEM_SHUTDOWN_GRACE", "10s".to_owned()),
            // One after the other, and somebody's own program may have the port.
            ("IDEM_ADMIN_ADDR", "off".to_owned()),
        ];
        let said = |variable| std::env::var_os(variable).is_some();
        if !said("IDEM_KAFKA_SESSION_TIMEOUT_MS") && !said("IDEM_KAFKA_GROUP_PROTOCOL") {
            // After a crash the group waits until the old member's session has run out.
            variables.push(("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000".to_owned()));
        }
        variables
    }

    /// A configuration for this program's own clients, with the same credentials as the handlers'.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (variable, value) in std::env::vars() {
            let Some(property) = variable.strip_prefix("IDEM_KAFKA_") else { continue };
            if ["SECURITY_", "SASL_", "SSL_"].iter().any(|credentials| property.starts_with(credentials)) {
                config.set(property.to_lowercase().replace('_', "."), value);
            }
        }
        config.set("bootstrap.servers", self.brokers());
        config
    }

    /// The mock cluster can't create topics for clients, so the groups' own are made here too.
    async fn create_topics(&self) -> Result<(), QuickstartError> {
        match &self.broker {
            Broker::Mock(broker) => {
                broker.create_topic(TOPIC, PARTITIONS)?;
                for topic in GROUPS.iter().flat_map(|group| group_topics(group)) {
                    broker.create_topic(&topic, PARTITIONS)?;
                }
                Ok(())
            }
            Broker::Existing(_) => self.create_main_topic().await,
        }
    }

    async fn create_main_topic(&self) -> Result<(), QuickstartError> {
        let failed = || QuickstartError::kafka(format!("create the topic {TOPIC}"));
        let client = self.client();
        let there =
            tokio::task::spawn_blocking(move || topics::exists(&topics::observer(&client, "quickstart")?, TOPIC));
        // Not even asked for where it exists: not every user, or broker, may create topics.
        if there.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic())).map_err(failed())? {
            return Ok(());
        }
        let admin: AdminClient<DefaultClientContext> = self.client().create().map_err(failed())?;
        // -1: as many replicas as the broker's own default.
        let topic = NewTopic::new(TOPIC, PARTITIONS, TopicReplication::Fixed(-1));
        for outcome in admin.create_topics([&topic], &AdminOptions::new()).await.map_err(failed())? {
            match outcome {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((_, code)) => return Err(failed()(KafkaError::AdminOp(code))),
            }
        }
        Ok(())
    }
}

/// The retry topics of a group.
pub fn retry_topics(group: &str) -> impl Iterator<Item = String> {
    RETRIES.iter().map(move |delay| format!("{group}.retry.{delay}"))
}

/// The dead letter queue of a group.
pub fn dead_letter_topic(group: &str) -> String {
    format!("{group}.dlq")
}

/// All topics that the library keeps for a group.
fn group_topics(group: &str) -> impl Iterator<Item = String> {
    retry_topics(group).chain([format!("{group}.replay"), dead_letter_topic(group)])
}
