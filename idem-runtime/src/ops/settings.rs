//! The settings in effect, without their secrets.

use serde::Serialize;

use crate::config::{Config, OffsetReset, Unmatched};
use crate::decide::money_key::Format;

/// A setting in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The variable it comes from, or would.
    pub variable: String,
    /// Its value, or `[redacted]`.
    pub value: String,
    /// Where it comes from: `default`, `environment`, `builder`, or `file` and its path; with ` (_FILE)` if it was
    /// read from the file that the variable with this ending names.
    pub source: String,
}

const REDACTED: &str = "[redacted]";

/// The settings in effect, defaults included. A Kafka property's value is never told: which of them
/// are secrets is librdkafka's to know.
///
/// ```
/// use idem_runtime::{Config, ops::settings};
///
/// let config = Config::from_vars([
///     ("IDEM_DATABASE_URL", "postgres://app:secret@db/app"),
///     ("IDEM_KAFKA_BROKERS", "kafka:9092"),
/// ]).unwrap();
/// let settings = settings::of(&config);
/// assert_eq!(settings[0].value, "postgres://[redacted]@db:5432/app");
/// assert!(settings.iter().any(|setting| setting.variable == "IDEM_POOL_SIZE" && setting.value == "16"));
/// ```
#[must_use]
pub fn of(config: &Config) -> Vec<Setting> {
    let duration = |duration| humantime::format_duration(duration).to_string();
    let retry: Vec<String> = config.retry.iter().map(|tier| crate::decide::retry::delay_name(*tier)).collect();
    let database = format!(
        "postgres://{REDACTED}@{}:{}/{}",
        config.database.get_host(),
        config.database.get_port(),
        config.database.get_database().unwrap_or_default()
    );
    let reset = match config.auto_offset_reset {
        OffsetReset::Earliest => "earliest",
        OffsetReset::Latest => "latest",
    };
    let unmatched = match config.unmatched {
        Unmatched::Skip => "skip",
        Unmatched::DeadLetter => "dlq",
    };
    let accepted = config.accept_database.map(|lineage| lineage.to_string()).unwrap_or_default();
    let mut settings: Vec<Setting> = [
        (database_variable(config), database),
        ("IDEM_POOL_SIZE", config.pool_size.to_string()),
        ("IDEM_KAFKA_BROKERS", config.brokers.clone()),
        ("IDEM_CLIENT_ID", config.client_id.clone()),
        ("IDEM_AUTO_OFFSET_RESET", reset.to_owned()),
        ("IDEM_UNMATCHED", unmatched.to_owned()),
        ("IDEM_RETRY", retry.join(",")),
        ("IDEM_DEDUP_CLOCK_SKEW", duration(config.clock_skew)),
        ("IDEM_DEDUP_MAX_HOLD", duration(config.max_hold)),
        ("IDEM_MIGRATE", config.migrate.to_string()),
        ("IDEM_CREATE_TOPICS", config.create_topics.to_string()),
        ("IDEM_SHUTDOWN_GRACE", duration(config.shutdown_grace)),
        ("IDEM_ERROR_TEXT", config.error_text.to_string()),
        ("IDEM_ACCEPT_DATABASE", accepted),
        ("IDEM_DEDUP_WINDOW", duration(config.dedup_window)),
        ("IDEM_STRICT", config.strict.to_string()),
        ("IDEM_DLQ_BRAKE", config.dlq_brake.map_or_else(|| "off".to_owned(), |limit| limit.to_string())),
        ("IDEM_MEMORY", config.memory.to_string()),
        ("IDEM_RESTRICTED_TOPICS", config.restricted.iter().cloned().collect::<Vec<_>>().join(",")),
    ]
    .into_iter()
    .chain(money(config))
    .chain(relay(config))
    .chain(admin(config))
    .map(|(variable, value)| setting(config, variable.to_owned(), value))
    .collect();
    let of_kafka = |property: &String| format!("IDEM_KAFKA_{}", property.to_ascii_uppercase().replace('.', "_"));
    settings.extend(config.kafka.keys().map(|property| setting(config, of_kafka(property), REDACTED.to_owned())));
    settings
}

fn setting(config: &Config, variable: String, value: String) -> Setting {
    let source = match config.sources.get(&variable) {
        None if variable == "IDEM_DATABASE_URL" => config.sources.get("DATABASE_URL"),
        given => given,
    };
    let source = source.map_or_else(|| "default".to_owned(), ToString::to_string);
    Setting { variable, value, source }
}

fn admin(config: &Config) -> [(&'static str, String); 2] {
    let addr = config.admin.as_ref().map_or_else(|| "off".to_owned(), |admin| admin.addr.to_string());
    let has_token = config.admin.as_ref().is_some_and(|admin| admin.token.is_some());
    let token = if has_token { REDACTED.to_owned() } else { String::new() };
    [("IDEM_ADMIN_ADDR", addr), ("IDEM_ADMIN_TOKEN", token)]
}

fn money(config: &Config) -> [(&'static str, String); 4] {
    let duration = |duration| humantime::format_duration(duration).to_string();
    let format = match config.money_key_format {
        Format::Bare => "bare",
        Format::Quoted => "quoted",
    };
    [
        ("IDEM_MONEY_BASE_URL", config.money_base_url.clone().unwrap_or_default()),
        ("IDEM_MONEY_TIMEOUT", duration(config.money_timeout)),
        ("IDEM_MONEY_KEY_TTL", duration(config.money_key_ttl)),
        ("IDEM_MONEY_KEY_FORMAT", format.to_owned()),
    ]
}

/// Which one says where the database is; see `Config`.
fn database_variable(config: &Config) -> &'static str {
    const DIRECT: &str = "IDEM_DATABASE_DIRECT_URL";
    if config.sources.contains_key(DIRECT) { DIRECT } else { "IDEM_DATABASE_URL" }
}

fn relay(config: &Config) -> [(&'static str, String); 2] {
    [
        ("IDEM_RELAY", config.relay.to_string()),
        ("IDEM_RELAY_TIMEOUT", humantime::format_duration(config.relay_timeout).to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_told() {
        let secret = "sentinel-4711";
        let config = Config::from_vars([
            ("IDEM_DATABASE_URL", format!("postgres://{secret}:{secret}@db/app")),
            ("IDEM_DATABASE_DIRECT_URL", format!("postgres://{secret}:{secret}@db/app")),
            ("IDEM_KAFKA_BROKERS", "kafka:9092".to_owned()),
            ("IDEM_KAFKA_SASL_PASSWORD", secret.to_owned()),
            ("IDEM_ADMIN_TOKEN", format!("{secret}-and-more")),
        ])
        .unwrap();
        let told = serde_json::to_string(&of(&config)).unwrap();
        assert!(!told.contains(secret), "{told}");
        assert!(told.contains("IDEM_KAFKA_SASL_PASSWORD"), "{told}");
    }
}
