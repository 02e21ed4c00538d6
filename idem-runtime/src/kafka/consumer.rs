//! A member of a consumer group: a dedicated thread that only polls.
//!
//! The thread never waits for a handler or a database. Each assigned partition has a bounded queue
//! into its lane; a full queue pauses the partition. Rebalance callbacks only note what happened:
//! the group's coordinator answers them with a [`Command`], later if it has to.

mod poll_thread;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::mpsc;

use self::poll_thread::PollThread;
use super::producer::log_line;
use super::{client_config, on_thread, queue};
use crate::config::Config;
use crate::decide::position::Committed;

/// Longest wait for an answer of the broker outside the poll thread.
const REQUEST: Duration = Duration::from_secs(5);

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Partition {
    pub topic: Arc<str>,
    pub number: i32,
}

/// What the poll thread tells the coordinator.
#[derive(Debug)]
pub(crate) enum Event {
    /// The group gave these partitions to this member; nothing is read until [`Command::Start`].
    Assigned(Vec<Partition>),
    /// The group takes these partitions; it waits for [`Command::Release`]. `lost`: it has taken
    /// them already.
    Revoked { partitions: Vec<Partition>, lost: bool },
    /// Some partition's offset is not in its log.
    OutOfRange,
    /// The client can't go on.
    Fatal(KafkaError),
}

/// What the coordinator asks of the poll thread.
pub(crate) enum Command {
    /// Read newly assigned partitions from these offsets. An assignment of no partitions is answered
    /// too: the group waits for it.
    Start(Vec<Source>),
    /// Read a partition again from an offset.
    Rewind(Source),
    /// Give partitions back to the group.
    Release(Vec<Partition>),
    /// Leave the group and end.
    Close,
}

/// Where a partition is read from, and the lane its records go to.
pub(crate) struct Source {
    pub partition: Partition,
    pub offset: i64,
    pub lane: queue::Sender,
}

/// The coordinator's side of the consumer.
pub(crate) struct Consumer {
    client: Arc<BaseConsumer<Context>>,
    commands: std::sync::mpsc::Sender<Command>,
    closed: tokio::sync::oneshot::Receiver<()>,
}

impl Consumer {
    /// Joins the group. `prefetch`: the bytes that librdkafka may hold.
    pub(crate) fn join(
        config: &Config,
        group: &str,
        topics: &[String],
        prefetch: usize,
    ) -> KafkaResult<(Self, mpsc::UnboundedReceiver<Event>)> {
        let (events, received) = mpsc::unbounded_channel();
        let context = Context { events: events.clone(), closing: AtomicBool::new(false) };
        let client: Arc<BaseConsumer<Context>> =
            Arc::new(client_config::consumer(config, group, prefetch).create_with_context(context)?);
        client.subscribe(&topics.iter().map(String::as_str).collect::<Vec<_>>())?;
        let (commands, receiver) = std::sync::mpsc::channel();
        let (closed_sender, closed) = tokio::sync::oneshot::channel();
        let thread = PollThread::new(Arc::clone(&client), events, receiver);
        std::thread::Builder::new()
            .name(format!("idem-poll-{group}"))
            .spawn(move || {
                thread.run();
                let _ = closed_sender.send(());
            })
            .map_err(|error| KafkaError::ClientCreation(format!("can't start the poll thread: {error}")))?;
        Ok((Self { client, commands, closed }, received))
    }

    pub(crate) fn send(&self, command: Command) {
        // A poll thread that has ended has said so in its last event.
        let _ = self.commands.send(command);
    }

    /// The group's committed offsets with who committed them.
    pub(crate) async fn committed(&self, partitions: &[Partition]) -> KafkaResult<HashMap<Partition, Committed>> {
        let partitions = partitions.to_vec();
        self.blocking(move |client| {
            let committed = committed_offsets(client, &partitions, REQUEST)?.into_iter();
            Ok(committed.map(|(partition, (offset, text))| (partition, Committed::parse(offset, &text))).collect())
        })
        .await
    }

    /// First offset and one past the last offset of each partition's log. A partition without a leader
    /// is left out, and so is what could not be asked within the time of a request.
    pub(crate) async fn log_bounds(&self, partitions: Vec<Partition>) -> KafkaResult<HashMap<Partition, (i64, i64)>> {
        self.blocking(move |client| {
            let start = Instant::now();
            let topics: HashSet<&Arc<str>> = partitions.iter().map(|partition| &partition.topic).collect();
            let mut led = HashSet::new();
            for topic in topics {
                let metadata = client.fetch_metadata(Some(topic), REQUEST)?;
                let partitions = metadata.topics().iter().flat_map(|found| found.partitions());
                led.extend(partitions.filter(|found| found.leader() >= 0).map(|found| (Arc::clone(topic), found.id())));
            }
            let mut bounds = HashMap::new();
            for partition in &partitions {
                if led.contains(&(Arc::clone(&partition.topic), partition.number)) && start.elapsed() < REQUEST {
                    match client.fetch_watermarks(&partition.topic, partition.number, REQUEST) {
                        Ok(found) => drop(bounds.insert(partition.clone(), found)),
                        Err(error) if bounds.is_empty() => return Err(error),
                        Err(_) => {}
                    }
                }
            }
            Ok(bounds)
        })
        .await
    }

