//! A real Apache Kafka broker of one node.

use std::fs::{self, File};
use std::ops::Deref;
use std::time::Duration;

use idem_runtime::testing::{AfterOwner, Signal, Supervised, free_port};
use tempfile::TempDir;
use tokio::sync::{Mutex, OnceCell};

use crate::{Client, eventually, java};

/// How long a start or a stop may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// An Apache Kafka broker on ports of the loopback interface, with a data directory of its own.
/// It dereferences to a [`Client`] that talks to it.
///
/// Topics are not created by themselves. Sessions may be as short as a second.
pub struct Kafka {
    client: Client,
    // Declared before the directory: the server ends first.
    server: Mutex<Option<Supervised>>,
    home: TempDir,
}

impl Kafka {
    /// Starts a broker for one test.
    ///
    /// # Panics
    /// When Java or Maven is missing, or the broker does not start.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a broker with server properties of one's own, which win over the harness's. In their values
    /// `{broker}` and `{controller}` are the ports of the harness's listeners.
    ///
    /// # Panics
    /// As for [`start`](Self::start).
    pub async fn start_with(properties: &[(&str, &str)]) -> Self {
        let ports = free_port().and_then(|broker| Ok((broker, free_port()?)));
        let (broker, controller) = ports.unwrap_or_else(|error| panic!("{error}"));
        let home = tempfile::Builder::new().prefix("idem-kafka-").tempdir().expect("a writable temporary directory");
        let mut text = server_properties(broker, controller, &home.path().join("data").to_string_lossy());
        for (name, value) in properties {
            let value = value.replace("{broker}", &broker.to_string()).replace("{controller}", &controller.to_string());
            text.push_str(&format!("{name}={value}\n"));
        }
        fs::write(home.path().join("server.properties"), text).expect("a directory of our own is writable");

        let client = Client::new(&format!("127.0.0.1:{broker}"));
        let kafka = Self { client, server: Mutex::new(None), home };
        let config = kafka.properties_path();
        let format = move || {
            // Every broker may have the same cluster id: they never meet.
            java::run("kafka.tools.StorageTool", &["format", "-t", "aWRlbS10ZXN0cy1rYWZrYQ", "-c", &config])
        };
        let _ = tokio::task::spawn_blocking(format)
            .await
            .unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()));
        kafka.start_again().await;
        kafka
    }

    /// The broker that the tests of this binary share: give each test topics and groups of its own.
    ///
    /// # Panics
    /// As for [`start`](Self::start).
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Kafka> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    /// The value for `bootstrap.servers`, and for `IDEM_KAFKA_BROKERS`.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        self.client.bootstrap()
    }

    /// Stops the broker as an operator would.
    ///
    /// # Panics
    /// When it does not stop.
    pub async fn stop(&self) {
        self.end(Signal::Terminate).await;
    }

    /// Kills the broker.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn kill(&self) {
        self.end(Signal::Kill).await;
    }

    /// Starts the stopped broker on the same ports and data, and waits until it answers.
    ///
    /// # Panics
    /// When it is running, or does not start.
    pub async fn start_again(&self) {
        let mut server = self.server.lock().await;
        assert!(server.is_none(), "the broker is running: stop it before it is started again");
        let log = File::create(self.home.path().join("broker.log")).expect("a directory of our own is writable");
        let errors = log.try_clone().expect("a file handle to spare");
        let after = AfterOwner { signals: &[Signal::Kill], remove: Some(self.home.path()) };
        let started = Supervised::start("java", after, |command| {
            command.current_dir(self.home.path()).stdout(log).stderr(errors);
            command.args(java::arguments()).arg("kafka.Kafka").arg(self.properties_path());
        });
        let mut started = started.unwrap_or_else(|error| panic!("{error}"));
        eventually(LIMIT, "the Kafka broker answers", async || {
            let ended = started.ended().unwrap_or_else(|error| panic!("{error}"));
            assert!(ended.is_none(), "the Kafka broker ended; it said:\n{}", self.log());
            self.client.answers().await
        })
        .await;
        *server = Some(started);
    }

    /// What the broker has logged since its start: warnings and errors.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("broker.log")).unwrap_or_default()
    }

    fn properties_path(&self) -> String {
        self.home.path().join("server.properties").to_string_lossy().into_owned()
    }

    async fn end(&self, signal: Signal) {
        if let Some(mut server) = self.server.lock().await.take() {
            let ended = async {
                server.signal(signal)?;
                server.wait(LIMIT).await
            };
            ended.await.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

impl Deref for Kafka {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Most lines only make one node enough. A killed broker is taken back when its old session with
/// its own controller has run out, hence the short one.
pub(crate) fn server_properties(broker: u16, controller: u16, data: &str) -> String {
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{broker}\n\
         controller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=PLAINTEXT\n\
         log.dirs={data}\n\
         auto.create.topics.enable=false\n\
         offsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         transaction.state.log.num.partitions=1\n\
         share.coordinator.state.topic.replication.factor=1\n\
         share.coordinator.state.topic.min.isr=1\n\
         broker.heartbeat.interval.ms=500\n\
         broker.session.timeout.ms=3000\n\
         group.initial.rebalance.delay.ms=0\n\
         group.min.session.timeout.ms=1000\n\
         group.consumer.min.session.timeout.ms=1000\n\
         group.consumer.session.timeout.ms=6000\n\
         group.consumer.min.heartbeat.interval.ms=500\n\
         group.consumer.heartbeat.interval.ms=1000\n"
    )
}
