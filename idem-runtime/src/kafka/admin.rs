//! The topics a group needs: found, made, or named.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, NewTopic, OwnedResourceSpecifier, ResourceSpecifier, TopicReplication,
};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::producer::LogContext;
use super::refusal::told;
use super::{client_config, names, on_thread};
use crate::config::Config;
use crate::decide::topics::{self, Finding, Purpose, Settings, judge, judge_tiers, judge_window};

/// What one group needs.
pub(crate) struct Need {
    pub group: String,
    pub topics: Vec<&'static str>,
    pub tiers: Vec<Duration>,
    /// Events in progress at once, per partition.
    pub concurrency: usize,
}

/// Why the topics are not ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopicError {
    /// The broker did not answer: worth trying again.
    #[error("the broker is not reachable, or refuses: {}", told(.0))]
    Unreachable(#[from] KafkaError),
    /// What a person must mend: topics that are missing, or whose settings would lose events.
    #[error("{}", .0.join("; "))]
    Missing(Vec<String>),
}

const REQUEST: Duration = Duration::from_secs(10);
/// How long a broker may take to answer whether it answers at all.
const PROBE: Duration = Duration::from_secs(2);
/// Kafka's default for `max.message.bytes`.
const DEFAULT_MESSAGE_BYTES: u64 = 1_048_588;
/// What the library's headers may add to a record.
const HEADER_BYTES: u64 = 64 * 1024;

/// Makes the missing retry, replay and dead letter topics, or names them. Returns the names of all
/// topics of the cluster.
pub(crate) async fn ensure(config: &Config, needs: &[Need]) -> Result<HashSet<String>, TopicError> {
    let client: Arc<AdminClient<LogContext>> = Arc::new(client_config::admin(config).create_with_context(LogContext)?);
    let partitions = partition_counts(&client).await?;
    for need in needs {
        for topic in need.topics.iter().filter(|topic| !partitions.contains_key(**topic)) {
            tracing::warn!(group = need.group, topic, "the topic does not exist yet; it is read once it does");
        }
    }
    tell_what_bounds(config, needs, &partitions);
    let own: Vec<Wanted> = needs.iter().flat_map(|need| wanted(config, need, &partitions)).collect();
    let (existing, missing): (Vec<Wanted>, Vec<Wanted>) =
        own.into_iter().partition(|topic| partitions.contains_key(&topic.name));
    if !missing.is_empty() && !config.create_topics {
        let name = |topic: &Wanted| {
            format!(
                "topic `{}` is missing: create it ({topic}), or set IDEM_CREATE_TOPICS=true; a broker does not show topics \
                 that this client may not Describe",
                topic.name
            )
        };
        return Err(TopicError::Missing(missing.iter().map(name).collect()));
    }
    let all = partitions.keys().cloned().chain(missing.iter().map(|topic| topic.name.clone())).collect();
    if missing.is_empty() && !answers_about_topics(&client, &existing).await? {
        tracing::warn!("the broker says nothing about the settings of topics: they are not checked");
        return Ok(all);
    }
    match check_and_create(&client, config, needs, existing, missing).await {
        Err(TopicError::Unreachable(error)) if code(&error) == Some(RDKafkaErrorCode::UnsupportedFeature) => {
            tracing::warn!(
                "the broker can't create topics or describe them: they are not checked, and made by whoever runs it"
            );
        }
        result => result?,
    }
    Ok(all)
}

async fn check_and_create(
    client: &Arc<AdminClient<LogContext>>,
    config: &Config,
    needs: &[Need],
    existing: Vec<Wanted>,
    missing: Vec<Wanted>,
) -> Result<(), TopicError> {
    let options = options();
    let origins = needs.iter().flat_map(|need| need.topics.iter().copied());
    let described = origins.chain(existing.iter().map(|topic| topic.name.as_str())).collect();
    let settings = describe(client, described, &options).await?;
    let needed = |group: &str| {
        let topics = needs.iter().filter(|need| need.group == group).flat_map(|need| &need.topics);
        let limit = topics.filter_map(|topic| settings.get(*topic)?.max_message_bytes).max();
        limit.unwrap_or(DEFAULT_MESSAGE_BYTES) + HEADER_BYTES
    };
    let mut findings: Vec<Finding> = Vec::new();
    for topic in &existing {
        if let Some(settings) = settings.get(&topic.name) {
            findings.extend(judge(&topic.name, topic.purpose, settings, needed(&topic.group)));
        }
    }
    let (window, skew) = (config.dedup_window, config.clock_skew);
    findings.extend(needs.iter().filter_map(|need| judge_tiers(&need.group, &need.tiers, window, skew)));
    let origins: BTreeSet<&str> = needs.iter().flat_map(|need| need.topics.iter().copied()).collect();
    let judged = |topic| judge_window(topic, settings.get(topic)?, window);
    findings.extend(origins.into_iter().filter_map(judged));
    let mut problems = Vec::new();
    for finding in findings {
        match finding {
            Finding::Error(problem) => problems.push(problem),
            Finding::Warning(problem) if config.strict => problems.push(problem),
            Finding::Warning(problem) => tracing::warn!("{problem}"),
        }
    }
    if !problems.is_empty() {
        return Err(TopicError::Missing(problems));
    }
    if missing.is_empty() {
        return Ok(());
    }
    create(client, &missing, needed, &options).await
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST)).operation_timeout(Some(REQUEST))
}

