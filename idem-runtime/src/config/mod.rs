//! Settings, read from the environment or given to the builder.

mod admin;
mod error;
mod kafka;
mod layers;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

pub(crate) use self::admin::AdminSettings;
#[cfg(feature = "admin")]
pub(crate) use self::admin::Secret;
pub use self::error::{ConfigError, ConfigErrors};
pub(crate) use self::layers::Source;
use self::reader::Reader;
use crate::decide::money_key::Format as KeyFormat;

/// The settings of a run.
///
/// [`Config::from_env`] reads the process's environment; [`Config::from_vars`] reads the same names
/// from anywhere else. All mistakes are reported together.
///
/// ```
/// use idem_runtime::Config;
///
/// let config = Config::from_vars([
///     ("IDEM_DATABASE_URL", "postgres://app:secret@127.0.0.1/app"),
///     ("IDEM_KAFKA_BROKERS", "127.0.0.1:9092"),
///     ("IDEM_RETRY", "1s,1m"),
/// ]).unwrap();
/// assert!(!format!("{config:?}").contains("secret"));
///
/// let errors = Config::from_vars([("IDEM_POOL_SIZE", "many")]).unwrap_err();
/// assert_eq!(errors.0.len(), 3); // database and brokers are missing too
/// ```
#[derive(Clone)]
pub struct Config {
    /// Of all sessions: none can go through a pooler that shares them.
    pub(crate) database: PgConnectOptions,
    pub(crate) pool_size: u32,
    pub(crate) brokers: String,
    pub(crate) client_id: String,
    pub(crate) kafka: BTreeMap<String, String>,
    pub(crate) auto_offset_reset: OffsetReset,
    pub(crate) unmatched: Unmatched,
    pub(crate) retry: Vec<Duration>,
    pub(crate) clock_skew: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) migrate: bool,
    pub(crate) create_topics: bool,
    pub(crate) shutdown_grace: Duration,
    pub(crate) error_text: bool,
    pub(crate) accept_database: Option<Uuid>,
    pub(crate) dedup_window: Duration,
    pub(crate) strict: bool,
    /// Dead letters of one reason in a row that stop a lane; `None`: never.
    pub(crate) dlq_brake: Option<u32>,
    /// Bytes for buffers of records; see [`Config::queue_memory`] and [`Config::prefetch`].
    pub(crate) memory: usize,
    /// Where money calls without a URL of their own go.
    pub(crate) money_base_url: Option<String>,
    /// Longest time for one money call.
    pub(crate) money_timeout: Duration,
    /// How long the provider remembers a key.
    pub(crate) money_key_ttl: Duration,
    pub(crate) money_key_format: KeyFormat,
    /// Whether this process relays the outbox when nobody else does.
    pub(crate) relay: bool,
    /// How long after the end of a relay what it queued may still be sent.
    pub(crate) relay_timeout: Duration,
    /// The admin server; none: it is off.
    pub(crate) admin: Option<AdminSettings>,
    /// Topics of whose records nobody is shown key, value or headers.
    pub(crate) restricted: BTreeSet<String>,
    /// Where each variable that was given stands.
    pub(crate) sources: BTreeMap<String, Source>,
}

/// Where a group starts on a topic that neither Kafka nor the database knows it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OffsetReset {
    Earliest,
    Latest,
}

/// What happens to an event whose `event_type` no handler takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmatched {
    Skip,
    DeadLetter,
}

impl Config {
    /// What the lanes' queues of the process hold together. Half of `IDEM_MEMORY`: prefetched records and
    /// fetches under way need the same again.
    pub(crate) fn queue_memory(&self) -> usize {
        self.memory / 2
    }

    /// What each of so many consumers may prefetch: an eighth of `IDEM_MEMORY` for all of them.
    pub(crate) fn prefetch(&self, consumers: usize) -> usize {
        (self.memory / 8 / consumers.max(1)).max(256 * 1024)
    }

