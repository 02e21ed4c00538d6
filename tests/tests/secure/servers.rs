//! A PostgreSQL and a Kafka that let in only who trusts a certificate, knows a password and has a right.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tests::{Kafka, Postgres, java};

/// The password of the user `app` of the broker.
pub const PASSWORD: &str = "sentinel-of-the-broker";

/// An authority, and a certificate of `localhost` with its key.
pub struct Certificates {
    pub directory: TempDir,
    chain: String,
    key: String,
}

impl Certificates {
    pub fn new() -> Self {
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

    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }
}

/// A PostgreSQL with TLS, reached as `localhost`, and its superuser's URL, which asks for a server that can prove
/// that it is that.
pub async fn postgres(certificates: &Certificates) -> (Postgres, String) {
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
pub async fn kafka(certificates: &Certificates) -> (Kafka, String) {
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

pub async fn tool(class: &'static str, kafka: &Kafka, args: &[&str]) {
    let args: Vec<String> =
        ["--bootstrap-server", kafka.bootstrap()].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    let run = move || java::run(class, &args.iter().map(String::as_str).collect::<Vec<_>>());
    let _ = tokio::task::spawn_blocking(run).await.unwrap();
}
