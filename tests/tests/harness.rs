//! The harness itself: what the other tests rely on.

use std::path::Path;
use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection};
use tests::{Client, Committed, Fault, Kafka, Postgres, Program, Proxy, Record, TestEnv, eventually};

const SOON: Duration = Duration::from_secs(30);

async fn insert(url: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    let mut tx = connection.begin().await?;
    sqlx::query("INSERT INTO kept VALUES ($1)").bind(1).execute(&mut *tx).await?;
    tx.commit().await
}

async fn rows(env: &TestEnv) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&env.pool).await.unwrap()
}

#[tokio::test]
async fn records_come_back_with_headers_of_any_bytes() {
    let env = TestEnv::new().await;
    let topic = env.topic("orders");
    env.kafka.create_topic(&topic, 3).await;
    assert_eq!(env.kafka.partitions(&topic).await, [0, 1, 2]);
    assert_eq!(env.kafka.partitions("missing").await, [] as [i32; 0]);

    let full = Record::to(&topic).partition(2).key("k").value("v").timestamp(1_700_000_000_000);
    let full = full.header(b"\xff\xfe", Some(b"\x00\x01")).header("none", None).header("none", Some(b""));
    assert_eq!(env.kafka.produce(full).await, (2, 0));
    assert_eq!(env.kafka.produce(Record::to(&topic).partition(1)).await, (1, 0));

    let records = env.kafka.read_all(&topic).await;
    assert_eq!(records.len(), 2);
    assert_eq!((records[0].partition, &records[0].key, &records[0].value), (1, &None, &None));
    assert_eq!(records[0].headers, []);
    assert_eq!(records[1].key.as_deref(), Some(&b"k"[..]));
    assert_eq!(records[1].value.as_deref(), Some(&b"v"[..]));
    assert_eq!(records[1].timestamp, Some(1_700_000_000_000));
    let expected = [
        (b"\xff\xfe".to_vec(), Some(b"\x00\x01".to_vec())),
        (b"none".to_vec(), None),
        (b"none".to_vec(), Some(Vec::new())),
    ];
    assert_eq!(records[1].headers, expected);

    env.kafka.delete_topic(&topic).await;
    eventually(SOON, "the topic is gone", async || env.kafka.partitions(&topic).await.is_empty()).await;
}

#[tokio::test]
async fn offsets_are_seen_reset_and_forgotten() {
    use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
    use rdkafka::{Offset, TopicPartitionList};

    let env = TestEnv::new().await;
    let (topic, group) = (env.topic("orders"), env.group("billing"));
    env.kafka.create_topic_with_config(&topic, 2, &[("max.message.bytes", "2000")]).await;
    env.kafka.alter_topic(&topic, &[("max.message.bytes", "3000")]).await;
    env.kafka.produce(Record::to(&topic).partition(0).value("v")).await;
    assert!(env.kafka.committed(&group, &topic).await.is_empty());

    let consumer: BaseConsumer = env.kafka.config().set("group.id", &group).create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&topic, 0, Offset::Offset(1)).unwrap();
    offsets.find_partition(&topic, 0).unwrap().set_metadata("lineage");
    let committed = tokio::task::spawn_blocking(move || {
        // The group's coordinator may have to be made first.
        while consumer.commit(&offsets, CommitMode::Sync).is_err() {
            std::thread::yield_now();
        }
    });
    committed.await.unwrap();
    let expected = Committed { offset: 1, metadata: "lineage".to_owned() };
    assert_eq!(env.kafka.committed(&group, &topic).await, [(0, expected)].into());

    env.kafka.reset_offsets(&group, &topic, &["--to-earliest"]).await;
    let reset = Committed { offset: 0, metadata: String::new() };
    assert_eq!(env.kafka.committed(&group, &topic).await[&0], reset);

    env.kafka.delete_group(&group).await;
    assert!(env.kafka.committed(&group, &topic).await.is_empty());
}

