//! Operating it: probes, the page, metrics, settings.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use idem_runtime::outbox;
use idem_runtime::prelude::*;
use reqwest::{Method, StatusCode};
use tests::http::{free_addr, shown};
use tests::orders::{self, Order, Plan};
use tests::{Browser, Kafka, Postgres, Program, Record, Run, TestEnv, cli, eventually, eventually_some};

const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "a-token-that-only-tests-know";

/// With an admin server, at the returned address.
async fn env() -> (TestEnv, String) {
    with_admin(TestEnv::new().await)
}

fn with_admin(env: TestEnv) -> (TestEnv, String) {
    let addr = free_addr();
    (env.with("IDEM_ADMIN_ADDR", &addr).with("IDEM_ADMIN_TOKEN", TOKEN), addr)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_looked_at_and_replayed_from_the_page_and_every_step_is_logged() {
    let (env, addr) = env().await;
    let env = env.with("RUST_LOG", "idem_runtime=info");
    env.kafka.create_topic("watched.orders", 2).await;
    let mut program = Program::start(Path::new(env!("CARGO_BIN_EXE_consumer")), &["watched"], &env.variables());
    let mut browser = Browser::new(&addr);
    eventually(LIMIT, "readiness", async || {
        browser.look("/readyz").await.is_some_and(|ready| ready.status == StatusCode::OK)
    })
    .await;
    // Without its tables the handler fails for good.
    let value = orders::payload(EventId::now().uuid(), 4_711_815, &Plan::Succeed);
    env.kafka.produce(Record::to("watched.orders").key("the-key-4711").value(&value)).await;
    eventually(LIMIT, "the dead letter", async || env.kafka.read_all("watched.dlq").await.len() == 1).await;

    // A process of its own: the runs of this one share their metrics.
    assert!(browser.get("/metrics").await.text.contains("\nidem_ready 1\n"));
    let overview = browser.get("/").await;
    for expected in ["watched", "42P01", "dead-letter", "/dlq?group=watched", "Everything runs"] {
        assert!(overview.text.contains(expected), "{expected} is missing in {}", overview.text);
    }
    let letters = browser.get("/dlq?group=watched").await;
    let at = letters.text.split("/dlq/letter?").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
    let letter = browser.get(&format!("/dlq/letter?{at}")).await;
    assert!(letter.text.contains("idem-origin-offset") && letter.text.contains("has not processed"), "{}", letter.text);
    let offset = at.rsplit('=').next().unwrap().to_owned();
    let partition = at.split("partition=").nth(1).unwrap().split('&').next().unwrap().to_owned();
    let place = [("group", "watched"), ("partition", &partition), ("offset", &offset)];

    // Nobody who has not logged in gets further, nor does a form of somebody else's.
    assert!(!letter.text.contains("<form"), "{}", letter.text);
    for path in ["/dlq/letter", "/dlq/replay"] {
        assert_eq!(browser.post(path, &place).await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let wrong = browser.post("/login", &[("name", "ada"), ("token", "a-token-that-nobody-knows")]).await;
    assert_eq!((wrong.status, wrong.headers.get("set-cookie")), (StatusCode::UNAUTHORIZED, None));
    browser.log_in("ada", TOKEN).await;
    for path in ["/dlq/letter", "/dlq/replay", "/groups/resume"] {
        assert_eq!(browser.post(path, &place).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    let letter = browser.get(&format!("/dlq/letter?{at}")).await;
    assert!(!letter.text.contains("4711815") && !letter.text.contains("the-key"), "{}", letter.text);
    let secret = letter.field("form_secret");
    let of_this_site = [&place[..], &[("form_secret", &secret)]].concat();
    let payload = browser.post("/dlq/letter", &of_this_site).await;
    assert!(payload.text.contains("4711815") && payload.text.contains("the-key-4711"), "{}", payload.text);
    program.line("the payload of a dead letter is shown", LIMIT).await;

    let tried = browser.post("/dlq/replay", &of_this_site).await;
    let plan = tried.field("plan");
    assert!(
        tried.text.contains("A replay would do this") && tried.text.contains("Replay 1 event now"),
        "{}",
        tried.text
    );
    assert_eq!(env.kafka.read_all("watched.replay").await.len(), 0, "it was only tried");
    orders::create_tables(&env.pool).await;
    let guessed = [("form_secret", secret.as_str()), ("plan", "guessed")];
    assert_eq!(browser.post("/dlq/replay/confirm", &guessed).await.status, StatusCode::BAD_REQUEST);
    let confirm = [("form_secret", secret.as_str()), ("plan", plan.as_str())];
    let done = browser.post("/dlq/replay/confirm", &confirm).await;
    assert!(done.status == StatusCode::OK && done.text.contains("Replayed"), "{}", done.text);
    assert_eq!(browser.post("/dlq/replay/confirm", &confirm).await.status, StatusCode::BAD_REQUEST, "only once");
    eventually(LIMIT, "the effect", async || orders::effect_count(&env.pool, "watched").await == 1).await;
    let again = browser.post("/dlq/replay", &of_this_site).await;
    assert!(again.text.contains("Nothing to replay"), "{}", again.text);

    program.line("replay ended", LIMIT).await;
    program.terminate();
    assert!(program.wait(LIMIT).await.success());
    let log = program.output().join("\n");
    assert!(log.contains("operator=\"ada\"") && log.contains("dry_run=true") && log.contains("dry_run=false"), "{log}");
    let payload_lines =
        log.lines().filter(|line| line.contains("4711815") || line.contains("the-key") || line.contains(TOKEN));
    assert_eq!(payload_lines.count(), 0, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_to_end_is_obeyed_at_once() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("hurried.orders", 1).await;
    let env = env.with("RUST_LOG", "idem_runtime=info");
    let mut program = Program::start(Path::new(env!("CARGO_BIN_EXE_consumer")), &["hurried"], &env.variables());
    program.line("assigned", LIMIT).await;
    orders::publish(&env.kafka, "hurried.orders", &[Plan::Sleep(15_000)]).await;
    let working =
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()";
    eventually(LIMIT, "the handler to run", async || {
        sqlx::query_scalar::<_, i64>(working).fetch_one(&env.pool).await.unwrap() > 0
    })
    .await;
    program.terminate();
    program.line("asked to end", LIMIT).await;
    assert!(program.ended().is_none(), "the first one lets the handler finish");
    program.terminate();
    let status = program.wait(Duration::from_secs(5)).await;
    assert_eq!(status.code(), Some(1));
    assert_eq!(orders::effect_count(&env.pool, "hurried").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_under_load_comes_within_the_grace_period_and_nothing_that_was_done_comes_again() {
    const GRACE: Duration = Duration::from_secs(10);
    const EVENTS: usize = 4_000;
    let env = TestEnv::new().await.with("IDEM_SHUTDOWN_GRACE", "10s");
    orders::create_tables(&env.pool).await;
    // Some are slow, and what comes behind them is finished before.
    let plans: Vec<Plan> =
        (0..EVENTS).map(|number| if number % 50 == 0 { Plan::Sleep(100) } else { Plan::Succeed }).collect();
    for group in ["together", "hastened"] {
        let topic = format!("{group}.orders");
        env.kafka.create_topic(&topic, 4).await;
        let ids = orders::publish(&env.kafka, &topic, &plans).await;
        let start = || Program::start(Path::new(env!("CARGO_BIN_EXE_consumer")), &[group], &env.variables());
        let done = async || orders::effect_count(&env.pool, group).await;
        let mut program = start();
        eventually(LIMIT, "the load", async || done().await > 500).await;
        program.terminate();
        let asked = Instant::now();
        let status = program.wait(2 * GRACE).await;
        assert!(status.success() && asked.elapsed() < GRACE, "{status} after {:?}", asked.elapsed());
        let finished = done().await;
        assert!(finished < EVENTS, "there was no load any more");
        let committed: i64 = env.kafka.committed(group, &topic).await.values().map(|committed| committed.offset).sum();
        assert_eq!(usize::try_from(committed).unwrap(), finished, "{group}: committed offsets");

        let mut program = start();
        eventually(LIMIT, "the rest", async || done().await == EVENTS).await;
        program.terminate();
        assert!(program.wait(2 * GRACE).await.success());
        orders::assert_each_once(&env.pool, group, &ids).await;
    }
}

#[idempotent_handler(topic = "shown.orders", group = "shown", retry = [], concurrency = 2)]
async fn shown_to_all(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "shown").await
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_need_the_token_and_other_sites_get_nothing() {
    let (env, addr) = env().await;
    let env = env.with("IDEM_RESTRICTED_TOPICS", "shown.orders");
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("shown.orders", 1).await;
    let run = Run::start(&env, &["shown"]);
    let browser = Browser::new(&addr);
    eventually(LIMIT, "readiness", async || run.health.is_ready()).await;
    let value = orders::payload(EventId::now().uuid(), 4_711_815, &Plan::Refuse);
    env.kafka.produce(Record::to("shown.orders").value(&value).header("tenant", Some(b"t-4711815"))).await;
    eventually(LIMIT, "the dead letter", async || env.kafka.read_all("shown.dlq").await.len() == 1).await;

    let order = serde_json::json!({"group": "shown", "dry_run": true});
    let replay = |authorization: Option<&str>, host: Option<&str>| {
        let request = browser.request(Method::POST, "/api/dlq/replay").json(&order);
        let request = authorization.into_iter().fold(request, |request, value| request.header("authorization", value));
        host.into_iter().fold(request, |request, value| request.header("host", value)).send()
    };
    let bearer = format!("Bearer {TOKEN}");
    for (authorization, host, status) in [
        (None, None, StatusCode::UNAUTHORIZED),
        (Some("Bearer a-token-that-nobody-knows"), None, StatusCode::UNAUTHORIZED),
        (Some(&bearer[..]), Some("evil.example"), StatusCode::MISDIRECTED_REQUEST),
        (Some(&bearer), None, StatusCode::OK),
    ] {
        let answer = shown(replay(authorization, host).await.unwrap()).await;
        assert_eq!(answer.status, status, "{authorization:?} {host:?}: {}", answer.text);
        if status == StatusCode::OK {
            assert_eq!(answer.json()["to_replay"], 1, "{}", answer.text);
        }
    }
    let foreign = browser.request(Method::GET, "/api/overview").header("host", "evil.example").send().await.unwrap();
    assert_eq!(foreign.status(), StatusCode::MISDIRECTED_REQUEST, "a name that leads here");
    // Another program's queue may be restricted there, which this one does not know.
    for path in ["/api/dlq?group=watched", "/dlq?group=watched", "/api/dlq/letter?group=watched&partition=0&offset=0"] {
        let other = browser.get(path).await;
        assert!(other.status == StatusCode::NOT_FOUND && other.text.contains("no such group"), "{}", other.text);
    }
    let wrong =
        browser.request(Method::GET, "/api/overview").header("authorization", "Bearer wrong").send().await.unwrap();
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED, "also where reading is free");
    let rebound = browser.request(Method::GET, "/readyz").header("host", "evil.example").send().await.unwrap();
    assert!(!rebound.text().await.unwrap().contains("reasons"));
    // Clients that say nothing keep no place for long.
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(tokio::net::TcpStream::connect(&addr).await.unwrap());
    }
    assert_eq!(browser.get("/healthz").await.status, StatusCode::OK);
    drop(silent);
    let page = browser.get("/").await;
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");

    // The topic is restricted: whoever asks, nothing of the record is shown.
    let letter = browser.get("/api/dlq/letter?group=shown&partition=0&offset=0").await;
    assert!(letter.json()["restricted"] == true && !letter.text.contains("tenant"), "{}", letter.text);
    let args = ["dlq", "show", "--group", "shown", "--partition", "0", "--offset", "0", "--payload", "--json"];
    let told = cli::idem(env.variables(), &args).await;
    assert!(told.json()["restricted"] == true && !told.stdout.contains("4711815"), "{}", told.stdout);

    let taken = Run::start(&env, &["shown"]).ended(LIMIT).await.unwrap_err().to_string();
    assert!(taken.contains("IDEM_ADMIN_ADDR") && taken.contains(&addr) && taken.contains("off"), "{taken}");
    run.stop().await.unwrap();
    eventually(LIMIT, "the server to end with the run", async || browser.look("/healthz").await.is_none()).await;
}

#[idempotent_handler(topic = "probed.orders", group = "probed", retry = [])]
async fn probed(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "probed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_says_what_is_in_the_way_and_the_page_comes_without_the_database() {
    let mut postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("app").await.unwrap();
    let (env, addr) = with_admin(TestEnv::on(&url, Kafka::shared().await));
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("probed.orders", 1).await;
    let browser = Browser::new(&addr);
    let run = Run::start(&env, &["probed"]);
    let ready = async |wanted: StatusCode| {
        eventually_some(LIMIT, &format!("readiness to be {wanted}"), async || {
            browser.look("/readyz").await.filter(|ready| ready.status == wanted)
        })
        .await
        .json()
    };
    assert_eq!(ready(StatusCode::OK).await["reasons"], serde_json::json!([]));
    postgres.stop_fast().await.unwrap();
    // Also while there is nothing to do, and not for a moment only.
    let is_told = async || browser.get("/readyz").await.text.contains("group probed: its position can't be read");
    eventually(LIMIT, "what is in the way of the group", is_told).await;
    for _ in 0..25 {
        assert!(is_told().await, "{}", browser.get("/readyz").await.text);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    orders::publish(&env.kafka, "probed.orders", &[Plan::Succeed]).await;
    assert_eq!(browser.get("/healthz").await.status, StatusCode::OK);
    let asked = Instant::now();
    let page = browser.get("/").await;
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    assert!(page.status == StatusCode::OK && page.text.contains("Something is in the way"), "{}", page.text);
    postgres.start_again().await.unwrap();
    ready(StatusCode::OK).await;
    eventually(LIMIT, "the effect", async || orders::effect_count(&env.pool, "probed").await == 1).await;
    run.stop().await.unwrap();
}

#[idempotent_handler(topic = "measured.orders", group = "measured", retry = [])]
async fn measured(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "measured").await
}

#[idempotent_handler(topic = "measured.charges", group = "measured.money", money = true)]
async fn measured_money(_tx: &mut Tx<'_>, _order: Order, _payments: MoneyClient) -> HandlerResult {
    Ok(())
}

/// Every name of a metric in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let of_ours = words.filter(|word| word.starts_with("idem_"));
    let base = |word: &str| {
        ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned()
    };
    of_ours.map(base).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_and_the_alerts_name_what_is_really_exported() {
    let (env, addr) = env().await;
    orders::create_tables(&env.pool).await;
    cli::idem(env.variables(), &["migrate", "--json"]).await.json();
    // There is a horizon only once something was forgotten.
    let horizon =
        "INSERT INTO group_horizon (consumer_group, ids_before) VALUES ('measured', now() - interval '7 days')";
    sqlx::raw_sql(horizon).execute(&env.pool).await.unwrap();
    env.kafka.create_topic("measured.orders", 3).await;
    env.kafka.create_topic("measured.charges", 1).await;
    let run = Run::start(&env, &["measured", "measured.money"]);
    let browser = Browser::new(&addr);
    eventually(LIMIT, "readiness", async || run.health.is_ready()).await;
    // All on one partition, in order: the others are idle.
    let mut sent = Vec::new();
    for number in 0..40 {
        let plan = if number == 0 { Plan::Refuse } else { Plan::Sleep(400) };
        sent.push(orders::payload(EventId::now().uuid(), number, &plan));
    }
    for value in &sent {
        env.kafka.produce(Record::to("measured.orders").partition(1).value(value)).await;
    }
    let value = async |metric: &str| -> Option<f64> {
        let text = browser.get("/metrics").await.text;
        let line = text.lines().find(|line| line.starts_with(&format!("{metric} ")))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let lag = |partition| {
        format!("idem_consumer_lag{{group=\"measured\",topic=\"measured.orders\",partition=\"{partition}\"}}")
    };
    eventually(LIMIT, "the lag of the busy partition", async || value(&lag(1)).await.is_some_and(|lag| lag > 5.0))
        .await;
    assert_eq!((value(&lag(0)).await, value(&lag(2)).await), (Some(0.0), Some(0.0)), "idle partitions");
    let in_flight = "idem_in_flight{group=\"measured\"}";
    eventually(LIMIT, "an event in progress", async || value(in_flight).await == Some(1.0)).await;
    assert_eq!(value("idem_dlq_total{group=\"measured\",reason=\"permanent\"}").await, Some(1.0));
    eventually(LIMIT, "the lag to go", async || value(&lag(1)).await == Some(0.0)).await;

    let exported = names(&browser.get("/metrics").await.text);
    for file in ["grafana/idem.json", "prometheus/rules.yml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        let named = names(&text);
        assert!(named.len() > 5, "{named:?}");
        let missing: Vec<_> = named.difference(&exported).collect();
        assert!(missing.is_empty(), "{file} names {missing:?}, which is not exported; there is {exported:?}");
    }
    run.stop().await.unwrap();
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct Told {
    event_id: EventId,
    text: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_can_not_be_published_is_seen_on_the_page_and_released_there() {
    let (env, addr) = env().await;
    let env = env.with("RUST_LOG", "idem_runtime=info").with("IDEM_RELAY_TIMEOUT", "2s");
    let topic = env.topic("told");
    env.kafka.create_topic("asked.orders", 1).await;
    env.kafka.create_topic_with_config(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let mut program = Program::start(Path::new(env!("CARGO_BIN_EXE_consumer")), &["asked"], &env.variables());
    program.line("relaying the outbox", LIMIT).await;
    let mut tx = env.pool.begin().await.unwrap();
    for (key, bytes) in [("a", 5_000), ("a", 0), ("b", 5_000)] {
        let text = "sentinel".repeat(bytes / 8);
        outbox::publish(&mut tx, &topic, key, |event_id| Told { event_id, text }).await.unwrap();
    }
    tx.commit().await.unwrap();
    let mut browser = Browser::new(&addr);
    let parked = eventually_some(LIMIT, "both to be parked", async || {
        let outbox = browser.get("/api/outbox").await.json();
        outbox["parked"].as_array().filter(|parked| parked.len() == 2).cloned()
    })
    .await;
    let [a, b] = [&parked[0], &parked[1]].map(|parked| parked["seq"].to_string());
    let page = browser.get("/").await.text;
    for expected in ["2 MessageSizeTooLarge", &*topic, "2 parked in the outbox"] {
        assert!(page.contains(expected), "{expected} is missing in {page}");
    }
    assert!(!page.contains("sentinel") && !page.contains("/outbox/release"), "{page}");
    let look = format!("/outbox/release?seq={a}");
    assert!(!browser.get(&look).await.text.contains("<form"), "a stranger may look");
    let order = [("seq", &*a), ("what", "send")];
    assert_eq!(browser.post("/outbox/release", &order).await.status, StatusCode::UNAUTHORIZED);

    browser.log_in("ada", TOKEN).await;
    let shown = browser.get(&look).await;
    assert!(shown.text.contains("and then those behind it: 2 events"), "{}", shown.text);
    assert_eq!(browser.post("/outbox/release", &order).await.status, StatusCode::FORBIDDEN, "somebody else's form");
    env.kafka.alter_topic(&topic, &[("max.message.bytes", "20000")]).await;
    let secret = shown.field("form_secret");
    let order = [&order[..], &[("form_secret", &secret)]].concat();
    assert_eq!(browser.post("/outbox/release", &order).await.location.as_deref(), Some("/"));
    eventually(LIMIT, "both of one key", async || env.kafka.read_all(&topic).await.len() == 2).await;
    let again = browser.post("/outbox/release", &order).await;
    assert_eq!(again.status, StatusCode::NOT_FOUND, "only once: {}", again.text);

    // A program drops the other one.
    let order = serde_json::json!({"seq": b.parse::<i64>().unwrap(), "drop": true});
    let request = browser.request(Method::POST, "/api/outbox/release").json(&order);
    let dropped = tests::http::shown(request.bearer_auth(TOKEN).send().await.unwrap()).await;
    assert_eq!(dropped.json(), serde_json::json!({"released": 0, "dropped": 1}), "{}", dropped.text);
    assert_eq!(browser.get("/api/outbox").await.json()["parked"], serde_json::json!([]));
    program.line("the parked event is released", LIMIT).await;
    program.terminate();
    assert!(program.wait(LIMIT).await.success());
    let log = program.output().join("\n");
    assert!(log.contains("drop=true") && log.contains("drop=false") && !log.contains("sentinel"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_come_from_a_file_and_secrets_from_files_and_each_says_where_it_stands() {
    let env = TestEnv::new().await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let url = file("url", &format!("{}\n", env.database_url));
    let config =
        file("idem.toml", "pool_size = 3\n[dedup]\nwindow = \"3d\"\n[kafka.sasl]\npassword = \"sentinel-4711\"\n");
    let variables: Vec<(String, String)> = env
        .variables()
        .into_iter()
        .filter(|(name, _)| name != "IDEM_DATABASE_URL")
        .chain([("IDEM_DATABASE_URL_FILE", &url), ("IDEM_CONFIG", &config)].map(|(n, v)| (n.to_owned(), v.clone())))
        .chain([("IDEM_DEDUP_WINDOW".to_owned(), "4d".to_owned())])
        .collect();
    let checked = cli::idem(variables.clone(), &["config", "check", "--json"]).await;
    assert!(!checked.stdout.contains("sentinel"), "{}", checked.stdout);
    let told = checked.json();
    let setting = |variable: &str| {
        let all = told["settings"].as_array().unwrap();
        let found = all.iter().find(|setting| setting["variable"] == variable).unwrap();
        (found["value"].as_str().unwrap().to_owned(), found["source"].as_str().unwrap().to_owned())
    };
    assert_eq!(setting("IDEM_POOL_SIZE"), ("3".to_owned(), format!("file {config}")));
    assert_eq!(setting("IDEM_DEDUP_WINDOW"), ("4days".to_owned(), "environment".to_owned()));
    assert_eq!(setting("IDEM_DATABASE_URL").1, "environment (_FILE)");
    assert_eq!(setting("IDEM_STRICT"), ("false".to_owned(), "default".to_owned()));
    assert_eq!(setting("IDEM_KAFKA_SASL_PASSWORD"), ("[redacted]".to_owned(), format!("file {config}")));
    // The password needs no server to work with the database that the file names.
    let wrong = variables.into_iter().chain([("IDEM_POOLSIZE".to_owned(), "sentinel-4711".to_owned())]).collect();
    let refused = cli::idem(wrong, &["status"]).await;
    assert_eq!(refused.status, Some(1));
    assert!(
        refused.stderr.contains("did you mean IDEM_POOL_SIZE?") && !refused.stderr.contains("sentinel"),
        "{}",
        refused.stderr
    );
}

#[test]
fn the_manifest_has_settings_that_there_are_and_waits_for_longer_than_the_program() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/service.yaml"));
    let text = text.unwrap();
    let deployment = text.split("---").find(|document| document.contains("kind: Deployment")).unwrap();
    let secrets = tempfile::tempdir().unwrap();
    let secret = |name: &str, value: &str| {
        std::fs::write(secrets.path().join(name), value).unwrap();
    };
    secret("database-url", "postgres://billing@db/app");
    secret("kafka-password", "a-secret");
    secret("admin-token", TOKEN);
    let variables = deployment.lines().filter_map(|line| {
        let (name, value) = line.trim().strip_prefix("- { name: IDEM_")?.strip_suffix(" }")?.split_once(", value: ")?;
        let value = value.trim_matches('"').replace("/run/secrets/idem", secrets.path().to_str()?);
        Some((format!("IDEM_{name}"), value))
    });
    let variables: Vec<(String, String)> = variables.collect();
    assert!(variables.len() >= 9, "{variables:?}");
    let config = idem_runtime::Config::from_vars(variables).unwrap_or_else(|errors| panic!("{errors}"));
    let settings = idem_runtime::ops::settings::of(&config);
    let grace = settings.iter().find(|setting| setting.variable == "IDEM_SHUTDOWN_GRACE").unwrap();
    let grace: u64 = grace.value.strip_suffix('s').unwrap().parse().unwrap();
    let line = deployment.lines().find_map(|line| line.trim().strip_prefix("terminationGracePeriodSeconds: "));
    let killed_after: u64 = line.unwrap().parse().unwrap();
    assert!(killed_after >= grace + 5, "killed after {killed_after} s, with {grace} s of grace");
}
