//! A Kafka cluster of one broker or three, each a process that can be killed or stalled.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use idem_runtime::testing::{AfterOwner, Signal, Supervised, free_port};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use tempfile::TempDir;

use crate::kafka::server_properties;
use crate::{Client, eventually, java};

const LIMIT: Duration = Duration::from_secs(90);

/// The brokers; each is a controller too.
pub struct Cluster {
    /// Talks to all of them.
    pub client: Client,
    // Declared before the directory: the servers end first.
    nodes: Vec<Node>,
    _home: TempDir,
}

struct Node {
    home: PathBuf,
    client: Client,
    server: Option<Supervised>,
}

impl Cluster {
    /// Starts so many brokers. Topics have as many replicas, and records are acknowledged by all but one.
    ///
    /// # Panics
    /// When Java or Maven is missing, or a broker does not start.
    pub async fn start(brokers: usize) -> Self {
        let home = tempfile::Builder::new().prefix("idem-campaign-kafka-").tempdir();
        let home = home.expect("a writable temporary directory");
        let ports: Vec<(u16, u16)> = (0..brokers).map(|_| (port(), port())).collect();
        let bootstrap: Vec<String> = ports.iter().map(|(broker, _)| format!("127.0.0.1:{broker}")).collect();
        let voters = ports.iter().zip(1..).map(|((_, controller), id)| format!("{id}@127.0.0.1:{controller}"));
        let voters = voters.collect::<Vec<String>>().join(",");
        let mut nodes = Vec::new();
        for (id, &(broker, controller)) in (1..).zip(&ports) {
            let home = home.path().join(format!("{id}"));
            fs::create_dir(&home).expect("a directory of our own is writable");
            let mut properties = server_properties(broker, controller, &home.join("data").to_string_lossy());
            properties.push_str(&of_cluster(id, brokers, &voters));
            fs::write(home.join("server.properties"), properties).expect("a directory of our own is writable");
            nodes.push(Node { home, client: Client::new(&format!("127.0.0.1:{broker}")), server: None });
        }
        for node in &mut nodes {
            let config = node.home.join("server.properties").to_string_lossy().into_owned();
            let format = move || {
                java::run("kafka.tools.StorageTool", &["format", "-t", "aWRlbS10ZXN0cy1rYWZrYQ", "-c", &config])
            };
            let _ = tokio::task::spawn_blocking(format).await.expect("the storage is formatted");
            node.start();
        }
        let mut cluster = Self { client: Client::new(&bootstrap.join(",")), nodes, _home: home };
        for at in 0..brokers {
            cluster.answers(at).await;
        }
        cluster
    }

    /// How many brokers there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Creates a topic with as many replicas as there are brokers.
    ///
    /// # Panics
    /// When the cluster refuses.
    pub async fn create_topic(&self, name: &str, partitions: u32) {
        let admin: AdminClient<DefaultClientContext> = self.client.config().create().expect("a plain configuration");
        let topic =
            NewTopic::new(name, partitions.cast_signed(), TopicReplication::Fixed(-1)).set("retention.ms", "-1");
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        let created = admin.create_topics([&topic], &options).await.expect("an answer of the controller");
        assert!(created.iter().all(Result::is_ok), "cannot create the topic {name}: {created:?}");
    }

    /// Kills a broker, or stops it as an operator would.
    pub async fn end(&mut self, at: usize, signal: Signal) {
        if let Some(mut server) = self.nodes[at].server.take() {
            let ended = async {
                server.signal(signal)?;
                server.wait(LIMIT).await
            };
            ended.await.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Starts a broker that has ended, and waits until it answers.
    pub async fn start_again(&mut self, at: usize) {
        self.nodes[at].start();
        self.answers(at).await;
    }

    /// Stops a broker where it is, or lets it go on.
    pub fn signal(&mut self, at: usize, signal: Signal) {
        if let Some(server) = &mut self.nodes[at].server {
            server.signal(signal).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// The broker that is the active controller, as Kafka's own tool says; the first one if it does not.
    pub async fn controller(&self) -> usize {
        if self.size() == 1 {
            return 0;
        }
        let bootstrap = self.client.bootstrap().to_owned();
        let args = move || {
            let args = ["--bootstrap-server", &bootstrap, "describe", "--status"];
            java::run("org.apache.kafka.tools.MetadataQuorumCommand", &args)
        };
        let said = tokio::task::spawn_blocking(args).await.unwrap_or_default();
        let leader = said.lines().find_map(|line| line.strip_prefix("LeaderId:")).and_then(|id| id.trim().parse().ok());
        leader.map_or(0, |id: usize| id.saturating_sub(1).min(self.size() - 1))
    }

    async fn answers(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        eventually(LIMIT, "the Kafka broker answers", async || {
            let ended = node.server.as_mut().map(|server| server.ended().unwrap_or_else(|error| panic!("{error}")));
            let log = || fs::read_to_string(node.home.join("broker.log")).unwrap_or_default();
            assert!(ended.flatten().is_none(), "the Kafka broker ended; it said:\n{}", log());
            node.client.answers().await
        })
        .await;
    }
}

impl Node {
    fn start(&mut self) {
        let log = File::create(self.home.join("broker.log")).expect("a directory of our own is writable");
        let errors = log.try_clone().expect("a file handle to spare");
        let after = AfterOwner { signals: &[Signal::Kill], remove: Some(&self.home) };
        let started = Supervised::start("java", after, |command| {
            command.current_dir(&self.home).stdout(log).stderr(errors);
            command.args(java::arguments()).arg("kafka.Kafka").arg(self.home.join("server.properties"));
        });
        self.server = Some(started.unwrap_or_else(|error| panic!("{error}")));
    }
}

fn port() -> u16 {
    free_port().unwrap_or_else(|error| panic!("{error}"))
}

/// What differs from a broker of its own; the last of two lines with one name counts.
fn of_cluster(id: usize, brokers: usize, voters: &str) -> String {
    let in_sync = if brokers > 1 { brokers - 1 } else { 1 };
    format!(
        "node.id={id}\n\
         controller.quorum.voters={voters}\n\
         default.replication.factor={brokers}\n\
         min.insync.replicas={in_sync}\n\
         offsets.topic.replication.factor={brokers}\n\
         offsets.topic.num.partitions=4\n\
         transaction.state.log.replication.factor={brokers}\n\
         transaction.state.log.min.isr={in_sync}\n\
         replica.lag.time.max.ms=4000\n\
         replica.socket.timeout.ms=4000\n\
         controller.quorum.election.timeout.ms=1000\n\
         controller.quorum.fetch.timeout.ms=2000\n\
         unclean.leader.election.enable=false\n"
    )
}
