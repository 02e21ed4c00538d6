//! A service with the documented rights and no others: on tables, functions, topics and groups.

use std::path::Path;
use std::time::Duration;

use idem_runtime::Config;
use idem_runtime::ops::{Ops, partitions};
use idem_runtime::prelude::*;
use idem_runtime::testing::{Provider, fill_day};
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool};
use tests::orders::{self, Order, Plan};
use tests::{Kafka, Run, TestEnv, cli, eventually, postgres::pool};

use crate::servers::{self, Certificates, PASSWORD, tool};

const LIMIT: Duration = Duration::from_secs(90);
const GROUPS: [&str; 4] = ["least", "least.shared", "least.ordered", "least.money"];

#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
struct Told {
    event_id: EventId,
    number: i64,
}

#[idempotent_handler(topic = "least.orders", group = "least", retry = ["200ms"])]
async fn least(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    let number = order.number;
    orders::handle(tx, order, &delivery, "least").await?;
    tx.publish("least.told", number, |event_id| Told { event_id, number }).await?;
    Ok(())
}

#[idempotent_handler(topic = "least.orders", group = "least.shared", transaction = "shared", retry = ["200ms"])]
async fn shared(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "least.shared").await
}

#[idempotent_handler(topic = "least.orders", group = "least.ordered", order = "key", retry = ["200ms"])]
async fn ordered(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "least.ordered").await
}

#[idempotent_handler(topic = "least.bills", group = "least.money", money = true, retry = ["200ms"])]
async fn money(tx: &mut Tx<'_>, order: Order, payments: MoneyClient, delivery: Delivery) -> HandlerResult {
    payments.post("/charges").json(&json!({"order": order.number})).send().await?;
    orders::handle(tx, order, &delivery, "least.money").await
}

/// The broker's rights, given and taken with Kafka's own tool.
struct Acls<'a>(&'a Kafka);

impl Acls<'_> {
    async fn change(&self, how: &str, resources: &[&str], operations: &[&str]) {
        let operations = operations.iter().flat_map(|operation| ["--operation", *operation]);
        let fixed = [how, "--force", "--allow-principal", "User:app"];
        let args: Vec<&str> = fixed.into_iter().chain(resources.iter().copied()).chain(operations).collect();
        tool("org.apache.kafka.tools.AclCommand", self.0, &args).await;
    }

    /// What `failures.md` says that the program and the `idem` command need, and nothing else.
    async fn give_documented(&self) {
        self.change("--add", &["--topic", "least.orders", "--topic", "least.bills"], &["Read", "Describe"]).await;
        self.change("--add", &["--topic", "least.told"], &["Write", "Describe"]).await;
        let own: Vec<String> = own_topics();
        let own: Vec<&str> = own.iter().flat_map(|topic| ["--topic", topic.as_str()]).collect();
        self.change("--add", &own, &["Read", "Write", "Describe"]).await;
        let groups: Vec<&str> = GROUPS.iter().flat_map(|group| ["--group", *group]).collect();
        self.change("--add", &groups, &["Read", "Describe"]).await;
    }
}

fn own_topics() -> Vec<String> {
    let of = |group: &&str| ["retry.200ms", "replay", "dlq"].map(|kind| format!("{group}.{kind}"));
    GROUPS.iter().flat_map(of).collect()
}

async fn run_sql(pool: &PgPool, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(pool).await.unwrap();
}

/// The SQLSTATE that a statement is refused with.
async fn refused(pool: &PgPool, statement: &str) -> String {
    let error = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(pool).await.expect_err(statement);
    error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned()
}

const NO_RIGHT: &str = "42501";

