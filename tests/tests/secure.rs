//! Servers that let in only who shows a certificate's trust, a password and a right.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use idem_runtime::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tests::orders::{self, Order, Plan};
use tests::{Kafka, Postgres, Run, TestEnv, cli, eventually, java};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIMIT: Duration = Duration::from_secs(90);
const PASSWORD: &str = "sentinel-of-the-broker";

#[idempotent_handler(topic = "secure.orders", group = "secure", retry = ["200ms"])]
async fn secure(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "secure").await
}

/// An authority, and a certificate of `localhost` with its key.
struct Certificates {
    directory: TempDir,
    chain: String,
    key: String,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // A certificate whose issuer has its own name would count as signed by itself.
        params.distinguished_name.push(DnType::CommonName, "the tests' authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), authority.pem()).unwrap();
        Self { directory, chain: server.pem() + &authority.pem(), key: key.serialize_pem() }
    }

    fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }
}

/// A PostgreSQL with TLS, reached as `localhost`; the URL asks for a server that can prove it is that.
async fn postgres(certificates: &Certificates) -> (Postgres, String) {
    let settings = [("ssl", "on"), ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")];
    let postgres = Postgres::start().await.unwrap();
    let owner = std::fs::metadata(postgres.data_dir()).unwrap();
    for (name, content) in [("server.pem", &certificates.chain), ("server.key", &certificates.key)] {
        let path = postgres.data_dir().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let plain = postgres.create_database("app").await.unwrap();
    let pool = sqlx::PgPool::connect(&plain).await.unwrap();
    for (name, value) in settings {
        let statement = format!("ALTER SYSTEM SET {name} = '{value}'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
    }
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&pool).await.unwrap();
    let path = certificates.authority();
    let separator = if plain.contains('?') { '&' } else { '?' };
    let url = plain.replace("127.0.0.1", "localhost");
    (postgres, format!("{url}{separator}sslmode=verify-full&sslrootcert={}", path.display()))
}

/// A broker with a listener that wants TLS, SCRAM and rights, and its address. The harness's own listener lets
/// the test in.
async fn kafka(certificates: &Certificates) -> (Kafka, String) {
    let addr = tests::http::free_addr().replace("127.0.0.1", "localhost");
    let store = certificates.directory.path().join("server.pem");
    std::fs::write(&store, format!("{}{}", certificates.key, certificates.chain)).unwrap();
    let plain = "PLAINTEXT://127.0.0.1:{broker}";
    let bind = addr.replace("localhost", "127.0.0.1");
    let kafka = Kafka::start_with(&[
        ("listeners", &format!("{plain},CONTROLLER://127.0.0.1:{{controller}},SECURE://{bind}")),
        ("advertised.listeners", &format!("{plain},SECURE://{addr}")),
        ("listener.security.protocol.map", "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL"),
        ("listener.name.secure.sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        (
            "listener.name.secure.scram-sha-512.sasl.jaas.config",
            "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        ),
        ("ssl.keystore.type", "PEM"),
        ("ssl.keystore.location", &store.display().to_string()),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("super.users", "User:ANONYMOUS"),
    ])
    .await;
    let user = format!("SCRAM-SHA-512=[password={PASSWORD}]");
    let alter = ["--alter", "--add-config", &user, "--entity-type", "users", "--entity-name", "app"];
    tool("kafka.admin.ConfigCommand", &kafka, &alter).await;
    (kafka, addr)
}

async fn tool(class: &'static str, kafka: &Kafka, args: &[&str]) {
    let args: Vec<String> =
        ["--bootstrap-server", kafka.bootstrap()].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    let run = move || java::run(class, &args.iter().map(String::as_str).collect::<Vec<_>>());
    let _ = tokio::task::spawn_blocking(run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_works_over_tls_with_a_password_and_only_the_documented_rights() {
    let certificates = Certificates::new();
    let (_postgres, url) = postgres(&certificates).await;
    let (kafka, addr) = kafka(&certificates).await;
    let authority = certificates.authority();
    let secret = certificates.directory.path().join("password");
    std::fs::write(&secret, format!("{PASSWORD}\n")).unwrap();
    let env = TestEnv::on(&url, &kafka)
        .with("IDEM_KAFKA_BROKERS", &addr)
        .with("IDEM_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
        .with("IDEM_KAFKA_SASL_MECHANISMS", "SCRAM-SHA-512")
        .with("IDEM_KAFKA_SASL_USERNAME", "app")
        .with("IDEM_KAFKA_SASL_PASSWORD_FILE", secret.to_str().unwrap())
        .with("IDEM_KAFKA_SSL_CA_LOCATION", authority.to_str().unwrap())
        .with("IDEM_CREATE_TOPICS", "false");
    orders::create_tables(&env.pool).await;
    for topic in ["secure.orders", "secure.retry.200ms", "secure.replay", "secure.dlq"] {
        kafka.create_topic(topic, 1).await;
    }
    let acl = async |args: &[&str]| {
        let add = [&["--add", "--force", "--allow-principal", "User:app"], args].concat();
        tool("org.apache.kafka.tools.AclCommand", &kafka, &add).await;
    };
    // What `failures.md` says that the program and the `idem` command need, and nothing else.
    let [read, write, describe] = [["--operation", "Read"], ["--operation", "Write"], ["--operation", "Describe"]];
    acl(&[&["--topic", "secure.orders"], &read[..], &describe].concat()).await;
    let own = ["--topic", "secure.retry.200ms", "--topic", "secure.replay", "--topic", "secure.dlq"];
    acl(&[&own[..], &read, &write, &describe].concat()).await;
    acl(&[&["--group", "secure"], &read[..], &describe].concat()).await;

    let plans = [Plan::Succeed, Plan::FailTimes(1), Plan::Refuse];
    let ids = orders::publish(&kafka, "secure.orders", &plans).await;
    let run = Run::start(&env, &["secure"]);
    eventually(LIMIT, "the effects", async || orders::effect_count(&env.pool, "secure").await == 2).await;
    eventually(LIMIT, "the dead letter", async || kafka.read_all("secure.dlq").await.len() == 1).await;
    orders::assert_each_once(&env.pool, "secure", &ids[..2]).await;
    let encrypted: bool = sqlx::query_scalar("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename IS NOT NULL AND application_name <> ''")
        .fetch_one(&env.pool)
        .await
        .unwrap();
    assert!(encrypted, "every connection of the library's");
    let letters = cli::idem(env.variables(), &["dlq", "list", "--group", "secure", "--json"]).await;
    assert_eq!(letters.json()["letters"], 1, "{}", letters.stderr);
    run.stop().await.unwrap();

    // Somebody else's server, and somebody else's password: not silently less.
    let stranger = env.clone().with("IDEM_DATABASE_URL", &url.replace("localhost", "127.0.0.1"));
    let refused = cli::idem(stranger.variables(), &["partitions"]).await;
    assert!(refused.status == Some(1) && refused.stderr.contains("database"), "{}", refused.stderr);
    let wrong = Path::new(&authority).to_str().unwrap().to_owned();
    let wrong = env.clone().with("IDEM_KAFKA_SASL_PASSWORD_FILE", &wrong);
    let refused = cli::idem(wrong.variables(), &["dlq", "list", "--group", "secure"]).await;
    assert!(refused.status == Some(1) && !refused.stderr.contains("BEGIN CERT"), "{}", refused.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_refuses_what_a_session_wants_is_an_error_and_not_an_outage() {
    // What PgBouncer answers to a startup message with `options`.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let fields = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
            let mut startup = [0; 8];
            if socket.read_exact(&mut startup).await.is_err() {
                continue;
            }
            let is_request_for_tls = startup[4..] == 80_877_103_u32.to_be_bytes();
            if is_request_for_tls {
                let _ = socket.write_all(b"N").await;
            }
            let mut answer = vec![b'E'];
            answer.extend(u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
            answer.extend(fields);
            let _ = socket.write_all(&answer).await;
            let _ = socket.shutdown().await;
        }
    });
    let env = TestEnv::new().await.with("IDEM_DATABASE_URL", &format!("postgres://u:sentinel@127.0.0.1:{port}/d"));
    let refused = Run::start(&env, &["secure"]).ended(LIMIT).await.unwrap_err().to_string();
    assert!(refused.contains("PgBouncer") && refused.contains("IDEM_DATABASE_URL"), "{refused}");
    assert!(!refused.contains("sentinel"), "{refused}");
}
