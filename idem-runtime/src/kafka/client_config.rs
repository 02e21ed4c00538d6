//! librdkafka's settings: what the promises need, and what the user gave.

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::config::Config;

/// What a reader that joins no group may prefetch.
const OBSERVER_PREFETCH_KIB: &str = "2048";

fn base(config: &Config) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", &config.brokers);
    client.set("client.id", &config.client_id);
    client.set_log_level(RDKafkaLogLevel::Info);
    // A topic that is created after the start is found within this time; the default is 5 minutes.
    client.set("topic.metadata.refresh.interval.ms", "10000");
    client
}

fn with_users(mut client: ClientConfig, config: &Config) -> ClientConfig {
    for (property, value) in &config.kafka {
        client.set(property, value);
    }
    client
}

/// A member of a consumer group. `prefetch`: the bytes that it may hold for all its partitions; their
/// messages go to one queue, which this bounds. A fetch that is under way comes on top of it, from each
/// broker, and is bounded by the same number (`fetch.max.bytes` follows it, from 1 MiB up).
pub(crate) fn consumer(config: &Config, group: &str, prefetch: usize) -> ClientConfig {
    let mut client = base(config);
    client.set("queued.max.messages.kbytes", (prefetch / 1024).clamp(1, 2_097_151).to_string());
    // Small messages take more than their bytes.
    client.set("queued.min.messages", (prefetch / 512).max(1_000).to_string());
    // A full queue is looked at again soon: it may be empty in a moment.
    client.set("fetch.queue.backoff.ms", "10");
    client = with_users(client, config);
    client.set("group.id", group);
    if let Some(instance) = config.kafka.get("group.instance.id") {
        // Kafka tells members apart within a group; people and logs tell them apart by this alone.
        client.set("group.instance.id", format!("{instance}-{group}"));
    }
    client.set("enable.auto.commit", "false");
    client.set("enable.auto.offset.store", "false");
    // The library decides the position; an offset out of range is an error that it sees.
    client.set("auto.offset.reset", "error");
    let by_broker =
        config.kafka.get("group.protocol").is_some_and(|protocol| protocol.eq_ignore_ascii_case("consumer"));
    if !by_broker {
        client.set("partition.assignment.strategy", "cooperative-sticky");
    }
    client
}

/// Properties that mean something only to a member of a group.
const MEMBERS_ONLY: [&str; 5] =
    ["group.instance.id", "group.protocol", "session.timeout.ms", "max.poll.interval.ms", "heartbeat.interval.ms"];

fn no_member(config: &Config) -> ClientConfig {
    let mut client = with_users(base(config), config);
    for property in MEMBERS_ONLY {
        client.remove(property);
    }
    client
}

/// The producer of retries and dead letters.
pub(crate) fn producer(config: &Config) -> ClientConfig {
    let mut client = no_member(config);
    client.set("enable.idempotence", "true");
    client.set("acks", "all");
    client.set("message.timeout.ms", "10000");
    // The topic's own limit decides; a client that refuses earlier would only hide it.
    client.set("message.max.bytes", "1000000000");
    // The same partition as the Java client for the same key.
    client.set("partitioner", "murmur2_random");
    client
}

/// A client for topics and metadata.
pub(crate) fn admin(config: &Config) -> ClientConfig {
    no_member(config)
}

/// A reader in a group's name that never joins it.
pub(crate) fn observer(config: &Config, group: &str) -> ClientConfig {
    let mut client = no_member(config);
    client.set("group.id", group);
    client.set("enable.auto.commit", "false");
    client.set("enable.partition.eof", "true");
    // Records may leave the log while it is read.
    client.set("auto.offset.reset", "earliest");
    client.set("queued.max.messages.kbytes", OBSERVER_PREFETCH_KIB);
    // What it asks for is there: no broker has to wait for more.
    client.set("fetch.wait.max.ms", "10");
    client
}
