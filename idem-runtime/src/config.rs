//! Settings, read from the environment or given to the builder.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use crate::decide::money::LONGEST_CALL;
use crate::decide::money_key::Format as KeyFormat;
use crate::decide::retry;

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
    /// For sessions that can't go through a pooler which shares them.
    pub(crate) database_direct: Option<PgConnectOptions>,
    /// Whether this process relays the outbox when nobody else does.
    pub(crate) relay: bool,
    /// How long after the end of a relay what it queued may still be sent.
    pub(crate) relay_timeout: Duration,
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

/// Everything that is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} wrong setting{}", self.0.len(), if self.0.len() == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|error| write!(f, "\n  - {error}"))
    }
}

impl std::error::Error for ConfigErrors {}

/// One wrong setting. The value is not repeated: it may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct ConfigError {
    /// The variable's name.
    pub variable: String,
    /// What is wrong, and what to write instead.
    pub problem: String,
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

    /// Reads the process's environment.
    ///
    /// # Errors
    /// All missing and unusable variables.
    pub fn from_env() -> Result<Self, ConfigErrors> {
        #[allow(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let vars =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self::from_vars(vars)
    }

    /// Reads the same variables from any list; names that are no setting are ignored.
    ///
    /// # Errors
    /// All missing and unusable variables.
    pub fn from_vars<K: Into<String>, V: Into<String>>(
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigErrors> {
        let vars = vars.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let mut reader = Reader { vars, errors: Vec::new() };
        let database_variable =
            if reader.vars.contains_key("IDEM_DATABASE_URL") { "IDEM_DATABASE_URL" } else { "DATABASE_URL" };
        let database = match reader.vars.get(database_variable) {
            Some(_) => reader.parsed(database_variable, "a URL such as postgres://user:password@host:5432/database"),
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
        let database_direct =
            reader.parsed("IDEM_DATABASE_DIRECT_URL", "a URL such as postgres://user:password@host:5432/database");
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
            database_direct,
            relay: reader.flag("IDEM_RELAY", true),
            relay_timeout: reader.relay_timeout(),
        };
        if config.dedup_window <= config.clock_skew && reader.errors.is_empty() {
            reader.error(
                "IDEM_DEDUP_WINDOW",
                "is not longer than IDEM_DEDUP_CLOCK_SKEW: new events would look forgotten",
            );
        }
        if reader.errors.is_empty() { Ok(config) } else { Err(ConfigErrors(reader.errors)) }
    }
}

/// Every secret lives in the database's options or in a Kafka property: the first prints only where
/// it points, of the second only the names are printed.
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
            .field("database_direct", &self.database_direct.as_ref().map(PgConnectOptions::get_host))
            .field("relay", &self.relay)
            .field("relay_timeout", &self.relay_timeout)
            .finish()
    }
}

fn program_name() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .unwrap_or_else(|| "idem".to_owned())
}

/// librdkafka properties that the library sets itself, and why.
const RESERVED: &[(&str, &str)] = &[
    ("enable.auto.commit", "offsets are committed only after the database"),
    ("enable.auto.offset.store", "offsets are committed only after the database"),
    ("auto.commit.interval.ms", "offsets are committed only after the database"),
    ("auto.offset.reset", "the library decides the position: use IDEM_AUTO_OFFSET_RESET"),
    ("group.id", "a handler names its group"),
    ("partition.assignment.strategy", "every member of a group must be cooperative-sticky"),
    ("bootstrap.servers", "use IDEM_KAFKA_BROKERS"),
    ("metadata.broker.list", "use IDEM_KAFKA_BROKERS"),
    ("client.id", "use IDEM_CLIENT_ID"),
    ("acks", "retries and dead letters must be acknowledged by all replicas"),
    ("request.required.acks", "retries and dead letters must be acknowledged by all replicas"),
    ("enable.idempotence", "the producer is always idempotent"),
    ("message.timeout.ms", "the library bounds a delivery itself"),
    ("delivery.timeout.ms", "the library bounds a delivery itself"),
    ("delivery.report.only.error", "the library waits for every acknowledgement"),
    ("partitioner", "a key's partition must be the one that the Java client chooses"),
    ("max.in.flight", "the producer is always idempotent"),
    ("max.in.flight.requests.per.connection", "the producer is always idempotent"),
];

/// The dedup table needs a partition for each day that an id may lie ahead.
const LONGEST_SKEW: Duration = Duration::from_secs(364 * 86_400);

const LEAST_MEMORY: usize = 1024 * 1024;