/// What the broker or librdkafka said. rdkafka's own function knows no code of an administrator's request.
fn code(error: &KafkaError) -> Option<RDKafkaErrorCode> {
    match error {
        KafkaError::AdminOp(code) => Some(*code),
        error => error.rdkafka_error_code(),
    }
}

/// Whether the broker answers requests about topics. librdkafka's mock cluster has no controller to
/// ask, and a request to it ends by its timeout.
async fn answers_about_topics(client: &AdminClient<LogContext>, existing: &[Wanted]) -> Result<bool, KafkaError> {
    let Some(topic) = existing.first() else { return Ok(true) };
    let options = AdminOptions::new().request_timeout(Some(PROBE)).operation_timeout(Some(PROBE));
    match client.describe_configs(&[ResourceSpecifier::Topic(&topic.name)], &options).await {
        Ok(_) => Ok(true),
        Err(error) => match code(&error) {
            Some(
                RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::RequestTimedOut
                | RDKafkaErrorCode::UnsupportedFeature,
            ) => Ok(false),
            _ => Err(error),
        },
    }
}

/// A topic the group needs.
#[derive(Debug, Clone)]
struct Wanted {
    name: String,
    group: String,
    purpose: Purpose,
    partitions: i32,
    retention_ms: i64,
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} partitions, cleanup.policy=delete, retention.ms={}", self.partitions, self.retention_ms)
    }
}

/// Says when the pool, and not `concurrency`, will bound the events in progress.
fn tell_what_bounds(config: &Config, needs: &[Need], partitions: &BTreeMap<String, i32>) {
    let of = |need: &Need| {
        let partitions = need.topics.iter().filter_map(|topic| partitions.get(*topic));
        need.concurrency * partitions.map(|count| usize::try_from(*count).unwrap_or(0)).sum::<usize>()
    };
    let pool = config.pool_size as usize;
    if let Some(wanted) = topics::more_than_pool(needs.iter().map(of), pool) {
        tracing::info!(
            in_progress = wanted,
            pool,
            "with all partitions of its topics this process would have more events in progress than connections: \
             IDEM_POOL_SIZE bounds them, not `concurrency`"
        );
    }
}

fn wanted(config: &Config, need: &Need, partitions: &BTreeMap<String, i32>) -> Vec<Wanted> {
    // The origin's partition count; the broker's default while no origin exists.
    let count = need.topics.iter().filter_map(|topic| partitions.get(*topic)).max().copied().unwrap_or(-1);
    let waiting = config.max_hold + need.tiers.iter().sum::<Duration>();
    let waiting_ms = i64::try_from(waiting.as_millis()).unwrap_or(i64::MAX);
    let topic = |name, purpose, retention_ms| Wanted {
        name,
        group: need.group.clone(),
        purpose,
        partitions: count,
        retention_ms,
    };
    need.tiers
        .iter()
        .map(|&delay| topic(names::retry_topic(&need.group, delay), Purpose::Retry(delay), waiting_ms))
        .chain([
            topic(names::replay_topic(&need.group), Purpose::Replay, waiting_ms),
            topic(names::dlq_topic(&need.group), Purpose::DeadLetters, -1),
        ])
        .collect()
}

async fn create(
    client: &Arc<AdminClient<LogContext>>,
    missing: &[Wanted],
    needed_bytes: impl Fn(&str) -> u64,
    options: &AdminOptions,
) -> Result<(), TopicError> {
    let texts: Vec<(String, String)> =
        missing.iter().map(|topic| (topic.retention_ms.to_string(), needed_bytes(&topic.group).to_string())).collect();
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
    for result in client.create_topics(&new, options).await? {
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
        let visible = partition_counts(client).await?;
        if missing.iter().all(|topic| visible.contains_key(&topic.name)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The settings of topics, of those that exist.
async fn describe(
    client: &AdminClient<LogContext>,
    topics: HashSet<&str>,
    options: &AdminOptions,
) -> Result<HashMap<String, Settings>, TopicError> {
    let specifiers: Vec<ResourceSpecifier<'_>> = topics.into_iter().map(ResourceSpecifier::Topic).collect();
    let mut by_topic = HashMap::new();
    for resource in client.describe_configs(&specifiers, options).await? {
        // A topic that does not exist yet has no settings.
        let Ok(resource) = resource else { continue };
        let value = |name: &str| resource.get(name).and_then(|entry| entry.value.clone());
        let settings = Settings {
            cleanup_policy: value("cleanup.policy"),
            retention_ms: value("retention.ms").and_then(|value| value.parse().ok()),
            max_message_bytes: value("max.message.bytes").and_then(|value| value.parse().ok()),
        };
        if let OwnedResourceSpecifier::Topic(topic) = &resource.specifier {
            by_topic.insert(topic.clone(), settings);
        }
    }
    Ok(by_topic)
}

async fn partition_counts(client: &Arc<AdminClient<LogContext>>) -> Result<BTreeMap<String, i32>, KafkaError> {
    let client = Arc::clone(client);
    let metadata = on_thread(move || client.inner().fetch_metadata(None, REQUEST)).await;
    let metadata = metadata.unwrap_or(Err(KafkaError::Global(RDKafkaErrorCode::Fail)))?;
    Ok(metadata
        .topics()
        .iter()
        .filter(|topic| topic.error().is_none())
        .map(|topic| (topic.name().to_owned(), i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX)))
        .collect())
}
