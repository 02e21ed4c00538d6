//! The servers that the feature `testing` gives.
#![cfg(feature = "testing")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use idem_runtime::testing::{AfterOwner, MockBroker, Postgres, Signal, Supervised, TestingError};
use sqlx::{Connection, Executor, PgConnection};

async fn rows(url: &str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut connection).await.unwrap()
}

#[tokio::test]
async fn a_server_keeps_its_data_and_port_over_restarts_and_goes_back_to_a_copy() {
    let mut postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("shop").await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    connection.execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)").await.unwrap();

    let copies = tempfile::tempdir().unwrap();
    let copy = copies.path().join("copy");
    assert!(matches!(postgres.copy_data_dir_to(&copy).await, Err(TestingError::Running)));
    assert!(matches!(postgres.start_again().await, Err(TestingError::AlreadyStarted)));

    postgres.stop_fast().await.unwrap();
    assert!(PgConnection::connect(&url).await.is_err());
    postgres.copy_data_dir_to(&copy).await.unwrap();
    postgres.start_again().await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    connection.execute("INSERT INTO kept VALUES (2)").await.unwrap();

    postgres.stop_immediate().await.unwrap();
    postgres.start_again().await.unwrap();
    assert_eq!(rows(&url).await, 2, "a crash loses nothing that was committed");

    postgres.stop_fast().await.unwrap();
    postgres.restore_from(&copy).await.unwrap();
    postgres.start_again().await.unwrap();
    assert_eq!(rows(&url).await, 1, "the earlier copy is back");

    let mut connection = PgConnection::connect(&url).await.unwrap();
    let fsync: String = sqlx::query_scalar("SHOW fsync").fetch_one(&mut connection).await.unwrap();
    assert_eq!(fsync, "on");
    let home = postgres.data_dir().parent().unwrap().to_owned();
    drop(postgres);
    assert!(!home.exists());
}

#[test]
fn the_mock_broker_makes_topics_from_any_thread() {
    let broker = MockBroker::start().unwrap();
    assert!(broker.bootstrap_servers().starts_with("127.0.0.1:"));
    std::thread::scope(|scope| {
        scope.spawn(|| broker.create_topic("orders", 4).unwrap());
    });
    assert!(matches!(broker.create_topic("orders", 4), Err(TestingError::Mock { .. })));
}

fn sleeper(remove: Option<&Path>) -> Supervised {
    let after = AfterOwner { signals: &[Signal::Kill], remove };
    Supervised::start("sleep", after, |command| {
        command.arg("600").stdout(Stdio::null());
    })
    .unwrap()
}

#[tokio::test]
async fn signals_reach_the_program_itself() {
    let mut program = sleeper(None);
    program.signal(Signal::Stop).unwrap();
    let id = program.id().to_string();
    let state = || Command::new("ps").args(["-o", "state=", "-p", &id]).output().unwrap().stdout;
    // Of two pending signals the lower number comes first, so the stop has to have happened.
    while !state().starts_with(b"T") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    program.signal(Signal::Terminate).unwrap();
    assert!(program.wait(Duration::from_millis(200)).await.is_err(), "stopped: TERM waits");
    program.signal(Signal::Continue).unwrap();
    let status = program.wait(Duration::from_secs(5)).await.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    program.signal(Signal::Kill).unwrap();
}

#[tokio::test]
async fn a_program_and_its_directory_end_with_a_killed_owner() {
    use std::io::{BufRead, BufReader};
    // The test starts itself once more, as the owner that is killed.
    if let Some(directory) = std::env::var_os("IDEM_TEST_REMOVE") {
        let program = sleeper(Some(Path::new(&directory)));
        println!("pid={}", program.id());
        std::thread::sleep(Duration::from_secs(600));
    }
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "--exact", "a_program_and_its_directory_end_with_a_killed_owner"])
        .env("IDEM_TEST_REMOVE", directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line = lines.find(|line| line.as_ref().unwrap().contains("pid=")).unwrap().unwrap();
    let pid = line.rsplit("pid=").next().unwrap().to_owned();
    owner.kill().unwrap();
    owner.wait().unwrap();
    for _ in 0..1000 {
        if !directory.path().exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!directory.path().exists());
    let alive = Command::new("kill").args(["-0", &pid]).stderr(Stdio::null()).status();
    assert!(!alive.unwrap().success(), "program {pid} outlived its owner");
}