#[tokio::test(flavor = "multi_thread")]
async fn a_service_works_over_tls_with_the_documented_rights_alone() {
    let certificates = Certificates::new();
    let ((_postgres, url), (kafka, addr)) =
        tokio::join!(servers::postgres(&certificates), servers::kafka(&certificates));
    let provider = Provider::start().await.unwrap();
    let secret = certificates.directory.path().join("password");
    std::fs::write(&secret, format!("{PASSWORD}\n")).unwrap();
    let of_role = |role: &str| url.replace("postgres://postgres@", &format!("postgres://{role}@"));
    let env = TestEnv::on(&url, &kafka)
        .with("IDEM_DATABASE_URL", &of_role("service"))
        .with("IDEM_KAFKA_BROKERS", &addr)
        .with("IDEM_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
        .with("IDEM_KAFKA_SASL_MECHANISMS", "SCRAM-SHA-512")
        .with("IDEM_KAFKA_SASL_USERNAME", "app")
        .with("IDEM_KAFKA_SASL_PASSWORD_FILE", secret.to_str().unwrap())
        .with("IDEM_KAFKA_SSL_CA_LOCATION", certificates.authority().to_str().unwrap())
        .with("IDEM_CREATE_TOPICS", "false")
        .with("IDEM_MONEY_BASE_URL", &provider.url())
        .with("IDEM_DEDUP_WINDOW", "30h")
        .with("IDEM_DEDUP_CLOCK_SKEW", "1h");
    let owner = env.clone().with("IDEM_DATABASE_URL", &of_role("owner"));
    run_sql(
        &env.pool,
        "CREATE ROLE owner LOGIN; CREATE ROLE service LOGIN; CREATE ROLE stranger LOGIN; \
         REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT USAGE, CREATE ON SCHEMA public TO owner WITH GRANT OPTION",
    )
    .await;

    // Whatever is missing at the start is named, with who gives it.
    let problem = async |env: &TestEnv| Run::start(env, &GROUPS).ended(LIMIT).await.unwrap_err().to_string();
    let env = env.with("IDEM_MIGRATE", "false");
    let told = problem(&env).await;
    assert!(told.contains("no idem tables that this role can see"), "{told}");
    cli::idem(owner.variables(), &["migrate", "--json"]).await.json();
    run_sql(&env.pool, "GRANT USAGE ON SCHEMA public TO service; GRANT SELECT ON idem_migration TO service").await;
    let told = problem(&env).await;
    let lacks = ["role `service` lacks INSERT on aggregate_version", "more: run `idem migrate --grant service`"];
    assert!(lacks.iter().all(|part| told.contains(part)), "{told}");
    cli::idem(owner.variables(), &["migrate", "--grant", "service", "--json"]).await.json();
    run_sql(
        &env.pool,
        "REVOKE EXECUTE ON FUNCTION idem_attach_days FROM service; REVOKE DELETE ON idem_outbox_0 FROM service",
    )
    .await;
    let told = problem(&env).await;
    assert!(told.contains("lacks EXECUTE on idem_attach_days(integer), DELETE on idem_outbox_0: run"), "{told}");
    cli::idem(owner.variables(), &["migrate", "--grant", "service", "--json"]).await.json();
    let told = problem(&env.clone().with("IDEM_MIGRATE", "true")).await;
    assert!(told.contains("may not change the schema") && told.contains("IDEM_MIGRATE=false"), "{told}");
    let told = problem(&env).await;
    assert!(told.contains("topic `least.dlq` is missing") && told.contains("Describe"), "{told}");

    maintenance_works(&env, &of_role("service"), &url).await;
    nothing_else_is_allowed(&env.pool, &of_role("service"), &of_role("stranger")).await;

    orders::create_tables(&env.pool).await;
    run_sql(&env.pool, "GRANT INSERT ON effect, taken TO service; GRANT USAGE ON SEQUENCE effect_seq_seq TO service")
        .await;
    for topic in own_topics().iter().map(String::as_str).chain(["least.orders", "least.bills", "least.told"]) {
        kafka.create_topic(topic, 1).await;
    }
    let acls = Acls(&kafka);
    acls.give_documented().await;
    let run = Run::start(&env, &GROUPS);
    let plans = [Plan::Succeed, Plan::FailTimes(1), Plan::Refuse];
    let ids = orders::publish(&kafka, "least.orders", &plans).await;
    let bills = orders::publish(&kafka, "least.bills", &plans[..2]).await;
    for group in ["least", "least.shared", "least.ordered"] {
        eventually(LIMIT, group, async || orders::effect_count(&env.pool, group).await == 2).await;
        let dlq = format!("{group}.dlq");
        eventually(LIMIT, &dlq, async || kafka.read_all(&dlq).await.len() == 1).await;
        orders::assert_each_once(&env.pool, group, &ids[..2]).await;
    }
    eventually(LIMIT, "the bills", async || orders::effect_count(&env.pool, "least.money").await == 2).await;
    orders::assert_each_once(&env.pool, "least.money", &bills).await;
    assert_eq!(provider.charges().len(), 2);
    eventually(LIMIT, "what was published", async || kafka.read_all("least.told").await.len() == 2).await;
    let parked: i64 = sqlx::query_scalar("SELECT count(*) FROM parked_event").fetch_one(&env.pool).await.unwrap();
    assert_eq!(parked, 0);
    let encrypted: bool = sqlx::query_scalar(
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'service'",
    )
    .fetch_one(&env.pool)
    .await
    .unwrap();
    assert!(encrypted, "every connection of the service's");
    let letters = cli::idem(env.variables(), &["dlq", "list", "--group", "least", "--json"]).await;
    assert_eq!(letters.json()["letters"], 1, "{}", letters.stderr);

    // A right that is taken away holds events up, and says which one it is; nothing is lost.
    acls.change("--remove", &["--topic", "least.dlq"], &["Write"]).await;
    orders::publish(&kafka, "least.orders", &[Plan::Refuse]).await;
    let reasons = async |wanted: &[&str]| {
        eventually(LIMIT, &format!("{wanted:?} in the way"), async || {
            let reasons = run.health.reasons().join("\n");
            wanted.iter().all(|part| reasons.contains(part))
        })
        .await;
    };
    reasons(&["`least.dlq`", "grant this client's user", "Write"]).await;
    acls.change("--add", &["--topic", "least.dlq"], &["Write"]).await;
    eventually(LIMIT, "the dead letter", async || kafka.read_all("least.dlq").await.len() == 2).await;
    run_sql(&env.pool, "REVOKE INSERT ON processed_event FROM service").await;
    let late = orders::publish(&kafka, "least.orders", &[Plan::Succeed]).await;
    reasons(&["least.orders/0", NO_RIGHT]).await;
    run_sql(&env.pool, "GRANT INSERT ON processed_event TO service").await;
    eventually(LIMIT, "the event that waited", async || {
        orders::effects(&env.pool, "least").await.contains_key(&late[0])
    })
    .await;
    run.stop().await.unwrap();

    // Somebody else's server, and somebody else's password: not silently less.
    let stranger = env.clone().with("IDEM_DATABASE_URL", &of_role("service").replace("localhost", "127.0.0.1"));
    let refused = cli::idem(stranger.variables(), &["partitions"]).await;
    assert!(refused.status == Some(1) && refused.stderr.contains("database"), "{}", refused.stderr);
    let wrong = Path::new(&certificates.authority()).to_str().unwrap().to_owned();
    let wrong = env.clone().with("IDEM_KAFKA_SASL_PASSWORD_FILE", &wrong);
    let refused = cli::idem(wrong.variables(), &["dlq", "list", "--group", "least"]).await;
    assert!(refused.status == Some(1) && !refused.stderr.contains("BEGIN CERT"), "{}", refused.stderr);
}

/// Days are attached, emptied, pruned and merged by the service's role.
async fn maintenance_works(env: &TestEnv, service: &str, superuser: &str) {
    let day = fill_day(superuser, "filled", 4, 1_000).await.unwrap();
    // Of 2020.
    let old = "INSERT INTO processed_event VALUES ('01700000-0000-7000-8000-000000000001', 'filled', now() - interval '9 days')";
    run_sql(&env.pool, old).await;
    let service = pool(service);
    let attached: i32 = sqlx::query_scalar("SELECT idem_attach_days(100)").fetch_one(&service).await.unwrap();
    assert_eq!(attached, 93);
    run_sql(&service, "SELECT idem_share_rights()").await;
    let ops = Ops::new(Config::from_vars(env.variables()).unwrap());
    let swept = partitions::sweep(&ops).await.unwrap();
    assert_eq!((swept.emptied, swept.deleted), (vec![day], 1));
    let merged: i32 = sqlx::query_scalar("SELECT idem_merge_days(2)").fetch_one(&service).await.unwrap();
    assert_eq!(merged, 2);
    let truncated: bool = sqlx::query_scalar("SELECT idem_outbox_truncate(1)").fetch_one(&service).await.unwrap();
    assert!(truncated);
}

/// Nor can anybody make the functions of the owner look at something else.
async fn nothing_else_is_allowed(superuser: &PgPool, service: &str, stranger: &str) {
    let service = pool(service);
    for statement in [
        "CREATE TABLE public.stray (id int)",
        "ALTER TABLE processed_event ADD COLUMN stray int",
        "ALTER TABLE processed_event DETACH PARTITION processed_event_late",
        "DROP TABLE processed_event_late",
        "CREATE INDEX ON consumer_progress (topic)",
        "CREATE OR REPLACE FUNCTION idem_horizon(of_group text, is_natural boolean) RETURNS bigint LANGUAGE sql \
             AS 'SELECT NULL::bigint'",
        "ALTER FUNCTION idem_attach_days(integer) SECURITY INVOKER",
        "UPDATE idem_lineage SET id = gen_random_uuid()",
        "DELETE FROM consumer_progress",
        "TRUNCATE money_call",
        "SELECT idem_grant('stranger')",
    ] {
        assert_eq!(refused(&service, statement).await, NO_RIGHT, "{statement}");
    }
    let stranger = pool(stranger);
    run_sql(superuser, "GRANT USAGE ON SCHEMA public TO stranger").await;
    for function in ["idem_attach_days(9)", "idem_share_rights()", "idem_merge_days(9)"] {
        assert_eq!(refused(&stranger, &format!("SELECT {function}")).await, NO_RIGHT, "{function}");
    }
    // Temporary tables come before all others in everybody's own statements.
    let mut hijacker = service.acquire().await.unwrap();
    let bait = "CREATE TEMP TABLE processed_event (event_id uuid) PARTITION BY RANGE (event_id); \
                CREATE TEMP TABLE processed_event_late (event_id uuid)";
    sqlx::raw_sql(bait).execute(&mut *hijacker).await.unwrap();
    let of_real = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'public.processed_event'::regclass";
    let before: i64 = sqlx::query_scalar(of_real).fetch_one(superuser).await.unwrap();
    let attached: i32 = sqlx::query_scalar("SELECT idem_attach_days(110)").fetch_one(&mut *hijacker).await.unwrap();
    let after: i64 = sqlx::query_scalar(of_real).fetch_one(superuser).await.unwrap();
    assert_eq!((attached, after - before), (10, 10), "the real table got the days");
}
