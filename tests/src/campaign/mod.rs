//! The fault campaign: a service of several processes on real servers, a producer, everything that goes
//! wrong in production, and a checker that counts what came of it.
//!
//! The checker is pure ([`checker`]), and so are the load and the schedule, which follow from a seed.

pub mod checker;
mod cluster;
mod database;
mod evidence;
mod faults;
pub mod load;
mod members;
pub mod planted;
mod producer;
mod report;
pub mod schedule;
mod timeline;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_runtime::testing::Provider;
use serde::Serialize;
use sqlx::AssertSqlSafe;

use crate::Fault;
use checker::{Evidence, Finding};
use cluster::Cluster;
use database::Database;
use faults::Servers;
use members::Members;
use producer::Strings;
use report::Observed;
use schedule::{MemberFault, ServerFault};
use timeline::Timeline;
use watch::Watch;

pub use report::{Figures, LONGEST_RECOVERY};

/// `session.timeout.ms` of the members, and their `max.poll.interval.ms`.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
const MAX_POLL: Duration = Duration::from_secs(6);

/// The tiers that the retry topics are named after.
const RETRIES: [&str; 4] = ["300ms", "1s", "2s", "4s"];

/// How long the provider remembers keys, where nothing else is said.
pub const MEMORY: Duration = Duration::from_secs(20);

/// How long the rest may take when the load has ended and all servers are up.
pub const SETTLING: Duration = Duration::from_secs(150);

/// What is run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long records are sent and faults happen.
    pub length: Duration,
    /// How long the rest may take after that.
    pub settling: Duration,
    pub seed: u64,
    /// Records in a second.
    pub per_second: u32,
    pub brokers: usize,
    pub members: usize,
    /// How long the provider remembers keys. The service asks again only in a part of it.
    pub memory: Duration,
    /// The service.
    pub program: PathBuf,
    /// Its environment, besides where the servers are.
    pub variables: Vec<(String, String)>,
    pub member_faults: Vec<(MemberFault, usize)>,
    pub server_faults: Vec<(ServerFault, usize)>,
}

/// What came of it.
pub struct Outcome {
    pub figures: Figures,
    pub findings: Vec<Finding>,
    /// From the first fault to the findings.
    pub took: Duration,
    /// Everything was done in time.
    pub settled: bool,
    evidence: Evidence,
    timeline: Arc<Timeline>,
}

impl Outcome {
    /// The first findings, each with its whole history and the faults around it.
    #[must_use]
    pub fn histories(&self, most: usize) -> String {
        report::histories(&self.findings, &self.evidence, &self.timeline, most)
    }
}

/// Runs a campaign.
///
/// # Panics
/// When a server does not start, or does not come back.
pub async fn run(settings: &Settings) -> Outcome {
    let timeline = Arc::new(Timeline::default());
    timeline.note(format!("seed {}, {} brokers", settings.seed, settings.brokers));
    let kafka = Cluster::start(settings.brokers).await;
    for (subject, _) in load::Subject::SHARES {
        kafka.create_topic(subject.topic(), load::PARTITIONS).await;
    }
    let database = Database::start().await;
    create_tables(&database).await;
    let provider = Provider::start().await.unwrap_or_else(|error| panic!("{error}"));
    provider.lose_answers(0.05);
    provider.remember_keys_for(settings.memory);
    let variables = variables(settings, &kafka, &database, &provider);
    timeline.note("servers are up");

    let watch = Watch::default();
    let address = database.address();
    let producer = Strings::default();
    let mut servers = Servers {
        kafka,
        database,
        provider,
        producer: producer.clone(),
        watch: watch.clone(),
        timeline: Arc::clone(&timeline),
        service: (settings.program.clone(), variables.clone()),
        days_behind: vec![7, 6, 5, 4, 3].into_iter(),
        memory: settings.memory,
        rewinds: Vec::new(),
        days_emptied: 0,
    };
    let mut members = Members::start(settings.program.clone(), variables, settings.members, Arc::clone(&timeline));
    let looking = tokio::spawn(watch.clone().look(address.clone(), Arc::clone(&timeline)));

    let client = servers.kafka.client.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let producing =
        producer::produce(client.clone(), settings.seed, settings.per_second, stopped, producer, Arc::clone(&timeline));
    let producing = tokio::spawn(producing);
    until_all_work(&watch, &mut members).await;
    timeline.note("every handler works on every partition");
    let asking = tokio::spawn(watch.clone().ask(client.clone()));
    let begun = Instant::now();
    let end = begun + settings.length;
    tokio::join!(
        members.suffer(schedule::deal(settings.seed, &settings.member_faults, 3_500..6_500), end),
        servers.suffer(schedule::deal(settings.seed, &settings.server_faults, 3_000..7_000), end),
        tokio::time::sleep(settings.length),
    );
    // The producer waits for this, and ends before it is gone.
    let _ = stop.send(());
    let sent = producing.await.expect("the producer does not panic");
    timeline.note("no more faults");
    let settled = tokio::select! {
        settled = evidence::settled(&client, &address, &timeline, settings.settling) => settled,
        () = members.keep_running() => None,
    };
    looking.abort();
    asking.abort();
    if settled.is_none() {
        members.say_what_they_said();
        timeline.complain(format!("not everything was done within {:?} after the last fault", settings.settling));
    }
    let kills = members.kills;
    let acknowledged = members.end().await;
    servers.complain_of_what_did_not_happen();
    timeline.note("checking");
    let mut evidence = evidence::gather(&client, &address, &servers.provider, sent, &timeline).await;
    evidence.acknowledged = acknowledged;
    if evidence.acknowledged.is_empty() && !evidence.published.is_empty() {
        timeline.complain("no relay has logged an acknowledgement: none could be compared with the topic");
    }
    evidence.rewinds.clone_from(&servers.rewinds);
    evidence.key_ttl_millis = i64::try_from(key_ttl(settings.memory).as_millis()).unwrap_or(i64::MAX);
    let findings = checker::check(&evidence);
    let observed = Observed {
        kills,
        commits_cut: servers.database.proxy.count(Fault::CutBefore),
        commit_replies_lost: servers.database.proxy.count(Fault::LoseReply),
        days_emptied: servers.days_emptied,
        worst: watch.worst(),
        settled,
    };
    let figures = Figures::new(settings, &evidence, &findings, &observed, &timeline);
    Outcome { figures, findings, took: begun.elapsed(), settled: settled.is_some(), evidence, timeline }
}

