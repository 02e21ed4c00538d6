//! A consumer group: its handlers, its lanes, and its position in Kafka and in the database.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::KafkaError;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use uuid::Uuid;

use crate::config::{Config, OffsetReset};
use crate::decide::position::{self, CommittedBy, Facts, Start, Why};
use crate::decide::progress::{self, Belief, Verdict};
use crate::event::DecodeError;
use crate::handler::{Handler, States};
use crate::kafka::consumer::{Command, Consumer, Event, Partition, Source};
use crate::kafka::names;
use crate::kafka::producer::Producer;
use crate::lane::Lane;
use crate::pg::progress as pg_progress;
use crate::pg::progress::{Server, Takeover, Write};
use crate::pg::session::Pools;
use crate::run::RunError;
use crate::stop::Stop;

/// What everything that works for one group shares.
pub(crate) struct GroupContext {
    pub name: Arc<str>,
    pub topics: HashMap<&'static str, Vec<Handler>>,
    /// Events of different keys in progress at once, per partition.
    pub concurrency: usize,
    pub config: Arc<Config>,
    pub states: Arc<States>,
    pub pools: Pools,
    /// One per connection of the handlers' pool.
    pub permits: Arc<Semaphore>,
    pub producer: Producer,
    pub lineage: Uuid,
    pub missing_partition: Arc<Notify>,
    pub failures: mpsc::UnboundedSender<RunError>,
    /// Longest time a handler of the group may take.
    pub longest_handler: Duration,
}

/// The handler of a record, if there is one.
pub(crate) enum Match<'a> {
    Handler(&'a Handler),
    None,
    Unparsable(DecodeError),
}

impl GroupContext {
    /// Ends the run with an error.
    pub(crate) fn fail(&self, error: RunError) {
        let _ = self.failures.send(error);
    }

    /// Whether only this group reads and writes the topic.
    pub(crate) fn is_own_topic(&self, topic: &str) -> bool {
        topic.strip_prefix(&*self.name).is_some_and(|rest| rest.starts_with(".retry.") || rest == ".replay")
            && !self.topics.contains_key(topic)
    }

    /// The handler for a value of a topic, by its `event_type` where handlers share the topic.
    pub(crate) fn handler_for(&self, topic: &str, payload: Option<&[u8]>) -> Match<'_> {
        let handlers = self.topics.get(topic).map(Vec::as_slice).unwrap_or_default();
        match (handlers, payload) {
            ([], _) => Match::None,
            ([only], _) if only.spec.event_type.is_none() => Match::Handler(only),
            // Any of them says that there is no value.
            ([first, ..], None) => Match::Handler(first),
            (_, Some(payload)) => match crate::event::event_type(payload) {
                Ok(Some(event_type)) => handlers
                    .iter()
                    .find(|handler| handler.spec.event_type == Some(&*event_type))
                    .map_or(Match::None, Match::Handler),
                Ok(None) => Match::None,
                Err(error) => Match::Unparsable(error),
            },
        }
    }

    /// The delay tiers of a handler.
    pub(crate) fn tiers(&self, handler: &str) -> &[Duration] {
        self.topics
            .values()
            .flatten()
            .find(|candidate| candidate.spec.name == handler)
            .and_then(|handler| handler.spec.retry)
            .unwrap_or(&self.config.retry)
    }

    /// Every delay that some handler of the group uses.
    pub(crate) fn all_tiers(&self) -> Vec<Duration> {
        let mut tiers: Vec<Duration> = self
            .topics
            .values()
            .flatten()
            .flat_map(|handler| handler.spec.retry.unwrap_or(&self.config.retry))
            .copied()
            .collect();
        tiers.sort_unstable();
        tiers.dedup();
        tiers
    }
}

/// How often progress is written and the rows are compared.
const TICK: Duration = Duration::from_secs(1);
/// How often rows are read although nothing moved: a failover of an idle group is noticed too.
const IDLE_TICKS: u32 = 5;
/// Pause before a takeover that failed is tried again.
const TAKEOVER_PAUSE: Duration = Duration::from_millis(500);

/// A partition this member works on.
struct Owned {
    lane: Lane,
    epoch: i64,
    server: Server,
    /// What the database holds.
    written: i64,
    /// A write whose answer did not come.
    attempted: Option<i64>,
    /// What Kafka was told.
    committed: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Assigned,
    Rewind,
}

