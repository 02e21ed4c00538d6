//! A member of a consumer group: a dedicated thread that only polls.
//!
//! The thread never waits for a handler or a database. Each assigned partition has a bounded queue
//! into its lane; a full queue pauses the partition. Rebalance callbacks only note what happened:
//! the group's coordinator answers them with a [`Command`], later if it has to.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::producer::log_line;
use super::record::Record;
use super::refusal::told;
use super::{client_config, on_thread, queue};
use crate::config::Config;
use crate::decide::position::Committed;

/// Longest time between two looks at the commands.
const POLL: Duration = Duration::from_millis(20);
/// Longest wait of the poll thread for a seek, which the client does by itself.
const SEEK: Duration = Duration::from_secs(1);
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
        let thread = PollThread {
            client: Arc::clone(&client),
            events,
            commands: receiver,
            slots: HashMap::new(),
            full: 0,
            warned: None,
        };
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

/// The way of one partition's records into its lane.
struct Slot {
    topic: Arc<str>,
    lane: queue::Sender,
    // Records that came although the lane was full; the partition is paused while there are any.
    overflow: VecDeque<Record>,
    /// The bytes in the full lane, while the partition is paused.
    paused: Option<usize>,
}

struct PollThread {
    client: Arc<BaseConsumer<Context>>,
    events: mpsc::UnboundedSender<Event>,
    commands: std::sync::mpsc::Receiver<Command>,
    slots: HashMap<Arc<str>, HashMap<i32, Slot>>,
    /// Paused slots.
    full: usize,
    /// When a broker that does not answer was last told of.
    warned: Option<Instant>,
}

/// A broker that is away gives many errors a second; one line in this time is enough.
const WARN_EVERY: Duration = Duration::from_secs(30);

