//! Dead letters can be looked at and sent through the group once more, and an operator is told where
//! a group is, and why.

use std::time::Duration;

use idem_runtime::Config;
use idem_runtime::ops::dlq::{self, Filter};
use idem_runtime::ops::replay::{self, Options};
use idem_runtime::ops::{self, Ops, status};
use idem_runtime::prelude::*;
use serde_json::Value;
use tests::cli::{self, Said};
use tests::orders::{self, Order, Plan};
use tests::{Client, Kafka, MockBroker, Postgres, Record, Run, TestEnv, eventually};

const LIMIT: Duration = Duration::from_secs(60);

async fn idem(env: &TestEnv, args: &[&str]) -> Said {
    cli::idem(env.variables(), args).await
}

fn ops(env: &TestEnv) -> Ops {
    Ops::new(Config::from_vars(env.variables()).unwrap())
}

/// A handler with a mistake, until the database says that it was mended.
#[idempotent_handler(topic = "mended.orders", group = "mended", retry = ["100ms"])]
async fn mended(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    let is_mended: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM taken WHERE name = 'mended')").fetch_one(&mut **tx).await?;
    let plan = if is_mended { Plan::Succeed } else { Plan::Refuse };
    orders::handle(tx, Order { plan, ..order }, &delivery, "mended").await
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_take_effect_once_after_the_handler_was_mended() {
    let env = TestEnv::new().await;
    env.kafka.create_topic("mended.orders", 2).await;
    dead_letters_are_replayed(&env).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_on_the_mock_cluster() {
    let broker = MockBroker::start().unwrap();
    for topic in ["mended.orders", "mended.retry.100ms", "mended.replay", "mended.dlq"] {
        broker.create_topic(topic, 2).unwrap();
    }
    let env = TestEnv::on(&tests::postgres::database().await, &Client::new(broker.bootstrap_servers()));
    dead_letters_are_replayed(&env).await;
}

async fn dead_letters_are_replayed(env: &TestEnv) {
    orders::create_tables(&env.pool).await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let (id, value) = orders::order(number, &Plan::Succeed);
        let record = Record::to("mended.orders").key("card 4111").value(&value).header(b"\xff\xfe", Some(b"\x00\xff"));
        env.kafka.produce(record.header("", None)).await;
        ids.push(id);
    }
    env.kafka.produce(Record::to("mended.orders").value("card 4111")).await;
    env.kafka.produce(Record::to("mended.orders")).await;
    let run = Run::start(env, &["mended"]);
    eventually(LIMIT, "the dead letters", async || env.kafka.read_all("mended.dlq").await.len() == 7).await;
    let letters = env.kafka.read_all("mended.dlq").await;

    let listed = idem(env, &["dlq", "list", "--group", "mended", "--json"]).await.json();
    assert_eq!(listed["letters"], 7);
    let groups: Vec<(&str, u64)> = listed["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| (group["reason"].as_str().unwrap(), group["letters"].as_u64().unwrap()))
        .collect();
    assert_eq!(groups[0], ("permanent", 5));
    assert!(groups.contains(&("unparsable", 1)) && groups.contains(&("null", 1)), "{listed}");
    assert_eq!(listed["groups"][0]["handler"], "dead_letters::mended");
    let only = idem(env, &["dlq", "list", "--group", "mended", "--reason", "null", "--json"]).await.json();
    assert_eq!(only["letters"], 1);

    // Shown without what may be a secret, unless asked for.
    let letter = letters.iter().find(|letter| letter.header("idem-reason").as_deref() == Some("permanent")).unwrap();
    let (partition, offset) = (letter.partition.to_string(), letter.offset.to_string());
    let show = ["dlq", "show", "--group", "mended", "--partition", &partition, "--offset", &offset, "--json"];
    let shown = idem(env, &show).await;
    assert!(!shown.stdout.contains("4111") && !shown.stderr.contains("4111"), "{}", shown.stdout);
    let shown = shown.json();
    assert_eq!((&shown["state"], &shown["reason"]), (&"in-window".into(), &"permanent".into()));
    assert_eq!(shown["headers"][0]["name"]["hex"], "fffe");
    let whole = idem(env, &[&show[..], &["--payload"]].concat()).await.json();
    assert_eq!(whole["key"]["text"], "card 4111");
    assert!(whole["payload"]["text"].as_str().unwrap().contains("event_id"), "{whole}");

    // A dry run tells states and changes nothing.
    let replay = ["dlq", "replay", "--group", "mended", "--json"];
    let dry = idem(env, &[&replay[..], &["--dry-run"]].concat()).await.json();
    assert_eq!((&dry["matched"], &dry["to_replay"], &dry["replayed"]), (&7.into(), &7.into(), &0.into()));
    assert_eq!((&dry["states"]["in_window"], &dry["states"]["no_id"]), (&5.into(), &2.into()));
    assert_eq!(dry["events"].as_array().unwrap().len(), 7);
    assert_eq!(env.kafka.read_all("mended.replay").await, []);
    assert_eq!(env.kafka.read_all("mended.dlq").await, letters);

    sqlx::query("INSERT INTO taken VALUES ('mended')").execute(&env.pool).await.unwrap();
    let id = ids[2].to_string();
    let one = idem(env, &[&replay[..], &["--event-id", &id]].concat()).await.json();
    assert_eq!((&one["matched"], &one["replayed"]), (&1.into(), &1.into()));
    eventually(LIMIT, "one effect", async || orders::effect_count(&env.pool, "mended").await == 1).await;
    let all = idem(env, &[&replay[..], &["--reason", "permanent"]].concat()).await.json();
    assert_eq!((&all["matched"], &all["replayed"], &all["done"]), (&5.into(), &4.into(), &1.into()));
    eventually(LIMIT, "all effects", async || orders::effect_count(&env.pool, "mended").await == 5).await;

    // Once more: all of them are done, and none is sent.
    let again = idem(env, &[&replay[..], &["--reason", "permanent"]].concat()).await.json();
    assert_eq!((&again["replayed"], &again["done"], &again["states"]["done"]), (&0.into(), &5.into(), &5.into()));
    run.stop().await.unwrap();
    orders::assert_each_once(&env.pool, "mended", &ids).await;
    let replayed = env.kafka.read_all("mended.replay").await;
    assert_eq!(replayed.len(), 5);
    for record in replayed {
        assert!(record.headers.contains(&(b"\xff\xfe".to_vec(), Some(b"\x00\xff".to_vec()))));
        assert!(record.headers.contains(&(Vec::new(), None)));
        assert_eq!(record.key.as_deref(), Some(&b"card 4111"[..]));
        assert_eq!(record.header("idem-attempt").as_deref(), Some("0"));
        assert_eq!(record.header("idem-replay-count").as_deref(), Some("1"));
        assert_eq!(record.header("idem-origin-topic").as_deref(), Some("mended.orders"));
        assert_eq!(record.header("idem-due-at"), None);
    }
}

#[idempotent_handler(topic = "stubborn.orders", group = "stubborn", retry = ["100ms"])]
async fn stubborn(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "stubborn").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_still_fails_comes_back_after_its_attempts_and_its_letters_do_not_multiply() {
    let env = TestEnv::new().await;
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("stubborn.orders", 1).await;
    orders::publish(&env.kafka, "stubborn.orders", &[Plan::FailTimes(1_000)]).await;
    let run = Run::start(&env, &["stubborn"]);
    let ops = ops(&env);
    let letters = async |count| {
        let what = format!("{count} letters");
        eventually(LIMIT, &what, async || env.kafka.read_all("stubborn.dlq").await.len() == count).await;
    };
    letters(1).await;
    for round in 1..=3 {
        let report = replay::replay(&ops, "stubborn", &Options::default(), &mut ops::silent).await.unwrap();
        assert_eq!((report.matched, report.replayed, report.superseded), (round, 1, round - 1));
        letters(usize::try_from(round).unwrap() + 1).await;
    }
    run.stop().await.unwrap();
    // Two attempts each time: one, and one more after the only tier.
    assert_eq!(env.kafka.read_all("stubborn.retry.100ms").await.len(), 4);
    let letters = env.kafka.read_all("stubborn.dlq").await;
    for (round, letter) in letters.iter().enumerate() {
        assert_eq!(letter.header("idem-attempt").as_deref(), Some("2"));
        assert_eq!(letter.header("idem-reason").as_deref(), Some("exhausted"));
        assert_eq!(letter.header("idem-replay-count"), (round > 0).then(|| round.to_string()));
        assert_eq!(letter.headers.len(), letters[1].headers.len() - if round == 0 { 2 } else { 0 });
        assert_eq!(letter.header("idem-first-failed-at"), letters[0].header("idem-first-failed-at"));
    }
    assert_eq!(orders::effect_count(&env.pool, "stubborn").await, 0);
    let listed = dlq::list(&ops, "stubborn", &Filter::default(), &mut ops::silent).await.unwrap();
    assert_eq!((listed.letters, listed.groups[0].events), (4, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_ends_where_the_queue_ended_when_it_began() {
    let env = TestEnv::new().await;
    let ops = ops(&env);
    status::migrate(&ops).await.unwrap();
    let (group, queue) = (env.group("late"), env.topic("late.dlq"));
    env.kafka.create_topic(&queue, 3).await;
    env.kafka.create_topic(&env.topic("late.replay"), 3).await;
    let append = async |numbers: std::ops::Range<i64>| {
        let sent = numbers.map(|number| {
            let (_, value) = orders::order(number, &Plan::Succeed);
            let (key, offset) = (number.to_string(), number.to_string());
            let letter = Record::to(&queue).key(&key).value(&value).header("idem-attempt", Some(b"1"));
            let letter =
                letter.header("idem-origin-topic", Some(b"orders")).header("idem-origin-partition", Some(b"0"));
            env.kafka.produce(letter.header("idem-origin-offset", Some(offset.as_bytes())))
        });
        futures_util::future::join_all(sent.collect::<Vec<_>>()).await;
    };
    append(0..500).await;
    env.kafka.produce(Record::to(&queue).value("not the library's")).await;

    let mut appended = false;
    let mut ends = Vec::new();
    let mut on_progress = |progress: ops::Progress| {
        if !std::mem::replace(&mut appended, true) {
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(append(500..600)));
        }
        ends.push(progress.total);
    };
    let report = replay::replay(&ops, &group, &Options::default(), &mut on_progress).await.unwrap();
    assert_eq!((report.matched, report.replayed, report.impossible), (501, 500, 1));
    assert!(ends.iter().all(|end| *end == 501));
    assert_eq!(env.kafka.read_all(&env.topic("late.replay")).await.len(), 500);

    let two = Options { limit: Some(2), dry_run: true, ..Options::default() };
    let limited = replay::replay(&ops, &group, &two, &mut ops::silent).await.unwrap();
    assert_eq!((limited.to_replay, limited.limit_reached), (2, true));
    let whole = Options { dry_run: true, ..Options::default() };
    let whole = replay::replay(&ops, &group, &whole, &mut ops::silent).await.unwrap();
    assert_eq!((whole.matched, whole.to_replay, whole.limit_reached), (601, 600, false));
}

#[idempotent_handler(topic = "rewound.orders", group = "rewound")]
async fn rewound(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "rewound").await
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_after_a_restore_say_that_the_group_goes_back_and_why() {
    let mut postgres = Postgres::start().await.unwrap();
    let env = TestEnv::on(&postgres.create_database("app").await.unwrap(), Kafka::shared().await);
    orders::create_tables(&env.pool).await;
    env.kafka.create_topic("rewound.orders", 1).await;
    let handled = async |count: usize| {
        orders::publish(&env.kafka, "rewound.orders", &vec![Plan::Succeed; 10]).await;
        let run = Run::start(&env, &["rewound"]);
        eventually(LIMIT, "the effects", async || orders::effect_count(&env.pool, "rewound").await == count).await;
        run.stop().await.unwrap();
    };
    handled(10).await;
    let copy = tempfile::tempdir().unwrap();
    postgres.stop_fast().await.unwrap();
    postgres.copy_data_dir_to(&copy.path().join("data")).await.unwrap();
    postgres.start_again().await.unwrap();
    handled(20).await;
    let of_orders = async || {
        let told = idem(&env, &["offsets", "--group", "rewound", "--json"]).await.json();
        let partitions = told["partitions"].as_array().unwrap();
        partitions.iter().find(|partition| partition["topic"] == "rewound.orders").unwrap().clone()
    };
    let agreed = of_orders().await;
    assert_eq!((&agreed["start"]["why"], &agreed["lag"]), (&"agreed".into(), &0.into()));

    postgres.stop_immediate().await.unwrap();
    postgres.restore_from(&copy.path().join("data")).await.unwrap();
    postgres.start_again().await.unwrap();
    let back = of_orders().await;
    assert_eq!((&back["kafka"]["offset"], &back["database"]["next_offset"]), (&20.into(), &10.into()));
    assert_eq!((&back["start"]["offset"], &back["start"]["why"]), (&10.into(), &"database-went-back".into()));
    assert_eq!((&back["log_start"], &back["log_end"], &back["lag"]), (&0.into(), &20.into(), &10.into()));
    assert!(back["start"]["explanation"].as_str().unwrap().contains("database behind"), "{back}");

    let status = idem(&env, &["status", "--json"]).await.json();
    assert_eq!((&status["groups"][0]["group"], &status["groups"][0]["lag"]), (&"rewound".into(), &10.into()));
    assert_eq!(status["schema"]["pending"], Value::Array(Vec::new()));
    assert!(status["dedup"]["days"].as_i64().unwrap() >= 8, "{status}");
}

#[idempotent_handler(topic = "moved.orders", group = "moved")]
async fn moved(tx: &mut Tx<'_>, order: Order, delivery: Delivery) -> HandlerResult {
    orders::handle(tx, order, &delivery, "moved").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_group_goes_on_with_a_database_that_was_accepted() {
    let (env, other) = (TestEnv::new().await, TestEnv::new().await);
    for env in [&env, &other] {
        orders::create_tables(&env.pool).await;
        idem(env, &["migrate", "--json"]).await.json();
    }
    env.kafka.create_topic("moved.orders", 1).await;
    orders::publish(&env.kafka, "moved.orders", &vec![Plan::Succeed; 3]).await;
    let run = Run::start(&env, &["moved"]);
    let offset = async || env.kafka.committed("moved", "moved.orders").await.get(&0).map(|found| found.offset);
    eventually(LIMIT, "the offset", async || offset().await == Some(3)).await;

    let accept = ["group", "accept", "moved", "--yes", "--json"];
    let running = idem(&other, &accept).await;
    assert_eq!(running.status, Some(1));
    assert!(running.stderr.contains("running members"), "{}", running.stderr);
    assert_eq!(running.stdout, "");
    run.stop().await.unwrap();
    let unasked = idem(&other, &accept[..3]).await;
    assert_eq!(unasked.status, Some(2), "{}", unasked.stderr);

    let offsets = idem(&other, &["offsets", "--group", "moved", "--json"]).await.json();
    assert!(offsets["partitions"].as_array().unwrap().iter().all(|found| found["start"]["why"] == "another-database"));
    let accepted = idem(&other, &accept).await.json();
    assert!(!accepted["partitions"].as_array().unwrap().is_empty(), "{accepted}");
    assert_eq!(idem(&other, &accept).await.json()["partitions"], Value::Array(Vec::new()), "nothing is left");

    let ids = orders::publish(&other.kafka, "moved.orders", &[Plan::Succeed]).await;
    let run = Run::start(&other, &["moved"]);
    eventually(LIMIT, "the next order", async || orders::effect_count(&other.pool, "moved").await == 1).await;
    run.stop().await.unwrap();
    orders::assert_each_once(&other.pool, "moved", &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_says_what_and_where_and_ends_with_its_own_status() {
    let env = TestEnv::new().await;
    let said = async |args: &[&str]| {
        let said = idem(&env, args).await;
        assert_eq!(said.stdout, "", "{args:?}");
        (said.status, said.stderr)
    };
    let (status, text) = said(&["status"]).await;
    assert!(status == Some(1) && text.contains("idem migrate"), "{text}");
    idem(&env, &["migrate", "--json"]).await.json();
    let (status, text) = said(&["dlq", "list", "--group", "nobody", "--json"]).await;
    assert!(status == Some(1) && text.contains("nobody.dlq"), "{text}");
    let (status, text) = said(&["offsets", "--group", "nobody"]).await;
    assert!(status == Some(1) && text.contains("`nobody`"), "{text}");
    assert_eq!(said(&["dlq", "replay"]).await.0, Some(2));

    let wrong = env.clone().with("IDEM_POOL_SIZE", "many").with("IDEM_KAFKA_SASL_PASSWORD", "sentinel");
    let checked = idem(&wrong, &["config", "check", "--json"]).await;
    assert_eq!(checked.status, Some(1));
    let problems: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(problems["problems"][0]["variable"], "IDEM_POOL_SIZE");
    let right = env.clone().with("IDEM_KAFKA_SASL_PASSWORD", "sentinel");
    let checked = idem(&right, &["config", "check", "--json"]).await;
    assert!(checked.json()["ok"] == true && !checked.stdout.contains("sentinel"), "{}", checked.stdout);
}