/// A whole number of bytes, or of a unit of them: 1 KiB has 1,024, 1 kB has 1,000.
fn parse_bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: usize = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

struct Reader {
    vars: BTreeMap<String, String>,
    errors: Vec<ConfigError>,
}

impl Reader {
    fn error(&mut self, variable: &str, problem: impl Into<String>) {
        self.errors.push(ConfigError { variable: variable.to_owned(), problem: problem.into() });
    }

    fn text(&self, variable: &str) -> Option<String> {
        self.vars.get(variable).filter(|value| !value.is_empty()).cloned()
    }

    fn parsed<T: FromStr>(&mut self, variable: &str, wanted: &str) -> Option<T> {
        let parsed = self.text(variable)?.parse().ok();
        if parsed.is_none() {
            self.error(variable, format!("is not {wanted}"));
        }
        parsed
    }

    fn number(&mut self, variable: &str, default: u32, range: std::ops::RangeInclusive<u32>) -> u32 {
        let Some(text) = self.text(variable) else { return default };
        match text.parse() {
            Ok(number) if range.contains(&number) => number,
            _ => {
                self.error(variable, format!("is not a number from {} to {}", range.start(), range.end()));
                default
            }
        }
    }

    fn flag(&mut self, variable: &str, default: bool) -> bool {
        match self.text(variable).as_deref() {
            None => default,
            Some("true") => true,
            Some("false") => false,
            Some(_) => {
                self.error(variable, "is neither true nor false");
                default
            }
        }
    }

    /// The value's meaning; the first of the list is the default.
    fn one_of<T: Copy>(&mut self, variable: &str, values: &[(&str, T)]) -> T {
        let default = values[0].1;
        let Some(text) = self.text(variable) else { return default };
        match values.iter().find(|(name, _)| *name == text) {
            Some((_, value)) => *value,
            None => {
                let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
                self.error(variable, format!("is not one of {}", names.join(", ")));
                default
            }
        }
    }

    fn duration(&mut self, variable: &str, default: &str) -> Duration {
        let text = self.text(variable).unwrap_or_else(|| default.to_owned());
        humantime::parse_duration(&text).unwrap_or_else(|_| {
            self.error(variable, "is no duration such as 500ms, 20s, 10m or 7d");
            Duration::ZERO
        })
    }

    fn bytes(&mut self, variable: &str, default: &str) -> usize {
        let text = self.text(variable).unwrap_or_else(|| default.to_owned());
        match parse_bytes(&text) {
            Some(bytes) if bytes >= LEAST_MEMORY => bytes,
            Some(_) => {
                self.error(variable, "is less than 1MiB");
                LEAST_MEMORY
            }
            None => {
                self.error(variable, "is no size such as 64MiB, 500MB, 1GiB or a number of bytes");
                LEAST_MEMORY
            }
        }
    }

    fn positive(&mut self, variable: &str, default: &str) -> Duration {
        let duration = self.duration(variable, default);
        if duration.is_zero() && self.errors.last().is_none_or(|error| error.variable != variable) {
            self.error(variable, "is zero");
        }
        duration
    }

    fn money_timeout(&mut self) -> Duration {
        let timeout = self.positive("IDEM_MONEY_TIMEOUT", "10s");
        if timeout > LONGEST_CALL {
            self.error("IDEM_MONEY_TIMEOUT", "is not shorter than a minute, after which a request counts as ended");
        }
        timeout
    }

    /// A provider's address. Credentials belong into a header, which nobody prints.
    fn base_url(&mut self, variable: &str) -> Option<String> {
        let url = self.text(variable)?;
        let rest = ["https://", "http://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let Some(rest) = rest.filter(|rest| !rest.is_empty() && !url.contains(char::is_whitespace)) else {
            self.error(variable, "is no URL such as https://api.provider.example/v1");
            return None;
        };
        if rest.contains(['@', '?', '#']) {
            self.error(variable, "holds more than host and path: credentials belong into a header of the request");
            return None;
        }
        Some(url)
    }