impl PollThread {
    fn run(mut self) {
        let client = Arc::clone(&self.client);
        'polling: loop {
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    Command::Start(sources) => self.start(sources),
                    Command::Rewind(source) => self.rewind(source),
                    Command::Release(partitions) => self.release(&partitions),
                    Command::Close => break 'polling,
                }
            }
            if self.full > 0 {
                self.relieve();
            }
            match client.poll(POLL) {
                None => {}
                Some(Ok(message)) => self.deliver(&message),
                Some(Err(error)) => self.failed(error),
            }
        }
        drop(client);
        self.close();
    }

    /// Hands a record to its partition's lane, and pauses the partition when the lane is full.
    fn deliver(&mut self, message: &BorrowedMessage<'_>) {
        let slot = self.slots.get_mut(message.topic()).and_then(|slots| slots.get_mut(&message.partition()));
        // No slot: it was fetched before a revocation or a rewind, and will come again.
        let Some(slot) = slot else { return };
        let record = Record::detach(message, Arc::clone(&slot.topic));
        if !slot.overflow.is_empty() {
            slot.overflow.push_back(record);
            return;
        }
        match slot.lane.try_send(record) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(record)) => {
                slot.overflow.push_back(record);
                slot.paused = Some(slot.lane.share().used());
                self.full += 1;
                if let Err(error) = self.client.pause(&single(message.topic(), message.partition())) {
                    tracing::warn!(%error, topic = message.topic(), partition = message.partition(), "can't pause a partition");
                }
            }
        }
    }

    /// Moves held records on, and resumes partitions whose lane has room again.
    fn relieve(&mut self) {
        for (number, slot) in self.slots.values_mut().flatten().filter(|(_, slot)| slot.paused.is_some()) {
            while let Some(record) = slot.overflow.pop_front() {
                match slot.lane.try_send(record) {
                    Ok(()) => {}
                    Err(TrySendError::Full(record)) => {
                        slot.overflow.push_front(record);
                        break;
                    }
                    Err(TrySendError::Closed(_)) => slot.overflow.clear(),
                }
            }
            if slot.overflow.is_empty() && slot.paused.is_some_and(|full| slot.lane.is_half_empty(full)) {
                slot.paused = None;
                self.full -= 1;
                if let Err(error) = self.client.resume(&single(&slot.topic, *number)) {
                    tracing::warn!(%error, topic = &*slot.topic, partition = number, "can't resume a partition");
                }
            }
        }
    }

    fn start(&mut self, sources: Vec<Source>) {
        let mut list = TopicPartitionList::with_capacity(sources.len());
        for Source { partition, offset, .. } in &sources {
            if let Err(error) = list.add_partition_offset(&partition.topic, partition.number, Offset::Offset(*offset)) {
                tracing::error!(%error, topic = &*partition.topic, partition = partition.number, offset, "no offset");
            }
        }
        // Dropping the lanes' senders tells the coordinator that the group has changed its mind.
        if let Err(error) = self.client.incremental_assign(&list) {
            tracing::debug!(%error, "can't start partitions");
            return;
        }
        self.resume(&list);
        for Source { partition, lane, .. } in sources {
            self.insert(partition, lane);
        }
    }

    /// Reads a partition from another offset.
    fn rewind(&mut self, source: Source) {
        let Source { partition, offset, lane } = source;
        self.remove(&partition);
        let (topic, number) = (&*partition.topic, partition.number);
        let again = || -> KafkaResult<TopicPartitionList> {
            let mut list = single(topic, number);
            // A seek is refused while nothing is fetched, which is so after an offset out of range.
            if self.client.seek(topic, number, Offset::Offset(offset), SEEK).is_err() {
                self.client.incremental_unassign(&list)?;
                list = TopicPartitionList::new();
                list.add_partition_offset(topic, number, Offset::Offset(offset))?;
                self.client.incremental_assign(&list)?;
            }
            Ok(list)
        };
        match again() {
            Ok(list) => {
                self.resume(&list);
                self.insert(partition, lane);
            }
            Err(error) => tracing::debug!(%error, topic, partition = number, "can't rewind a partition"),
        }
    }

    /// A pause outlives the assignment that it was asked for in, so every new start ends it.
    fn resume(&self, list: &TopicPartitionList) {
        if list.count() > 0
            && let Err(error) = self.client.resume(list)
        {
            tracing::warn!(%error, "can't resume partitions");
        }
    }

    fn release(&mut self, partitions: &[Partition]) {
        let assigned = match self.client.assignment() {
            Ok(assigned) => assigned.to_topic_map(),
            Err(error) => return drop(self.events.send(Event::Fatal(error))),
        };
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            self.remove(partition);
            if assigned.contains_key(&(partition.topic.to_string(), partition.number)) {
                list.add_partition(&partition.topic, partition.number);
            }
        }
        self.resume(&list);
        // Also with an empty list: the group waits for the answer.
        if let Err(error) = self.client.incremental_unassign(&list) {
            tracing::debug!(%error, "can't release partitions");
        }
    }

    fn insert(&mut self, partition: Partition, lane: queue::Sender) {
        let slot = Slot { topic: Arc::clone(&partition.topic), lane, overflow: VecDeque::new(), paused: None };
        self.remove(&partition);
        self.slots.entry(partition.topic).or_default().insert(partition.number, slot);
    }

    fn remove(&mut self, partition: &Partition) {
        let removed = self.slots.get_mut(&partition.topic).and_then(|slots| slots.remove(&partition.number));
        if removed.is_some_and(|slot| slot.paused.is_some()) {
            self.full -= 1;
        }
    }

    fn failed(&mut self, error: KafkaError) {
        let event = match &error {
            KafkaError::MessageConsumptionFatal(_) => Event::Fatal(error),
            KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset) => Event::OutOfRange,
            KafkaError::MessageConsumption(RDKafkaErrorCode::UnknownTopicOrPartition) => {
                tracing::warn!("a topic of the group does not exist yet; it is read once it does");
                return;
            }
            _ => {
                if self.warned.is_none_or(|warned| warned.elapsed() > WARN_EVERY) {
                    self.warned = Some(Instant::now());
                    let error = told(&error);
                    tracing::warn!(error, "the broker is not reachable, or refuses; the client goes on trying");
                }
                return;
            }
        };
        let _ = self.events.send(event);
    }

    fn close(self) {
        self.client.context().closing.store(true, Ordering::Relaxed);
        // Closing waits until all assigned partitions are released, and until every rebalance is
        // answered: one of each kind may be open, also with no partitions.
        let answers = [
            self.client.incremental_assign(&TopicPartitionList::new()),
            self.client.assignment().and_then(|assignment| self.client.incremental_unassign(&assignment)),
        ];
        for error in answers.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "can't answer the group before leaving it");
        }
        // Dropping the last handle leaves the group.
        drop(self.client);
    }
}

fn single(topic: &str, partition: i32) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(1);
    list.add_partition(topic, partition);
    list
}