/// Drives one group until a stop is asked for.
pub(crate) struct Coordinator {
    group: Arc<GroupContext>,
    consumer: Consumer,
    events: mpsc::UnboundedReceiver<Event>,
    owned: HashMap<Partition, Owned>,
    /// Partitions whose position is not read yet.
    pending: BTreeMap<Partition, Pending>,
    next_takeover: Instant,
    /// Revoked partitions whose lanes finish what runs.
    draining: JoinSet<Drained>,
    metadata: String,
    idle_ticks: u32,
}

impl Coordinator {
    /// Joins the group.
    pub(crate) fn join(group: Arc<GroupContext>, topics: &[String]) -> Result<Self, KafkaError> {
        let (consumer, events) = Consumer::join(&group.config, &group.name, topics)?;
        let metadata = CommittedBy::metadata(group.lineage);
        Ok(Self {
            group,
            consumer,
            events,
            owned: HashMap::new(),
            pending: BTreeMap::new(),
            next_takeover: Instant::now(),
            draining: JoinSet::new(),
            metadata,
            idle_ticks: 0,
        })
    }

    /// Works until the stop, then finishes, records, commits and leaves within the grace period.
    pub(crate) async fn run(mut self, stop: Stop) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.requested() => break,
                Some(event) = self.events.recv() => self.on_event(event).await,
                Some(drained) = self.draining.join_next() => match drained {
                    Ok(drained) => self.hand_over(drained).await,
                    Err(error) => tracing::error!(%error, "a drain ended abnormally"),
                },
                () = tokio::time::sleep_until(self.next_takeover), if !self.pending.is_empty() => self.take_over().await,
                _ = tick.tick() => self.record_progress().await,
            }
        }
        self.leave().await;
    }

    async fn on_event(&mut self, event: Event) {
        match event {
            Event::Assigned(partitions) => {
                tracing::info!(group = &*self.group.name, partitions = %list(&partitions), "assigned");
                if partitions.is_empty() {
                    self.consumer.send(Command::Start(Vec::new()));
                }
                self.pending.extend(partitions.into_iter().map(|partition| (partition, Pending::Assigned)));
                self.next_takeover = Instant::now();
            }
            Event::Revoked { partitions, lost } => self.revoked(partitions, lost).await,
            Event::OutOfRange => self.out_of_range().await,
            Event::CommitFailed => self.owned.values_mut().for_each(|owned| owned.committed = None),
            Event::Fatal(error) => self.group.fail(RunError::Consumer { group: self.group.name.to_string(), error }),
        }
    }

    async fn revoked(&mut self, partitions: Vec<Partition>, lost: bool) {
        tracing::info!(group = &*self.group.name, partitions = %list(&partitions), lost, "revoked");
        let mut working = Vec::new();
        let mut idle = Vec::new();
        for partition in partitions {
            self.pending.remove(&partition);
            match self.owned.remove(&partition) {
                Some(mut owned) if lost => {
                    // Another member has it already: whatever finishes late moves nothing.
                    owned.lane.abort().await;
                    idle.push(partition);
                }
                Some(owned) => working.push((partition, owned)),
                None => idle.push(partition),
            }
        }
        if working.is_empty() {
            self.consumer.send(Command::Release(idle));
            return;
        }
        let bound = self.drain_bound();
        self.draining.spawn(async move {
            futures_util::future::join_all(working.iter_mut().map(|(_, owned)| owned.lane.drain(bound))).await;
            Drained { working, idle }
        });
    }

    /// Half of what Kafka grants between two polls: the other members wait meanwhile.
    fn drain_bound(&self) -> Duration {
        let poll_interval = self
            .group
            .config
            .kafka
            .get("max.poll.interval.ms")
            .and_then(|millis| millis.parse().ok())
            .unwrap_or(300_000);
        self.group.longest_handler.min(Duration::from_millis(poll_interval) / 2) + Duration::from_secs(1)
    }

    /// The last record of drained partitions, then the commit, then they go back to the group.
    async fn hand_over(&mut self, drained: Drained) {
        let Drained { mut working, idle } = drained;
        let written =
            write(&self.group, working.iter_mut().map(|(partition, owned)| (&*partition, owned)).collect()).await;
        let offsets = match written {
            Ok(written) => written,
            Err(error) => {
                tracing::warn!(group = &*self.group.name, %error, "can't record the last progress; the next owner repeats a little");
                Vec::new()
            }
        };
        if let Err(error) = self.consumer.commit_and_wait(offsets, self.metadata.clone()).await {
            tracing::debug!(group = &*self.group.name, %error, "the last commit was refused; the database knows more");
        }
        self.consumer.send(Command::Release(working.into_iter().map(|(partition, _)| partition).chain(idle).collect()));
    }

    /// Reads the position of partitions that wait for it, and starts their lanes.
    async fn take_over(&mut self) {
        self.next_takeover = Instant::now() + TAKEOVER_PAUSE;
        match self.positions().await {
            Ok(Some(starts)) => {
                let mut assigned = Vec::new();
                for (partition, start) in starts {
                    let Some(pending) = self.pending.remove(&partition) else { continue };
                    let (lane, sender) = Lane::start(Arc::clone(&self.group), start.offset);
                    let source = Source { partition: partition.clone(), offset: start.offset, lane: sender };
                    match pending {
                        Pending::Assigned => assigned.push(source),
                        Pending::Rewind => self.consumer.send(Command::Rewind(source)),
                    }
                    let owned = Owned {
                        lane,
                        epoch: start.epoch,
                        server: start.server,
                        written: start.offset,
                        attempted: None,
                        committed: None,
                    };
                    self.owned.insert(partition, owned);
                }
                if !assigned.is_empty() {
                    self.consumer.send(Command::Start(assigned));
                }
            }
            Ok(None) => {}
            Err(TakeoverError::Database(error)) => {
                tracing::warn!(group = &*self.group.name, %error, "can't read the group's position from the database; trying again");
            }
            Err(TakeoverError::Kafka(error)) => {
                tracing::warn!(group = &*self.group.name, %error, "can't read the group's position from Kafka; trying again");
            }
        }
    }

    /// Decides where each pending partition starts, and records it. `None`: the run stops.
    async fn positions(&mut self) -> Result<Option<Vec<(Partition, Started)>>, TakeoverError> {
        let partitions: Vec<Partition> = self.pending.keys().cloned().collect();
        let committed = self.consumer.committed(&partitions).await?;
        let mut bounds = self.consumer.log_bounds(&partitions).await?;

        let mut takeover = Takeover::begin(&self.group.pools.service, &self.group.name).await?;
        let server = takeover.server().await?;
        let known_topics = takeover.known_topics().await?;
        let mut starts = Vec::new();
        let mut new_topics: HashSet<Arc<str>> = HashSet::new();
        for partition in partitions {
            // A partition without a leader waits; the others start.
            let Some(&(log_start, log_end)) = bounds.get(&partition) else { continue };
            let row = takeover.raise_epoch(&partition).await?;
            let assigned = self.pending.get(&partition) == Some(&Pending::Assigned);
            let new_topic = !known_topics.contains(&*partition.topic);
            let facts = Facts {
                committed: committed.get(&partition).copied(),
                recorded: row.map(|row| row.next_offset),
                lineage: self.group.lineage,
                lineage_accepted: self.group.config.accept_database == Some(self.group.lineage),
                log_start,
                log_end,
                start_at_end: assigned
                    && new_topic
                    && self.group.topics.contains_key(&*partition.topic)
                    && self.group.config.auto_offset_reset == OffsetReset::Latest,
            };
            let start = match position::start(&facts) {
                // This member owned it with a row: only a database that went back lacks it.
                Start::At(_, Why::FirstTime) if !assigned => Start::At(log_start, Why::DatabaseWentBack),
                start => start,
            };
            let (offset, why) = match start {
                Start::At(offset, why) => (offset, why),
                Start::AnotherDatabase { theirs } => {
                    self.group.fail(RunError::AnotherDatabase {
                        group: self.group.name.to_string(),
                        topic: partition.topic.to_string(),
                        ours: self.group.lineage,
                        theirs,
                    });
                    return Ok(None);
                }
            };
            let epoch = row.map_or(1, |row| row.epoch);
            if row.map(|row| row.next_offset) != Some(offset) {
                takeover.record(&partition, epoch, offset).await?;
            }
            if facts.start_at_end && why == Why::FirstTime {
                new_topics.insert(Arc::clone(&partition.topic));
            }
            self.log_start(&partition, offset, why, &facts);
            starts.push((partition, Started { offset, epoch, server: Arc::clone(&server) }));
        }
        // "Latest" is resolved once, for the whole topic: a partition that another member starts
        // later, or that is added to the topic, must not lose what came in between.
        for topic in new_topics {
            for partition in self.consumer.partitions_of(topic).await? {
                if !bounds.contains_key(&partition) {
                    bounds.extend(self.consumer.log_bounds(std::slice::from_ref(&partition)).await?);
                    if let Some((_, log_end)) = bounds.get(&partition) {
                        takeover.record(&partition, 1, *log_end).await?;
                    }
                }
            }
        }
        takeover.commit().await?;
        Ok(Some(starts))
    }

    fn log_start(&self, partition: &Partition, offset: i64, why: Why, facts: &Facts) {
        let (group, topic, number) = (&*self.group.name, &*partition.topic, partition.number);
        let kafka = facts.committed.map(|committed| committed.offset);
        match why {
            Why::DatabaseWentBack => tracing::warn!(
                group,
                topic,
                partition = number,
                offset,
                kafka,
                database = facts.recorded,
                "the database is older than what was processed (a restore or a failover): going back"
            ),
            Why::OutOfRange => tracing::error!(
                group,
                topic,
                partition = number,
                offset,
                kafka,
                database = facts.recorded,
                log_start = facts.log_start,
                log_end = facts.log_end,
                "the position is not in the log any more: events may be gone; going on at the log's start"
            ),
            _ => tracing::info!(group, topic, partition = number, offset, ?why, "starting"),
        }
    }

    /// Writes what moved to the database, then tells Kafka; compares the rows where that is due.
    async fn record_progress(&mut self) {
        self.idle_ticks += 1;
        let moved = self.owned.values().any(|owned| owned.lane.position().0 != owned.written);
        if moved && let Err(error) = write(&self.group, self.owned.iter_mut().collect()).await {
            tracing::warn!(group = &*self.group.name, %error, "can't record progress; nothing is committed meanwhile");
            return;
        }
        let unsure = self.owned.values().any(|owned| owned.attempted.is_some());
        if unsure || self.idle_ticks >= IDLE_TICKS {
            self.idle_ticks = 0;
            self.compare().await;
        }
        self.commit_written();
    }

    /// Reads the rows, and finds out whether the database or the ownership changed.
    async fn compare(&mut self) {
        if self.owned.is_empty() {
            return;
        }
        let (server, rows) = match pg_progress::read(&self.group.pools.service, &self.group.name).await {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(group = &*self.group.name, %error, "can't read the group's progress");
                return;
            }
        };
        let mut verdicts = Vec::new();
        for (partition, owned) in &mut self.owned {
            let belief = Belief { epoch: owned.epoch, written: owned.written, attempted: owned.attempted };
            match progress::judge(belief, rows.get(partition).copied(), server == owned.server) {
                Verdict::Unchanged { written } => {
                    owned.written = written;
                    owned.attempted = None;
                }
                verdict => verdicts.push((partition.clone(), verdict)),
            }
        }
        for (partition, verdict) in verdicts {
            let Some(mut owned) = self.owned.remove(&partition) else { continue };
            owned.lane.abort().await;
            if verdict == Verdict::Zombie {
                tracing::warn!(
                    group = &*self.group.name,
                    topic = &*partition.topic,
                    partition = partition.number,
                    "another member owns the partition: this one was away too long, and stops working on it"
                );
            } else {
                tracing::warn!(
                    group = &*self.group.name,
                    topic = &*partition.topic,
                    partition = partition.number,
                    "the database restarted or went back: reading its position anew"
                );
                self.pending.insert(partition, Pending::Rewind);
                self.next_takeover = Instant::now();
            }
        }
    }

    /// Tells Kafka what the database holds.
    fn commit_written(&mut self) {
        let due: Vec<(Partition, i64)> = self
            .owned
            .iter_mut()
            .filter(|(_, owned)| owned.committed != Some(owned.written))
            .map(|(partition, owned)| {
                owned.committed = Some(owned.written);
                (partition.clone(), owned.written)
            })
            .collect();
        if due.is_empty() {
            return;
        }
        if let Err(error) = self.consumer.commit(&due, &self.metadata) {
            tracing::debug!(group = &*self.group.name, %error, "can't commit; the next tick repeats it");
            self.owned.values_mut().for_each(|owned| owned.committed = None);
        }
    }

    /// Sends partitions whose position has left the log to a takeover, which finds the log's start.
    async fn out_of_range(&mut self) {
        let partitions: Vec<Partition> = self.owned.keys().cloned().collect();
        let Ok(bounds) = self.consumer.log_bounds(&partitions).await else { return };
        for partition in partitions {
            let Some(&(start, end)) = bounds.get(&partition) else { continue };
            let outside =
                self.owned.get(&partition).is_some_and(|owned| !(start..=end).contains(&owned.lane.position().0));
            if outside && let Some(mut owned) = self.owned.remove(&partition) {
                owned.lane.abort().await;
                self.pending.insert(partition, Pending::Rewind);
                self.next_takeover = Instant::now();
            }
        }
    }

    /// Finishes what runs, records and commits it, and leaves the group.
    async fn leave(mut self) {
        let end = Instant::now() + self.group.config.shutdown_grace;
        let left =
            |reserve: u64| end.saturating_duration_since(Instant::now()).saturating_sub(Duration::from_secs(reserve));
        let bound = left(5);
        futures_util::future::join_all(self.owned.values_mut().map(|owned| owned.lane.drain(bound))).await;
        let mut owned: Vec<(Partition, Owned)> = self.owned.drain().collect();
        while let Some(Ok(drained)) = tokio::time::timeout(left(5), self.draining.join_next()).await.ok().flatten() {
            owned.extend(drained.working);
        }
        let written = write(&self.group, owned.iter_mut().map(|(partition, owned)| (&*partition, owned)).collect());
        match tokio::time::timeout(left(2), written).await {
            Ok(Ok(offsets)) => {
                let commit = self.consumer.commit_and_wait(offsets, self.metadata.clone());
                if !matches!(tokio::time::timeout(left(2), commit).await, Ok(Ok(()))) {
                    tracing::warn!(
                        group = &*self.group.name,
                        "the last commit was not confirmed; the database knows the position"
                    );
                }
            }
            _ => tracing::warn!(
                group = &*self.group.name,
                "can't record the last progress; a little will be delivered again"
            ),
        }
        self.consumer.close(left(0)).await;
        tracing::info!(group = &*self.group.name, "left");
    }
}

