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
fn relay_settings_are_read_and_checked() {
    let config = with(&[]).unwrap();
    assert_eq!((config.relay, config.relay_timeout), (true, Duration::from_secs(10)));
    assert!(!with(&[("IDEM_RELAY", "false")]).unwrap().relay);
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

/// A file that is gone with this value.
fn file(content: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

#[test]
fn the_environment_wins_over_the_file_and_the_program_over_both() {
    let file = file(
        "pool_size = 4\nstrict = true\nretry = ['1s', '1m']\n[kafka]\nbrokers = 'file:1'\nsecurity.protocol = 'ssl'\n\
         [dedup]\nwindow = '3d'\n",
    );
    let path = file.path().to_str().unwrap().to_owned();
    let vars = [("IDEM_DATABASE_URL", "postgres://h/d"), ("IDEM_CONFIG", &path), ("IDEM_POOL_SIZE", "5")];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let program = BTreeMap::from([("IDEM_DEDUP_WINDOW".to_owned(), "4d".to_owned())]);
    let config = Config::read(BTreeMap::from(vars), program).unwrap();
    assert_eq!((config.pool_size, config.strict, config.brokers.as_str()), (5, true, "file:1"));
    assert_eq!(config.dedup_window, Duration::from_secs(4 * 86_400));
    assert_eq!(config.retry, [1, 60].map(Duration::from_secs));
    assert_eq!(config.kafka["security.protocol"], "ssl");
    let source = |variable: &str| config.sources[variable].to_string();
    assert_eq!((source("IDEM_POOL_SIZE"), source("IDEM_DEDUP_WINDOW")), ("environment".into(), "builder".into()));
    assert_eq!(source("IDEM_KAFKA_BROKERS"), format!("file {path}"));
}

#[test]
fn what_is_wrong_in_a_file_names_the_file_and_never_a_value() {
    let errors = |content: &str| {
        let file = file(content);
        with(&[("IDEM_CONFIG", file.path().to_str().unwrap())]).unwrap_err().to_string()
    };
    let unknown = errors("poolsize = 7\n");
    assert!(unknown.contains("did you mean IDEM_POOL_SIZE?") && unknown.contains("(in /"), "{unknown}");
    let broken = errors("strict = true\npool_size = sentinel-4711\n");
    assert!(broken.contains("line 2") && !broken.contains("sentinel"), "{broken}");
    assert!(errors("pool_size = 1979-05-27\n").contains("`pool_size`"));
    assert!(errors("pool_size = 1\n[pool]\nsize = 2\n").contains("IDEM_POOL_SIZE twice"));
    assert!(with(&[("IDEM_CONFIG", "/nowhere/sentinel-4711")]).unwrap_err().to_string().contains("not found"));
}

#[test]
fn the_file_of_settings_is_named_in_one_way() {
    let other = file("pool_size = 3");
    let error = with(&[("IDEM_CONFIG_FILE", other.path().to_str().unwrap())]).unwrap_err().to_string();
    assert!(error.contains("IDEM_CONFIG_FILE") && error.contains("named by IDEM_CONFIG"), "{error}");
    let nested = file("config = \"/elsewhere.toml\"");
    let error = with(&[("IDEM_CONFIG", nested.path().to_str().unwrap())]).unwrap_err().to_string();
    assert!(error.contains("IDEM_CONFIG") && error.contains("itself"), "{error}");
}

#[test]
fn a_secret_can_stand_in_a_file() {
    let file = file("a-token-of-sixteen-bytes\n");
    let path = file.path().to_str().unwrap();
    let config = with(&[("IDEM_ADMIN_TOKEN_FILE", path)]).unwrap();
    assert_eq!(config.admin.unwrap().token.unwrap().as_bytes(), b"a-token-of-sixteen-bytes");
    assert_eq!(config.sources["IDEM_ADMIN_TOKEN"].to_string(), "environment (_FILE)");
    let config = with(&[("IDEM_KAFKA_SASL_PASSWORD_FILE", path)]).unwrap();
    assert_eq!(config.kafka["sasl.password"], "a-token-of-sixteen-bytes");
    let twice = with(&[("IDEM_ADMIN_TOKEN_FILE", path), ("IDEM_ADMIN_TOKEN", "another-of-sixteen")]).unwrap_err();
    assert!(twice.to_string().contains("remove one"), "{twice}");
    let gone = with(&[("IDEM_ADMIN_TOKEN_FILE", "/nowhere/sentinel-4711")]).unwrap_err().to_string();
    assert!(gone.contains("IDEM_ADMIN_TOKEN_FILE") && !gone.contains("sentinel"), "{gone}");
}

#[test]
fn a_name_that_is_no_setting_is_an_error_that_knows_better() {
    for (typed, meant) in [
        ("IDEM_POOLSIZE", "IDEM_POOL_SIZE"),
        ("IDEM_DEDUP_WINDWO", "IDEM_DEDUP_WINDOW"),
        ("IDEM_KAFKA_BROKER", "IDEM_KAFKA_BROKERS"),
        ("IDEM_KAFKA_SASL_PASWORD", "IDEM_KAFKA_SASL_PASSWORD"),
    ] {
        let error = with(&[(typed, "1")]).unwrap_err().to_string();
        assert!(error.contains(typed) && error.contains(&format!("did you mean {meant}?")), "{error}");
    }
    assert!(with(&[("IDEM_SOMETHING_ELSE", "1")]).unwrap_err().to_string().contains("idem config check"));
    assert!(with(&[("IDEM_TEST_POSTGRES", "download"), ("PATH", "/bin")]).is_ok());
    // What Kubernetes tells of a service named `idem-admin` beside the pod, and of one named `idem-kafka`.
    let beside = [
        ("IDEM_ADMIN_SERVICE_HOST", "10.0.0.7"),
        ("IDEM_ADMIN_SERVICE_PORT_HTTP", "9464"),
        ("IDEM_ADMIN_PORT", "tcp://10.0.0.7:9464"),
        ("IDEM_ADMIN_PORT_9464_TCP_ADDR", "10.0.0.7"),
        ("IDEM_KAFKA_SERVICE_HOST", "10.0.0.8"),
        ("IDEM_KAFKA_PORT", "tcp://10.0.0.8:9092"),
    ];
    assert!(with(&beside).is_ok());
    assert!(with(&[("IDEM_ADMIN_PORT", "9465")]).is_err(), "somebody means the address");
}

#[cfg(feature = "admin")]
#[test]
fn the_admin_server_needs_a_token_where_others_reach_it() {
    let token = ("IDEM_ADMIN_TOKEN", "a-token-of-sixteen-bytes");
    let admin = |vars: &[(&str, &str)]| with(vars).map(|config| config.admin);
    assert_eq!(admin(&[]).unwrap().unwrap().addr.to_string(), "127.0.0.1:9464");
    assert!(admin(&[("IDEM_ADMIN_ADDR", "off")]).unwrap().is_none());
    assert!(admin(&[("IDEM_ADMIN_ADDR", "[::1]:0")]).is_ok());
    assert!(admin(&[("IDEM_ADMIN_ADDR", "0.0.0.0:9464"), token]).unwrap().unwrap().token.is_some());
    for (vars, variable) in [
        (&[("IDEM_ADMIN_ADDR", "0.0.0.0:9464")][..], "IDEM_ADMIN_TOKEN"),
        (&[("IDEM_ADMIN_ADDR", "[::]:9464")], "IDEM_ADMIN_TOKEN"),
        (&[("IDEM_ADMIN_ADDR", "9464")], "IDEM_ADMIN_ADDR"),
        (&[("IDEM_ADMIN_TOKEN", "short")], "IDEM_ADMIN_TOKEN"),
        (&[("IDEM_ADMIN_TOKEN", "sixteen characters with spaces")], "IDEM_ADMIN_TOKEN"),
    ] {
        let errors = with(vars).unwrap_err();
        assert!(errors.0.iter().any(|error| error.variable == variable), "{vars:?}: {errors}");
    }
}

#[test]
fn the_direct_address_of_the_database_wins_over_one_that_may_lead_to_a_pooler() {
    let direct = with(&[("IDEM_DATABASE_DIRECT_URL", "postgres://u:sentinel@direct/d")]).unwrap();
    assert_eq!(direct.database.get_host(), "direct");
    assert!(!format!("{direct:?}").contains("sentinel"));
    let wrong = with(&[("IDEM_DATABASE_DIRECT_URL", "sentinel")]).unwrap_err();
    assert!(wrong.0.len() == 1 && wrong.0[0].variable == "IDEM_DATABASE_DIRECT_URL", "{wrong}");
    assert!(!wrong.to_string().contains("sentinel"), "{wrong}");
}