    /// All partitions of a topic.
    pub(crate) async fn partitions_of(&self, topic: Arc<str>) -> KafkaResult<Vec<Partition>> {
        self.blocking(move |client| {
            let metadata = client.fetch_metadata(Some(&topic), REQUEST)?;
            Ok(metadata
                .topics()
                .iter()
                .flat_map(|found| found.partitions())
                .map(|partition| Partition { topic: Arc::clone(&topic), number: partition.id() })
                .collect())
        })
        .await
    }

    /// Commits an explicit list, with metadata, and waits for the broker, on a thread: nobody hears of a commit without
    /// waiting that was refused, as in a rebalance. librdkafka tells only a callback, which rdkafka does not set.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the commit back.
    pub(crate) fn commit(
        &self,
        offsets: Vec<(Partition, i64, String)>,
    ) -> impl Future<Output = KafkaResult<()>> + Send + use<> {
        let commit = (!offsets.is_empty())
            .then(|| self.blocking(move |client| client.commit(&offset_list(&offsets)?, CommitMode::Sync)));
        async move {
            match commit {
                Some(commit) => commit.await,
                None => Ok(()),
            }
        }
    }

    /// Leaves the group. Returns when the thread has ended, at the latest after `bound`.
    pub(crate) async fn close(self, bound: Duration) {
        let Self { client, commands, closed } = self;
        let _ = commands.send(Command::Close);
        // The last handle closes the client, and it must be the thread's: closing polls.
        drop(client);
        if tokio::time::timeout(bound, closed).await.is_err() {
            tracing::warn!("the broker did not answer while leaving the group; it will notice by itself");
        }
    }

    fn blocking<T, F>(&self, request: F) -> impl Future<Output = KafkaResult<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&BaseConsumer<Context>) -> KafkaResult<T> + Send + 'static,
    {
        let client = Arc::clone(&self.client);
        async move {
            match tokio::time::timeout(REQUEST * 2, on_thread(move || request(&client))).await {
                Ok(Some(answer)) => answer,
                Ok(None) | Err(_) => Err(KafkaError::Global(RDKafkaErrorCode::RequestTimedOut)),
            }
        }
    }
}

/// What a client's group has committed, with the commits' metadata. Blocks, at most for `bound`.
pub(super) fn committed_offsets<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
    bound: Duration,
) -> KafkaResult<HashMap<Partition, (i64, String)>> {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(&partition.topic, partition.number);
    }
    let list = client.committed_offsets(list, bound)?;
    let mut committed = HashMap::new();
    for element in list.elements() {
        element.error()?;
        if let Offset::Offset(offset) = element.offset() {
            let partition = Partition { topic: element.topic().into(), number: element.partition() };
            committed.insert(partition, (offset, element.metadata().to_owned()));
        }
    }
    Ok(committed)
}

/// An explicit list: what is committed is never "the current state" of a consumer.
fn offset_list(offsets: &[(Partition, i64, String)]) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (partition, offset, metadata) in offsets {
        let mut element = list.add_partition(&partition.topic, partition.number);
        element.set_offset(Offset::Offset(*offset))?;
        element.set_metadata(metadata);
    }
    Ok(list)
}

struct Context {
    events: mpsc::UnboundedSender<Event>,
    closing: AtomicBool,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "librdkafka");
    }
}

impl ConsumerContext for Context {
    /// Only notes what happened. Answering here would make the poll thread wait for the database.
    fn rebalance(&self, client: &BaseConsumer<Self>, what: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let revoked = what != RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.closing.load(Ordering::Relaxed) {
            // Everything is committed by now; the client waits for this answer to end.
            let answer = if revoked {
                client.incremental_unassign(list)
            } else {
                client.incremental_assign(&TopicPartitionList::new())
            };
            if let Err(error) = answer {
                tracing::debug!(%error, "can't answer the group while leaving it");
            }
            return;
        }
        let partitions: Vec<Partition> = list
            .elements()
            .iter()
            .map(|element| Partition { topic: element.topic().into(), number: element.partition() })
            .collect();
        let event = if revoked {
            Event::Revoked { partitions, lost: client.assignment_lost() }
        } else {
            Event::Assigned(partitions)
        };
        let _ = self.events.send(event);
    }
}
