use std::time::Duration;

use super::reader::parse_bytes;
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
    assert_eq!((config.pool_size, config.migrate, config.create_topics, config.error_text), (16, true, true, false));
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
    assert_eq!((config.money_timeout, config.money_key_ttl), (Duration::from_secs(10), Duration::from_secs(86_400)));
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