    /// Shorter than a second, a busy machine alone would end it.
    fn relay_timeout(&mut self) -> Duration {
        let timeout = self.duration("IDEM_RELAY_TIMEOUT", "10s");
        if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&timeout) {
            self.error("IDEM_RELAY_TIMEOUT", "is not from 1s to 5m");
        }
        timeout
    }

    fn clock_skew(&mut self) -> Duration {
        let skew = self.duration("IDEM_DEDUP_CLOCK_SKEW", "1d");
        if skew > LONGEST_SKEW {
            self.error("IDEM_DEDUP_CLOCK_SKEW", "is longer than a year: the dedup table has a partition for each day");
        }
        skew
    }

    fn tiers(&mut self, variable: &str, default: &str) -> Vec<Duration> {
        let text = self.vars.get(variable).cloned().unwrap_or_else(|| default.to_owned());
        let tiers: Result<Vec<_>, _> =
            text.split(',').map(str::trim).filter(|tier| !tier.is_empty()).map(humantime::parse_duration).collect();
        match tiers.map_err(|_| "is no list of durations such as 1s,10s,1m".to_owned()).and_then(|tiers| {
            retry::check_tiers(&tiers)?;
            Ok(tiers)
        }) {
            Ok(tiers) => tiers,
            Err(problem) => {
                self.error(variable, problem);
                Vec::new()
            }
        }
    }

    /// `IDEM_KAFKA_SECURITY_PROTOCOL` is librdkafka's `security.protocol`.
    fn kafka_properties(&mut self) -> BTreeMap<String, String> {
        let given: Vec<(String, String, String)> = self
            .vars
            .iter()
            .filter_map(|(variable, value)| {
                let property = variable.strip_prefix("IDEM_KAFKA_").filter(|rest| *rest != "BROKERS")?;
                Some((variable.clone(), property.to_ascii_lowercase().replace('_', "."), value.clone()))
            })
            .collect();
        let mut properties = BTreeMap::new();
        for (variable, property, value) in given {
            if let Some((_, why)) = RESERVED.iter().find(|(name, _)| *name == property) {
                self.error(&variable, format!("would break a promise of the library ({why}): remove it"));
            } else if let Err(why) = rdkafka::ClientConfig::new().set(&property, &value).create_native_config() {
                // librdkafka's text may quote the value, which may be a secret.
                let why = match why {
                    rdkafka::error::KafkaError::ClientConfig(code, _, _, _) => format!("{code:?}"),
                    _ => "refused".to_owned(),
                };
                self.error(&variable, format!("librdkafka does not take `{property}` with this value ({why})"));
            } else {
                properties.insert(property, value);
            }
        }
        properties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIRED: [(&str, &str); 2] = [("IDEM_DATABASE_URL", "postgres://u:p@h/d"), ("IDEM_KAFKA_BROKERS", "b:1")];

    fn with(extra: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
        Config::from_vars(REQUIRED.iter().chain(extra).copied())
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("64MiB", Some(67_108_864)),
            ("64 mib", Some(67_108_864)),
            ("500MB", Some(500_000_000)),
            ("1048576", Some(1_048_576)),
            ("2g", Some(2_147_483_648)),
            ("64MiBs", None),
            ("1.5GiB", None),
            ("-1", None),
            ("", None),
            ("99999999999999999999GiB", None),
        ] {
            assert_eq!(parse_bytes(text), bytes, "{text}");
        }
        let config = with(&[("IDEM_MEMORY", "128MiB")]).unwrap();
        assert_eq!((config.queue_memory(), config.prefetch(2)), (64 << 20, 8 << 20));
        assert!(with(&[("IDEM_MEMORY", "1023KiB")]).unwrap_err().to_string().contains("less than 1MiB"));
        assert!(with(&[("IDEM_MEMORY", "much")]).unwrap_err().to_string().contains("IDEM_MEMORY"));
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let config = with(&[]).unwrap();
        assert_eq!(
            (config.pool_size, config.migrate, config.create_topics, config.error_text),
            (16, true, true, false)
        );
        assert_eq!(config.retry, [1, 10, 60, 600].map(Duration::from_secs));
        assert_eq!(config.shutdown_grace, Duration::from_secs(25));
        assert_eq!(config.clock_skew, Duration::from_secs(86_400));
        assert_eq!((config.auto_offset_reset, config.unmatched), (OffsetReset::Earliest, Unmatched::Skip));
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let errors = Config::from_vars([
            ("IDEM_POOL_SIZE", "0"),
            ("IDEM_RETRY", "10s,1s"),
            ("IDEM_SHUTDOWN_GRACE", "soon"),
            ("IDEM_MIGRATE", "yes"),
            ("IDEM_AUTO_OFFSET_RESET", "none"),
            ("IDEM_KAFKA_ENABLE_AUTO_COMMIT", "true"),
            ("IDEM_KAFKA_NO_SUCH_PROPERTY", "1"),
            ("IDEM_ACCEPT_DATABASE", "me"),
        ])
        .unwrap_err();
        let text = errors.to_string();
        for variable in [
            "IDEM_DATABASE_URL",
            "IDEM_KAFKA_BROKERS",
            "IDEM_POOL_SIZE",
            "IDEM_RETRY",
            "IDEM_SHUTDOWN_GRACE",
            "IDEM_MIGRATE",
            "IDEM_AUTO_OFFSET_RESET",
            "IDEM_KAFKA_ENABLE_AUTO_COMMIT",
            "IDEM_KAFKA_NO_SUCH_PROPERTY",
            "IDEM_ACCEPT_DATABASE",
        ] {
            assert!(text.contains(variable), "{variable} is missing in:\n{text}");
        }
        assert_eq!(errors.0.len(), 10, "{text}");
    }

    #[test]
    fn money_settings_are_read_and_checked() {
        let config = with(&[("IDEM_MONEY_BASE_URL", "https://pay.example/v1")]).unwrap();
        assert_eq!(config.money_base_url.as_deref(), Some("https://pay.example/v1"));
        assert_eq!(
            (config.money_timeout, config.money_key_ttl),
            (Duration::from_secs(10), Duration::from_secs(86_400))
        );
        assert_eq!(config.money_key_format, KeyFormat::Bare);
        assert_eq!(with(&[("IDEM_MONEY_KEY_FORMAT", "quoted")]).unwrap().money_key_format, KeyFormat::Quoted);
        let wrong = [
            ("IDEM_MONEY_BASE_URL", "pay.example"),
            ("IDEM_MONEY_BASE_URL", "https://"),
            ("IDEM_MONEY_BASE_URL", "https://user:sentinel-4711@pay.example"),
            ("IDEM_MONEY_BASE_URL", "https://pay.example/?key=sentinel-4711"),
            ("IDEM_MONEY_TIMEOUT", "0s"),
            ("IDEM_MONEY_TIMEOUT", "never"),
            ("IDEM_MONEY_TIMEOUT", "60s"),
            ("IDEM_MONEY_KEY_TTL", "0s"),
            ("IDEM_MONEY_KEY_FORMAT", "single"),
        ];
        for (variable, value) in wrong {
            let errors = with(&[(variable, value)]).unwrap_err();
            assert_eq!(errors.0.len(), 1, "{errors}");
            assert!(errors.0[0].variable == variable && !errors.to_string().contains("sentinel"), "{errors}");
        }
    }

    #[test]
    fn relay_settings_are_read_and_checked() {
        let config = with(&[]).unwrap();
        assert_eq!((config.relay, config.relay_timeout), (true, Duration::from_secs(10)));
        assert!(config.database_direct.is_none());
        let direct =
            with(&[("IDEM_DATABASE_DIRECT_URL", "postgres://u:sentinel@direct/d"), ("IDEM_RELAY", "false")]).unwrap();
        assert!(
            !direct.relay && format!("{direct:?}").contains("direct") && !format!("{direct:?}").contains("sentinel")
        );
        for (variable, value) in
            [("IDEM_RELAY", "no"), ("IDEM_RELAY_TIMEOUT", "0s"), ("IDEM_KAFKA_PARTITIONER", "consistent_random")]
        {
            let errors = with(&[(variable, value)]).unwrap_err();
            assert!(errors.0.len() == 1 && errors.0[0].variable == variable, "{errors}");
        }
    }

    #[test]
    fn kafka_properties_are_passed_on() {
        let config = with(&[("IDEM_KAFKA_SESSION_TIMEOUT_MS", "6000")]).unwrap();
        assert_eq!(config.kafka["session.timeout.ms"], "6000");
    }

    #[test]
    fn an_empty_retry_list_means_no_tiers() {
        assert_eq!(with(&[("IDEM_RETRY", "")]).unwrap().retry, []);
    }

    #[test]
    fn no_secret_is_printed() {
        let secret = "sentinel-4711";
        let url = format!("postgres://user:{secret}@host/db");
        let config = Config::from_vars([
            ("IDEM_DATABASE_URL", url.as_str()),
            ("IDEM_KAFKA_BROKERS", "b:1"),
            ("IDEM_KAFKA_SASL_PASSWORD", secret),
            ("IDEM_KAFKA_SASL_USERNAME", secret),
        ])
        .unwrap();
        assert!(!format!("{config:?} {config:#?}").contains(secret));
        let errors =
            Config::from_vars([("IDEM_DATABASE_URL", secret), ("IDEM_KAFKA_SASL_MECHANISMS", secret)]).unwrap_err();
        assert!(!format!("{errors:?} {errors}").contains(secret));
    }
}