/// Writes positions by compare-and-set. Returns what the database now holds for certain.
async fn write(
    group: &GroupContext,
    partitions: Vec<(&Partition, &mut Owned)>,
) -> Result<Vec<(Partition, i64)>, sqlx::Error> {
    let mut moved = Vec::new();
    let mut written = Vec::new();
    for (partition, owned) in partitions {
        let (next_offset, event_millis) = owned.lane.position();
        if next_offset == owned.written {
            written.push((partition.clone(), next_offset));
        } else {
            moved.push((partition, owned, next_offset, event_millis));
        }
    }
    if moved.is_empty() {
        return Ok(written);
    }
    for (_, owned, next_offset, _) in &mut moved {
        owned.attempted = Some(*next_offset);
    }
    let writes: Vec<Write<'_>> = moved
        .iter()
        .map(|(partition, owned, next_offset, event_millis)| Write {
            partition,
            epoch: owned.epoch,
            server: &owned.server,
            expected: owned.written,
            next_offset: *next_offset,
            event_millis: *event_millis,
        })
        .collect();
    let confirmed = pg_progress::compare_and_set(&group.pools.service, &group.name, &writes).await?;
    drop(writes);
    for (partition, owned, next_offset, _) in moved {
        if confirmed.contains(partition) {
            owned.written = next_offset;
            owned.attempted = None;
            written.push((partition.clone(), next_offset));
        }
    }
    Ok(written)
}

