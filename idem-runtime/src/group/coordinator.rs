//! Drives one group: answers its rebalances, starts and stops lanes, records where they are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::KafkaError;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::GroupContext;
use super::brakes::Brakes;
use super::caught_up::Watch;
use super::commits::{self, Commits};
use super::lag::Lag;
use super::progress::{compare, write};
use super::takeover::{self, Taken};
use crate::decide::position::{Read, Rewind, ServerRun};
use crate::decide::progress::Verdict;
use crate::decide::reservation;
use crate::health::Obstacle;
use crate::kafka::consumer::{Command, Consumer, Event, Partition, Source};
use crate::lane::{Lane, LaneState};
use crate::parking::Parking;
use crate::pg::parked::Owner;
use crate::pg::progress::Server;
use crate::run::RunError;
use crate::stop::Stop;

/// How often progress is written and the rows are compared.
const TICK: Duration = Duration::from_secs(1);
/// How often rows are read although nothing moved: a failover of an idle group is noticed too.
const IDLE_TICKS: u32 = 5;
/// Pause before a takeover that failed is tried again.
const TAKEOVER_PAUSE: Duration = Duration::from_millis(500);
/// How long lanes may begin what lies below something finished before their partitions are handed over.
const CLOSING: Duration = Duration::from_secs(1);
/// Ticks without any partition after which others have certainly read the positions of theirs.
const SPARE_TICKS: u32 = 60;
/// How long a member that another one seems to have replaced waits for Kafka to say so. If Kafka does
/// not, the partition is its own after all.
const DISPUTE_PAUSE: Duration = Duration::from_secs(15);

/// A partition this member works on.
pub(super) struct Owned {
    pub lane: Lane,
    pub epoch: i64,
    /// How far others had begun it.
    pub begun_before: i64,
    /// The run of the server that confirmed what the lane did.
    pub server: Server,
    /// What the database holds.
    pub written: i64,
    /// A write whose answer did not come.
    pub attempted: Option<i64>,
    /// The offset that Kafka was told last, and how far it was begun; it may have refused.
    pub told: Option<(i64, Read)>,
    /// Whether it did not refuse.
    pub is_confirmed: bool,
}

impl Owned {
    /// How far it was begun, by whomever, or may be when so many more events are reserved for its lane.
    pub(super) fn read(&self, reserve: i64) -> Read {
        let below = reservation::told_below(self.lane.begun_below(), reserve, self.begun_before);
        Read { below, server: ServerRun::of(&self.server) }
    }
}

/// A partition whose position is to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    /// It was read by this member before, and goes back; otherwise it is newly assigned.
    pub rewind: Option<Rewind>,
    not_before: Instant,
}

/// Revoked partitions: those whose lanes finished what ran, and those that had none.
struct Drained {
    working: Vec<(Partition, Owned)>,
    idle: Vec<Partition>,
}

/// Drives one group until a stop is asked for.
pub(crate) struct Coordinator {
    group: Arc<GroupContext>,
    consumer: Consumer,
    events: mpsc::UnboundedReceiver<Event>,
    owned: HashMap<Partition, Owned>,
    pending: BTreeMap<Partition, Pending>,
    /// Revoked partitions whose lanes finish what runs.
    draining: JoinSet<Drained>,
    commits: Commits,
    /// Partitions whose offset may have left the log: the client does not say which one it was, and
    /// does not say it again.
    suspects: BTreeSet<Partition>,
    idle_ticks: u32,
    /// So long it has had no partition. None: the group has not assigned any yet, not even none.
    spare_ticks: Option<u32>,
    brakes: Brakes,
    ends: Watch,
    lag: Lag,
}

impl Coordinator {
    /// Joins the group.
    pub(crate) fn join(group: Arc<GroupContext>, topics: &[String]) -> Result<Self, KafkaError> {
        let (consumer, events) = Consumer::join(&group.config, &group.name, topics, group.prefetch)?;
        let reason = format!("group {}: it has not assigned partitions to this member yet", group.name);
        group.health.set(Obstacle::Assignment(Arc::clone(&group.name)), reason);
        Ok(Self {
            group,
            consumer,
            events,
            owned: HashMap::new(),
            pending: BTreeMap::new(),
            draining: JoinSet::new(),
            commits: Commits::default(),
            suspects: BTreeSet::new(),
            idle_ticks: 0,
            spare_ticks: None,
            brakes: Brakes::default(),
            ends: Watch::default(),
            lag: Lag::default(),
        })
    }

