//! The thread that only polls: it hands records to lanes, and does what the coordinator commands.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{Command, Context, Event, Partition, Source};
use crate::kafka::queue;
use crate::kafka::record::Record;
use crate::kafka::refusal::told;

/// Longest time between two looks at the commands.
const POLL: Duration = Duration::from_millis(20);
/// Longest wait of the poll thread for a seek, which the client does by itself.
const SEEK: Duration = Duration::from_secs(1);
/// A broker that is away gives many errors a second; one line in this time is enough.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// The way of one partition's records into its lane.
struct Slot {
    topic: Arc<str>,
    lane: queue::Sender,
    // Records that came although the lane was full; the partition is paused while there are any.
    overflow: VecDeque<Record>,
    /// The bytes in the full lane, while the partition is paused.
    paused: Option<usize>,
}

pub(super) struct PollThread {
    client: Arc<BaseConsumer<Context>>,
    events: mpsc::UnboundedSender<Event>,
    commands: std::sync::mpsc::Receiver<Command>,
    slots: HashMap<Arc<str>, HashMap<i32, Slot>>,
    /// Paused slots.
    full: usize,
    /// When a broker that does not answer was last told of.
    warned: Option<Instant>,
}

impl PollThread {
    /// Nothing is assigned yet.
    pub(super) fn new(
        client: Arc<BaseConsumer<Context>>,
        events: mpsc::UnboundedSender<Event>,
        commands: std::sync::mpsc::Receiver<Command>,
    ) -> Self {
        Self { client, events, commands, slots: HashMap::new(), full: 0, warned: None }
    }

    pub(super) fn run(mut self) {
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