#[tokio::test]
async fn a_broker_keeps_its_records_over_stop_and_kill() {
    let kafka = Kafka::start().await;
    kafka.create_topic("orders", 1).await;
    kafka.produce(Record::to("orders").value("1")).await;
    kafka.stop().await;
    assert!(!kafka.answers().await);
    kafka.start_again().await;
    kafka.produce(Record::to("orders").value("2")).await;
    kafka.kill().await;
    kafka.start_again().await;
    eventually(SOON, "both records are there", async || kafka.read_all("orders").await.len() == 2).await;
}

#[tokio::test]
async fn the_mock_cluster_serves_the_same_client() {
    let broker = tests::MockBroker::start().unwrap();
    broker.create_topic("orders", 2).unwrap();
    let kafka = Client::new(broker.bootstrap_servers());
    kafka.produce(Record::to("orders").partition(1).value("v").header("h", Some(b"1"))).await;
    let records = kafka.read_all("orders").await;
    assert_eq!(records[0].header("h").as_deref(), Some("1"));
}

#[tokio::test]
async fn a_database_goes_back_to_an_earlier_copy() {
    let mut postgres = Postgres::start().await.unwrap();
    let env = TestEnv::on(&postgres.create_database("shop").await.unwrap(), &Client::new("unused"));
    env.pool.execute("CREATE TABLE kept (n int)").await.unwrap();
    insert(&env.database_url).await.unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let copy = scratch.path().join("copy");
    postgres.stop_fast().await.unwrap();
    postgres.copy_data_dir_to(&copy).await.unwrap();
    postgres.start_again().await.unwrap();
    insert(&env.database_url).await.unwrap();
    postgres.stop_immediate().await.unwrap();
    postgres.restore_from(&copy).await.unwrap();
    postgres.start_again().await.unwrap();
    assert_eq!(rows(&env).await, 1);
}

#[tokio::test]
async fn a_cut_commit_is_an_error_whether_or_not_the_row_is_there() {
    let env = TestEnv::on(&tests::postgres::database().await, &Client::new("unused"));
    env.pool.execute("CREATE TABLE kept (n int)").await.unwrap();
    let proxy = Proxy::start(tests::postgres::shared().await.port()).await;
    let url = proxy.url(&env.database_url);
    assert_ne!(url, env.database_url);

    insert(&url).await.unwrap();
    assert_eq!(rows(&env).await, 1, "an unarmed proxy changes nothing");

    proxy.arm(Fault::LoseReply, "COMMIT", 1);
    insert(&url).await.unwrap_err();
    assert_eq!((rows(&env).await, proxy.count(Fault::LoseReply)), (2, 1), "it was committed");

    proxy.arm(Fault::CutBefore, "commit", 1);
    insert(&url).await.unwrap_err();
    assert_eq!((rows(&env).await, proxy.count(Fault::CutBefore)), (2, 1), "it was not");

    proxy.arm(Fault::CutBefore, "INSERT INTO kept", 1);
    insert(&url).await.unwrap_err();
    assert_eq!(proxy.count(Fault::CutBefore), 2, "prepared statements are recognised too");

    proxy.arm(Fault::Blackhole, "COMMIT", 1);
    let hanging = tokio::spawn({
        let url = url.clone();
        async move { insert(&url).await }
    });
    eventually(SOON, "the commit is swallowed", async || proxy.count(Fault::Blackhole) == 1).await;
    assert!(!hanging.is_finished());
    proxy.cut_all();
    hanging.await.unwrap().unwrap_err();

    proxy.refuse(true);
    insert(&url).await.unwrap_err();
    proxy.refuse(false);
    proxy.freeze(true);
    let waiting = tokio::spawn(async move { insert(&url).await });
    proxy.freeze(false);
    waiting.await.unwrap().unwrap();
    assert_eq!(rows(&env).await, 3);
}

#[tokio::test]
async fn a_program_is_read_paused_and_killed() {
    let script = "echo ready $GREETING; echo oops >&2; sleep 600";
    let variables = [("GREETING".to_owned(), "hello".to_owned())];
    let mut program = Program::start(Path::new("sh"), &["-c", script], &variables);
    assert_eq!(program.line("ready", SOON).await, "ready hello");
    program.line("oops", SOON).await;
    program.pause();
    program.resume();
    assert!(program.ended().is_none());
    program.kill().await;
    assert_eq!(program.output(), ["ready hello", "oops"]);
}