    /// Reads the process's environment, and the TOML file that `IDEM_CONFIG` names, if it is set. What the
    /// environment says wins over the file.
    ///
    /// In the file, names are without `IDEM_` and in lower case, and tables are prefixes: `pool_size = 32`, or
    /// `brokers` in `[kafka]`. Any variable with `_FILE` at its end names a file that holds the value, such as
    /// `IDEM_DATABASE_URL_FILE=/run/secrets/database-url`.
    ///
    /// # Errors
    /// All missing, unusable and unknown variables.
    pub fn from_env() -> Result<Self, ConfigErrors> {
        Self::read(environment()?, BTreeMap::new())
    }

    /// Reads the same variables from any list. Names that begin otherwise than `IDEM_` are ignored.
    ///
    /// # Errors
    /// All missing, unusable and unknown variables.
    pub fn from_vars<K: Into<String>, V: Into<String>>(
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigErrors> {
        Self::read(vars.into_iter().map(|(name, value)| (name.into(), value.into())).collect(), BTreeMap::new())
    }

    /// The environment, and above it what the program says.
    pub(crate) fn from_env_and(program: BTreeMap<String, String>) -> Result<Self, ConfigErrors> {
        Self::read(environment()?, program)
    }

    fn read(environment: BTreeMap<String, String>, program: BTreeMap<String, String>) -> Result<Self, ConfigErrors> {
        let (vars, errors) = layers::merge(environment, program);
        let mut reader = Reader { vars, errors, known: BTreeSet::from([layers::FILE.to_owned()]) };
        // Each is asked for, so that none counts as unknown.
        let given = ["IDEM_DATABASE_DIRECT_URL", "IDEM_DATABASE_URL", "DATABASE_URL"]
            .map(|name| reader.text(name).map(|_| name));
        let variable = given.into_iter().flatten().next();
        let database = match variable {
            Some(variable) => reader.parsed(variable, "a URL such as postgres://user:password@host:5432/database"),
            None => {
                reader.error("IDEM_DATABASE_URL", "is not set (nor is DATABASE_URL): give the PostgreSQL URL");
                None
            }
        };
        let brokers = reader.text("IDEM_KAFKA_BROKERS");
        if brokers.is_none() {
            reader.error("IDEM_KAFKA_BROKERS", "is not set: give the brokers, such as kafka-1:9092,kafka-2:9092");
        }
        let accept_database = reader.parsed("IDEM_ACCEPT_DATABASE", "the lineage id that the error named, a UUID");
        let kafka = reader.kafka_properties();
        let config = Self {
            database: database.unwrap_or_default(),
            pool_size: reader.number("IDEM_POOL_SIZE", 16, 1..=10_000),
            brokers: brokers.unwrap_or_default(),
            client_id: reader.text("IDEM_CLIENT_ID").unwrap_or_else(program_name),
            kafka,
            auto_offset_reset: reader.one_of(
                "IDEM_AUTO_OFFSET_RESET",
                &[("earliest", OffsetReset::Earliest), ("latest", OffsetReset::Latest)],
            ),
            unmatched: reader.one_of("IDEM_UNMATCHED", &[("skip", Unmatched::Skip), ("dlq", Unmatched::DeadLetter)]),
            retry: reader.tiers("IDEM_RETRY", "1s,10s,1m,10m"),
            clock_skew: reader.clock_skew(),
            max_hold: reader.duration("IDEM_DEDUP_MAX_HOLD", "30d"),
            migrate: reader.flag("IDEM_MIGRATE", true),
            create_topics: reader.flag("IDEM_CREATE_TOPICS", true),
            shutdown_grace: reader.duration("IDEM_SHUTDOWN_GRACE", "25s"),
            error_text: reader.flag("IDEM_ERROR_TEXT", false),
            accept_database,
            dedup_window: reader.duration("IDEM_DEDUP_WINDOW", "7d"),
            strict: reader.flag("IDEM_STRICT", false),
            dlq_brake: match reader.text("IDEM_DLQ_BRAKE").as_deref() {
                Some("off") => None,
                _ => Some(reader.number("IDEM_DLQ_BRAKE", 100, 1..=1_000_000)),
            },
            memory: reader.bytes("IDEM_MEMORY", "64MiB"),
            money_base_url: reader.base_url("IDEM_MONEY_BASE_URL"),
            money_timeout: reader.money_timeout(),
            money_key_ttl: reader.positive("IDEM_MONEY_KEY_TTL", "24h"),
            money_key_format: reader
                .one_of("IDEM_MONEY_KEY_FORMAT", &[("bare", KeyFormat::Bare), ("quoted", KeyFormat::Quoted)]),
            relay: reader.flag("IDEM_RELAY", true),
            relay_timeout: reader.relay_timeout(),
            admin: reader.admin(),
            restricted: reader.list("IDEM_RESTRICTED_TOPICS").into_iter().collect(),
            sources: BTreeMap::new(),
        };
        reader.refuse_unknown();
        if config.dedup_window <= config.clock_skew && reader.errors.is_empty() {
            reader.error(
                "IDEM_DEDUP_WINDOW",
                "is not longer than IDEM_DEDUP_CLOCK_SKEW: new events would look forgotten",
            );
        }
        if !reader.errors.is_empty() {
            return Err(ConfigErrors(reader.errors));
        }
        Ok(Self { sources: reader.vars.into_iter().map(|(name, given)| (name, given.source)).collect(), ..config })
    }
}

/// The process's environment. Of what is no text, names of others are nobody's business here.
fn environment() -> Result<BTreeMap<String, String>, ConfigErrors> {
    let mut variables = BTreeMap::new();
    let mut errors = Vec::new();
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => drop(variables.insert(name, value)),
            Err(_) if name.starts_with("IDEM_") => {
                errors.push(ConfigError { variable: name, problem: "is no UTF-8".to_owned() });
            }
            Err(_) => {}
        }
    }
    if errors.is_empty() { Ok(variables) } else { Err(ConfigErrors(errors)) }
}