/// How long the service may ask again with a key: it is stopped for longer than `max.poll.interval.ms` now and
/// then, also between the moment at which it looks at its clock and that at which its request leaves.
fn key_ttl(memory: Duration) -> Duration {
    memory * 2 / 5
}

/// The tables of the business. Nothing in them keeps an effect from being written twice.
async fn create_tables(database: &Database) {
    let mut session = database.address().session().await.expect("the database was just started");
    let tables = format!(
        "CREATE TABLE effect (position bigserial, handler text NOT NULL, part integer NOT NULL, \
                      event_id uuid NOT NULL, member integer NOT NULL, before uuid, cause uuid, \
                      at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (handler, part, position)); \
         CREATE TABLE taken (number integer PRIMARY KEY); INSERT INTO taken VALUES (1); \
         CREATE TABLE account (key integer PRIMARY KEY, last uuid) WITH (fillfactor = 50); \
         INSERT INTO account SELECT key FROM generate_series(0, {accounts} - 1) AS key; \
         CREATE TABLE purchase (key integer PRIMARY KEY, invoices bigint NOT NULL) WITH (fillfactor = 50); \
         INSERT INTO purchase SELECT key, 0 FROM generate_series(0, {keys} - 1) AS key; \
         CREATE TABLE epoch (number integer NOT NULL); INSERT INTO epoch VALUES (0)",
        accounts = load::ACCOUNTS,
        keys = load::KEYS,
    );
    sqlx::raw_sql(AssertSqlSafe(tables)).execute(&mut session).await.expect("the tables of the business");
}

/// The service's environment: small timeouts, so that every one of them is passed often.
fn variables(settings: &Settings, kafka: &Cluster, database: &Database, provider: &Provider) -> Vec<(String, String)> {
    let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let millis = |name: &str, time: Duration| (name.to_owned(), time.as_millis().to_string());
    let mut variables = vec![
        text("IDEM_DATABASE_URL", &database.url()),
        text("IDEM_ADMIN_ADDR", "off"),
        text("IDEM_KAFKA_BROKERS", kafka.client.bootstrap()),
        text("IDEM_MONEY_BASE_URL", &provider.url()),
        text("IDEM_MONEY_KEY_TTL", &format!("{}ms", key_ttl(settings.memory).as_millis())),
        text("IDEM_RETRY", &RETRIES.join(",")),
        text("IDEM_SHUTDOWN_GRACE", "5s"),
        text("IDEM_RELAY_TIMEOUT", "4s"),
        // What is older may be forgotten, and what is ahead by more is refused: see the producer's clock.
        text("IDEM_DEDUP_WINDOW", "1m"),
        text("IDEM_DEDUP_CLOCK_SKEW", "10s"),
        millis("IDEM_KAFKA_MAX_POLL_INTERVAL_MS", MAX_POLL),
        text("RUST_LOG", "error,idem_runtime::group=debug,idem_runtime::kafka=debug,idem::published=debug"),
    ];
    // The two protocols of groups take turns by the seed.
    if settings.seed.is_multiple_of(2) {
        variables.push(millis("IDEM_KAFKA_SESSION_TIMEOUT_MS", SESSION_TIMEOUT));
        variables.push(text("IDEM_KAFKA_HEARTBEAT_INTERVAL_MS", "1000"));
    } else {
        variables.push(text("IDEM_KAFKA_GROUP_PROTOCOL", "consumer"));
    }
    variables.extend(settings.variables.iter().cloned());
    variables
}

/// Faults begin when every handler works on every partition.
async fn until_all_work(watch: &Watch, members: &mut Members) {
    let handlers: usize = load::Subject::SHARES.iter().map(|(subject, _)| subject.handlers().len()).sum();
    let all = handlers * load::PARTITIONS as usize;
    let start = Instant::now();
    while watch.known() < all {
        members.restart_what_ended();
        let known = watch.known();
        assert!(start.elapsed() < Duration::from_secs(90), "only {known} of {all} partitions are worked on");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A fault's name as the figures have it.
fn name(fault: impl Serialize) -> String {
    match serde_json::to_value(fault) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

/// The number of the day since 1970.
#[must_use]
pub fn seed_of_the_day() -> u64 {
    timeline::unix_millis().unsigned_abs() / 86_400_000
}

/// Three brokers where there is the memory for them.
#[must_use]
pub fn brokers_for_this_machine() -> usize {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let available: u64 = available.and_then(|kib| kib.parse().ok()).unwrap_or(0);
    if available >= 8 << 20 { 3 } else { 1 }
}

/// The service's program, beside this one.
///
/// # Panics
/// When it was not built.
#[must_use]
pub fn service() -> PathBuf {
    let own = std::env::current_exe().expect("a program is a file");
    let service = own.with_file_name("campaign_service");
    assert!(service.is_file(), "build the service too: cargo build -p tests --bins");
    service
}