    /// Works until the stop, then finishes, records, commits and leaves within the grace period.
    pub(crate) async fn run(mut self, stop: Stop) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let group = Arc::clone(&self.group);
        while !stop.is_requested() {
            let takeover = self.pending.values().map(|pending| pending.not_before).min();
            tokio::select! {
                biased;
                () = stop.requested() => {}
                Some(event) = self.events.recv() => self.on_event(event).await,
                Some(drained) = self.draining.join_next() => match drained {
                    Ok(drained) => self.hand_over(drained).await,
                    Err(error) => self.group.fail(RunError::Internal(format!("a drain ended abnormally: {error}"))),
                },
                due = self.commits.due() => self.commits.on(due, &self.group, &self.consumer, &mut self.owned),
                _ = tick.tick() => self.record_progress().await,
                () = group.short.notified() => self.tell_kafka(),
                () = group.doubt.notified() => self.compare().await,
                () = sleep_until(takeover) => tokio::select! {
                    () = stop.requested() => {}
                    () = self.take_over() => {}
                },
            }
        }
        self.leave(stop.requested_at()).await;
    }

    async fn on_event(&mut self, event: Event) {
        match event {
            Event::Assigned(partitions) => {
                tracing::info!(group = &*self.group.name, partitions = %list(&partitions), "assigned");
                self.group.stats.rebalanced();
                self.group.health.clear(&Obstacle::Assignment(Arc::clone(&self.group.name)));
                // Answered at once, with nothing: while the database is away the group must go on.
                // The partitions are added when their positions are read.
                self.consumer.send(Command::Start(Vec::new()));
                self.spare_ticks = Some(0);
                for partition in partitions {
                    self.wait_for_position(partition, None, Duration::ZERO);
                }
            }
            Event::Revoked { partitions, lost } => self.revoked(partitions, lost).await,
            Event::OutOfRange => self.suspects.extend(self.owned.keys().cloned()),
            Event::Fatal(error) => self.group.fail(RunError::Consumer { group: self.group.name.to_string(), error }),
        }
    }

    fn wait_for_position(&mut self, partition: Partition, rewind: Option<Rewind>, pause: Duration) {
        self.pending.insert(partition, Pending { rewind, not_before: Instant::now() + pause });
    }

    /// Lets go of a partition's lane, and reads its position anew. `may_be_others`: another member may have had it since.
    async fn rewind(&mut self, partition: Partition, pause: Duration, may_be_others: bool) {
        if let Some(mut owned) = self.owned.remove(&partition) {
            owned.lane.abort().await;
            let told = owned.told.filter(|_| !may_be_others).map(|(_, read)| read);
            let rewind = Rewind { confirmed: owned.written, read: owned.read(0), told };
            self.wait_for_position(partition, Some(rewind), pause);
        }
    }

    async fn revoked(&mut self, partitions: Vec<Partition>, lost: bool) {
        tracing::info!(group = &*self.group.name, partitions = %list(&partitions), lost, "revoked");
        let mut working = Vec::new();
        let mut idle = Vec::new();
        for partition in partitions {
            self.group.health.forget_partition(&self.group.name, &partition);
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
            futures_util::future::join_all(working.iter_mut().map(|(_, owned)| owned.lane.drain(bound, CLOSING))).await;
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
        self.group.longest_handler.min(Duration::from_millis(poll_interval) / 2) + CLOSING
    }

    /// The last record of drained partitions, then the commit, then they go back to the group.
    async fn hand_over(&mut self, drained: Drained) {
        let Drained { mut working, idle } = drained;
        // Its metadata says more than what is told now, and must not come after it.
        self.commits.those_under_way(&self.group, &self.consumer, &mut self.owned).await;
        let partitions = working.iter_mut().map(|(partition, owned)| (&*partition, owned)).collect();
        let group = &*self.group.name;
        if let Err(error) = write(&self.group, partitions).await {
            tracing::warn!(group, %error, "can't record the last progress; the next owner repeats a little");
        }
        if let Err(error) = self.consumer.commit(commits::last(&self.group, &working)).await {
            tracing::debug!(group, %error, "the last commit was refused; the database knows more");
        }
        self.consumer.send(Command::Release(working.into_iter().map(|(partition, _)| partition).chain(idle).collect()));
    }

    /// Reads the position of partitions that wait for it, and starts their lanes.
    async fn take_over(&mut self) {
        let now = Instant::now();
        let due: BTreeMap<Partition, Pending> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.not_before <= now)
            .map(|(partition, pending)| (partition.clone(), *pending))
            .collect();
        let taken = match self.brakes.read(&self.group).await {
            Ok(()) => takeover::positions(&self.group, &self.consumer, &due).await,
            Err(error) => Err(error.into()),
        };
        let mut assigned = Vec::new();
        match taken {
            Ok(taken) => {
                self.group.health.clear(&Obstacle::Position(Arc::clone(&self.group.name)));
                for (partition, Taken { offset, begun_below, epoch, server, parked }) in taken {
                    let Some(pending) = self.pending.remove(&partition) else { continue };
                    let (group, of) = (Arc::clone(&self.group.name), partition.clone());
                    let owner = Owner { group, partition: of, epoch, server: Arc::clone(&server) };
                    let parking = Parking::new(&self.group, owner, &parked);
                    let (lane, sender) =
                        Lane::start(Arc::clone(&self.group), &partition, offset, Arc::clone(&server), parking);
                    let source = Source { partition: partition.clone(), offset, lane: sender };
                    if pending.rewind.is_some() {
                        self.consumer.send(Command::Rewind(source));
                    } else {
                        assigned.push(source);
                    }
                    let owned = Owned {
                        lane,
                        epoch,
                        begun_before: begun_below,
                        server,
                        written: offset,
                        attempted: None,
                        told: None,
                        is_confirmed: false,
                    };
                    // Whoever engaged its brake may have been another member.
                    self.brakes.apply(&partition, &owned);
                    self.owned.insert(partition, owned);
                }
            }
            Err(error) => {
                tracing::warn!(group = &*self.group.name, %error, "can't read the group's position; trying again");
                self.position_is_away("read", &error);
            }
        }
        if !self.owned.is_empty() && self.pending.is_empty() {
            self.group.first_positions.note(&self.group.name);
            self.ends.soon();
        }
        if !assigned.is_empty() {
            self.consumer.send(Command::Start(assigned));
        }
        if commits::is_short(&self.owned) {
            self.tell_kafka();
        }
        // Those that are left: no leader, or no database.
        for partition in due.keys() {
            if let Some(pending) = self.pending.get_mut(partition) {
                pending.not_before = Instant::now() + TAKEOVER_PAUSE;
            }
        }
    }

    /// A member that the group needs no more than as a spare reads no positions. Those who have the
    /// partitions do, and this one looks after the dedup table as well.
    fn count_as_spare(&mut self) {
        let is_spare = self.owned.is_empty() && self.pending.is_empty() && self.draining.is_empty();
        self.spare_ticks = self.spare_ticks.map(|ticks| if is_spare { ticks.saturating_add(1) } else { 0 });
        if self.spare_ticks == Some(SPARE_TICKS) {
            self.group.first_positions.note(&self.group.name);
        }
    }

    /// Writes what moved to the database, then tells Kafka; compares the rows where that is due.
    async fn record_progress(&mut self) {
        self.count_as_spare();
        self.look_after_lanes().await;
        self.brakes.look_after(&self.group, &self.owned).await;
        self.ends.look(&self.group, &self.owned).await;
        self.lag.look(&self.group, &self.owned).await;
        self.idle_ticks += 1;
        // A write whose answer was lost is cleared up before the next one.
        let unsure = self.owned.values().any(|owned| owned.attempted.is_some());
        let away = self.group.health.has(&Obstacle::Position(Arc::clone(&self.group.name)));
        if unsure || away || self.idle_ticks >= IDLE_TICKS {
            self.idle_ticks = 0;
            self.compare().await;
        }
        let moved = self.owned.values().any(|owned| owned.lane.position().0 != owned.written);
        if moved && let Err(error) = write(&self.group, self.owned.iter_mut().collect()).await {
            tracing::warn!(group = &*self.group.name, %error, "can't record progress; no offset moves meanwhile");
            self.position_is_away("recorded", &error);
            // The offsets are what they were; how far the lanes have begun is not.
            return self.tell_kafka();
        }
        if self.owned.values().any(|owned| owned.attempted.is_some()) {
            self.compare().await;
        }
        self.tell_kafka();
    }

    /// Restarts lanes that ended without being asked to, and those whose offset may have left the log.
    async fn look_after_lanes(&mut self) {
        for (partition, owned) in &self.owned {
            match owned.lane.state() {
                LaneState::Running => {}
                LaneState::Crashed => {
                    let Partition { topic, number } = partition;
                    self.group.fail(RunError::Internal(format!("the lane of {topic}/{number} ended abnormally")));
                }
                // The client let go of the partition. If the group takes it too, a revocation follows.
                LaneState::Ended => drop(self.suspects.insert(partition.clone())),
            }
        }
        // What is in memory can still be handled, also if it has left the log.
        let idle: Vec<Partition> = self
            .suspects
            .iter()
            .filter(|suspect| self.owned.get(*suspect).is_none_or(|owned| owned.lane.is_idle()))
            .cloned()
            .collect();
        for partition in idle {
            self.suspects.remove(&partition);
            self.rewind(partition, Duration::ZERO, true).await;
        }
    }

    /// Reads the rows, and finds out whether the database or the ownership changed. Without partitions
    /// there are none to read.
    async fn compare(&mut self) {
        let changed = match compare(&self.group, &mut self.owned).await {
            Ok(changed) => changed,
            Err(error) => {
                tracing::debug!(group = &*self.group.name, %error, "can't read the group's progress");
                return self.position_is_away("read", &error);
            }
        };
        if self.pending.is_empty() {
            self.group.health.clear(&Obstacle::Position(Arc::clone(&self.group.name)));
        }
        for (partition, verdict) in changed {
            let (group, topic, number) = (&*self.group.name, &*partition.topic, partition.number);
            if verdict == Verdict::Zombie {
                tracing::warn!(
                    group,
                    topic,
                    partition = number,
                    "another member has taken the partition over: this one was away too long, and stops working on it"
                );
                self.rewind(partition, DISPUTE_PAUSE, true).await;
            } else {
                tracing::warn!(
                    group,
                    topic,
                    partition = number,
                    "the database restarted or went back: reading the position anew"
                );
                self.rewind(partition, Duration::ZERO, false).await;
            }
        }
    }

    /// Until the rows were read again, which is tried in each tick from now on.
    fn position_is_away(&self, what: &str, error: &dyn std::fmt::Display) {
        let reason = format!("group {}: its position can't be {what}: {error}", self.group.name);
        self.group.health.set(Obstacle::Position(Arc::clone(&self.group.name)), reason);
    }

    fn tell_kafka(&mut self) {
        self.commits.tell(&self.group, &self.consumer, &mut self.owned);
    }

    /// Finishes what runs, records and commits it, and leaves the group.
    async fn leave(mut self, asked: Instant) {
        let end = asked + self.group.config.shutdown_grace;
        let left =
            |reserve: u64| end.saturating_duration_since(Instant::now()).saturating_sub(Duration::from_secs(reserve));
        let bound = left(5);
        let closing = (bound / 2).max(CLOSING);
        futures_util::future::join_all(self.owned.values_mut().map(|owned| owned.lane.drain(bound, closing))).await;
        let mut owned: Vec<(Partition, Owned)> = self.owned.drain().collect();
        while let Ok(Some(Ok(drained))) = tokio::time::timeout(left(5), self.draining.join_next()).await {
            owned.extend(drained.working);
        }
        // The client is closed by its thread, when nobody else has it.
        self.commits.end(Instant::now() + left(4)).await;
        let group = &*self.group.name;
        let partitions = owned.iter_mut().map(|(partition, owned)| (&*partition, owned)).collect();
        if !matches!(tokio::time::timeout(left(3), write(&self.group, partitions)).await, Ok(Ok(()))) {
            tracing::warn!(group, "can't record the last progress; a little will be delivered again");
        }
        let commit = self.consumer.commit(commits::last(&self.group, &owned));
        if !matches!(tokio::time::timeout(left(2), commit).await, Ok(Ok(()))) {
            tracing::warn!(group, "the last commit was not confirmed; the database knows the position");
        }
        self.consumer.close(left(1)).await;
        tracing::info!(group, "left");
    }
}

/// Waits until then; for ever, if there is no then.
pub(super) async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn list(partitions: &[Partition]) -> String {
    let names: Vec<String> =
        partitions.iter().map(|partition| format!("{}/{}", partition.topic, partition.number)).collect();
    names.join(" ")
}