/// Revoked partitions: those whose lanes finished what ran, and those that had none.
struct Drained {
    working: Vec<(Partition, Owned)>,
    idle: Vec<Partition>,
}

/// Where a partition was decided to start.
struct Started {
    offset: i64,
    epoch: i64,
    server: Server,
}

#[derive(Debug, thiserror::Error)]
enum TakeoverError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

fn list(partitions: &[Partition]) -> String {
    let names: Vec<String> =
        partitions.iter().map(|partition| format!("{}/{}", partition.topic, partition.number)).collect();
    names.join(" ")
}

/// The topics a group reads: its handlers', its replay topic, and every retry topic that exists, so
/// that a tier which left the configuration is drained.
pub(crate) fn subscription(group: &GroupContext, existing: &HashSet<String>) -> Vec<String> {
    let prefix = names::retry_prefix(&group.name);
    let mut topics: Vec<String> = group.topics.keys().map(|topic| (*topic).to_owned()).collect();
    topics.push(names::replay_topic(&group.name));
    topics.extend(group.all_tiers().into_iter().map(|delay| names::retry_topic(&group.name, delay)));
    topics.extend(existing.iter().filter(|topic| topic.starts_with(&prefix)).cloned());
    topics.sort_unstable();
    topics.dedup();
    topics
}
