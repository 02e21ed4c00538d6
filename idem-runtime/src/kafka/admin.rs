//! The topics a group needs: found, made, or named.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::producer::LogContext;
use super::{client_config, names};
use crate::config::Config;

/// What one group needs.
pub(crate) struct Need {
    pub group: String,
    pub topics: Vec<&'static str>,
    pub tiers: Vec<Duration>,
}

/// Why the topics are not ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopicError {
    /// The broker did not answer: worth trying again.
    #[error("the broker is not reachable: {0}")]
    Unreachable(#[from] KafkaError),
    /// Topics that a person must make.
    #[error("{}", .0.join("; "))]
    Missing(Vec<String>),
}

const REQUEST: Duration = Duration::from_secs(10);
/// Kafka's default for `max.message.bytes`.
const DEFAULT_MESSAGE_BYTES: u64 = 1_048_588;
/// What the library's headers may add to a record.
const HEADER_BYTES: u64 = 64 * 1024;

/// Makes the missing retry, replay and dead letter topics, or names them. Returns the names of all
/// topics of the cluster.
pub(crate) async fn ensure(config: &Config, needs: &[Need]) -> Result<HashSet<String>, TopicError> {
    let client: AdminClient<LogContext> = client_config::admin(config).create_with_context(LogContext)?;
    let partitions = partition_counts(&client)?;
    for need in needs {
        for topic in need.topics.iter().filter(|topic| !partitions.contains_key(**topic)) {
            tracing::warn!(group = need.group, topic, "the topic does not exist yet; it is read once it does");
        }
    }
    let missing: Vec<Wanted> = needs
        .iter()
        .flat_map(|need| wanted(config, need, &partitions))
        .filter(|topic| !partitions.contains_key(&topic.name))
        .collect();
    let existing = || partitions.keys().cloned().chain(missing.iter().map(|topic| topic.name.clone())).collect();
    if missing.is_empty() {
        return Ok(existing());
    }
    if !config.create_topics {
        return Err(TopicError::Missing(
            missing
                .iter()
                .map(|topic| {
                    format!("topic `{}` is missing: create it ({topic}), or set IDEM_CREATE_TOPICS=true", topic.name)
                })
                .collect(),
        ));
    }
    match create(&client, needs, missing.clone()).await {
        Ok(()) => Ok(existing()),
        Err(TopicError::Unreachable(error))
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnsupportedFeature) =>
        {
            tracing::warn!(
                "the broker can't create topics or describe them: they are not checked, and made by whoever runs it"
            );
            Ok(existing())
        }
        Err(error) => Err(error),
    }
}

/// A topic the group needs.
#[derive(Debug, Clone)]
struct Wanted {
    name: String,
    group: String,
    partitions: i32,
    retention_ms: i64,
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} partitions, cleanup.policy=delete, retention.ms={}", self.partitions, self.retention_ms)
    }
}

fn wanted(config: &Config, need: &Need, partitions: &BTreeMap<String, i32>) -> Vec<Wanted> {
    // The origin's partition count; the broker's default while no origin exists.
    let count = need.topics.iter().filter_map(|topic| partitions.get(*topic)).max().copied().unwrap_or(-1);
    let waiting = config.max_hold + need.tiers.iter().sum::<Duration>();
    let waiting_ms = i64::try_from(waiting.as_millis()).unwrap_or(i64::MAX);
    let topic = |name, retention_ms| Wanted { name, group: need.group.clone(), partitions: count, retention_ms };
    need.tiers
        .iter()
        .map(|&delay| topic(names::retry_topic(&need.group, delay), waiting_ms))
        .chain([topic(names::replay_topic(&need.group), waiting_ms), topic(names::dlq_topic(&need.group), -1)])
        .collect()
}

async fn create(client: &AdminClient<LogContext>, needs: &[Need], missing: Vec<Wanted>) -> Result<(), TopicError> {
    let options = AdminOptions::new().request_timeout(Some(REQUEST)).operation_timeout(Some(REQUEST));
    let limits = message_limits(client, needs, &options).await?;
    let texts: Vec<(String, String)> = missing
        .iter()
        .map(|topic| {
            let limit = limits.get(&topic.group).copied().unwrap_or(DEFAULT_MESSAGE_BYTES);
            (topic.retention_ms.to_string(), (limit + HEADER_BYTES).to_string())
        })
        .collect();
    let new: Vec<NewTopic<'_>> = missing
        .iter()
        .zip(&texts)
        .map(|(topic, (retention, limit))| {
            NewTopic::new(&topic.name, topic.partitions, TopicReplication::Fixed(-1))
                .set("cleanup.policy", "delete")
                .set("retention.ms", retention)
                .set("max.message.bytes", limit)
        })
        .collect();
    let mut refused = Vec::new();
    for result in client.create_topics(&new, &options).await? {
        match result {
            Ok(name) => tracing::info!(topic = name, "created"),
            // Another process of the group was faster.
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((
                _,
                code @ (RDKafkaErrorCode::RequestTimedOut
                | RDKafkaErrorCode::NotController
                | RDKafkaErrorCode::OperationTimedOut),
            )) => {
                return Err(TopicError::Unreachable(KafkaError::AdminOp(code)));
            }
            Err((name, code)) => {
                let how = missing.iter().find(|topic| topic.name == name).map(ToString::to_string).unwrap_or_default();
                refused.push(format!(
                    "topic `{name}` can't be created ({code}): create it ({how}), or grant this client the right to"
                ));
            }
        }
    }
    if !refused.is_empty() {
        return Err(TopicError::Missing(refused));
    }
    for _ in 0..50 {
        let visible = partition_counts(client)?;
        if missing.iter().all(|topic| visible.contains_key(&topic.name)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The largest `max.message.bytes` among a group's topics.
async fn message_limits(
    client: &AdminClient<LogContext>,
    needs: &[Need],
    options: &AdminOptions,
) -> Result<HashMap<String, u64>, TopicError> {
    let topics: HashSet<&str> = needs.iter().flat_map(|need| need.topics.iter().copied()).collect();
    let specifiers: Vec<ResourceSpecifier<'_>> = topics.into_iter().map(ResourceSpecifier::Topic).collect();
    let mut by_topic = HashMap::new();
    for resource in client.describe_configs(&specifiers, options).await? {
        // A topic that does not exist yet has no limit of its own.
        let Ok(resource) = resource else { continue };
        let limit = resource.get("max.message.bytes").and_then(|entry| entry.value.as_ref()?.parse::<u64>().ok());
        if let (rdkafka::admin::OwnedResourceSpecifier::Topic(topic), Some(limit)) = (&resource.specifier, limit) {
            by_topic.insert(topic.clone(), limit);
        }
    }
    Ok(needs
        .iter()
        .filter_map(|need| {
            Some((need.group.clone(), need.topics.iter().filter_map(|topic| by_topic.get(*topic)).max().copied()?))
        })
        .collect())
}

fn partition_counts(client: &AdminClient<LogContext>) -> Result<BTreeMap<String, i32>, KafkaError> {
    // The client's own call blocks; so does nothing else while the topics are looked at.
    let metadata = tokio::task::block_in_place(|| client.inner().fetch_metadata(None, REQUEST))?;
    Ok(metadata
        .topics()
        .iter()
        .filter(|topic| topic.error().is_none())
        .map(|topic| (topic.name().to_owned(), i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX)))
        .collect())
}