/// Whether spans are to be exported, by the variables of OpenTelemetry.
#[cfg(feature = "otlp")]
#[allow(clippy::disallowed_methods, reason = "the one module that reads the environment")]
pub(crate) fn has_otlp_endpoint() -> bool {
    let is_set = |name| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
    let is_disabled = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    !is_disabled && (is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
}

/// Every secret lives in the database's options, in a Kafka property, or is a `Secret`: the first prints only
/// where it points, of the second only the names are printed.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = format!(
            "postgres://[redacted]@{}:{}/{}",
            self.database.get_host(),
            self.database.get_port(),
            self.database.get_database().unwrap_or_default()
        );
        f.debug_struct("Config")
            .field("database", &database)
            .field("pool_size", &self.pool_size)
            .field("brokers", &self.brokers)
            .field("client_id", &self.client_id)
            .field("kafka", &self.kafka.keys())
            .field("auto_offset_reset", &self.auto_offset_reset)
            .field("unmatched", &self.unmatched)
            .field("retry", &self.retry)
            .field("clock_skew", &self.clock_skew)
            .field("max_hold", &self.max_hold)
            .field("migrate", &self.migrate)
            .field("create_topics", &self.create_topics)
            .field("shutdown_grace", &self.shutdown_grace)
            .field("error_text", &self.error_text)
            .field("accept_database", &self.accept_database)
            .field("dedup_window", &self.dedup_window)
            .field("strict", &self.strict)
            .field("dlq_brake", &self.dlq_brake)
            .field("memory", &self.memory)
            .field("money_base_url", &self.money_base_url)
            .field("money_timeout", &self.money_timeout)
            .field("money_key_ttl", &self.money_key_ttl)
            .field("money_key_format", &self.money_key_format)
            .field("relay", &self.relay)
            .field("relay_timeout", &self.relay_timeout)
            .field("admin", &self.admin)
            .field("restricted", &self.restricted)
            .finish()
    }
}

pub(crate) fn program_name() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .unwrap_or_else(|| "idem".to_owned())
}
