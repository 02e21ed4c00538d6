//! What Kafka is told: where the group is, and in the metadata how far its lanes have begun, and may begin.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::GroupContext;
use super::coordinator::{Owned, sleep_until};
use crate::decide::position::{CommittedBy, Read};
use crate::kafka::consumer::{Consumer, Partition};
use crate::lane::Reservation;

/// Pause before a commit that was refused, and that a lane waits for, is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// A partition with the offset and metadata to commit.
type Commit = (Partition, i64, String);
/// Partitions that are told of together, and what their lanes may begin once Kafka has confirmed it.
type Together = (Vec<Commit>, Vec<(Reservation, i64)>);
/// How a commit ended, and of what it was.
type Ended = Result<(KafkaResult<()>, Vec<Partition>), JoinError>;

/// The commits of a group, beside everything else.
#[derive(Default)]
pub(super) struct Commits {
    under_way: JoinSet<(KafkaResult<()>, Vec<Partition>)>,
    /// Not before then, where the last one was refused.
    again: Option<Instant>,
    /// A topic was refused, such as one that is gone. Kafka answers for a whole commit with the refusal of one topic, so
    /// each has commits of its own from then on.
    by_topic: bool,
}

/// What is to be done.
pub(super) enum Due {
    Ended(Ended),
    /// The pause after a refusal is over.
    Again,
}

impl Commits {
    /// Tells what is new: what the database holds, and how far the lanes have begun, and may begin.
    pub(super) fn tell(&mut self, group: &GroupContext, consumer: &Consumer, owned: &mut HashMap<Partition, Owned>) {
        // One at a time: they are to arrive in their order.
        if !self.under_way.is_empty() || self.again.is_some_and(|again| Instant::now() < again) {
            return;
        }
        let mut due: BTreeMap<Option<Arc<str>>, Together> = BTreeMap::new();
        for (partition, owned) in owned {
            let reservation = owned.lane.reservation();
            let (offset, read) = (owned.written, owned.read(reservation.ahead()));
            if owned.is_confirmed && owned.told == Some((offset, read)) {
                continue;
            }
            let (commits, reserved) = due.entry(self.by_topic.then(|| Arc::clone(&partition.topic))).or_default();
            commits.push(commit(group, partition, offset, read));
            reserved.push((reservation.clone(), read.below));
            (owned.told, owned.is_confirmed) = (Some((offset, read)), true);
        }
        for (commits, reserved) in due.into_values() {
            let partitions = commits.iter().map(|(partition, ..)| partition.clone()).collect();
            let commit = consumer.commit(commits);
            self.under_way.spawn(async move {
                let ended = commit.await;
                if ended.is_ok() {
                    reserved.iter().for_each(|(reservation, below)| reservation.raise(*below));
                }
                (ended, partitions)
            });
        }
    }

    /// Waits until something is to be done.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
    pub(super) async fn due(&mut self) -> Due {
        tokio::select! {
            biased;
            Some(ended) = self.under_way.join_next() => Due::Ended(ended),
            () = sleep_until(self.again) => {
                self.again = None;
                Due::Again
            }
        }
    }

    /// Does it: what was refused is told once more, and so is what the lanes took meanwhile.
    pub(super) fn on(
        &mut self,
        due: Due,
        group: &GroupContext,
        consumer: &Consumer,
        owned: &mut HashMap<Partition, Owned>,
    ) {
        let refused = match due {
            Due::Again => return self.tell(group, consumer, owned),
            Due::Ended(Ok((Ok(()), _))) => Vec::new(),
            Due::Ended(Ok((Err(error), partitions))) => {
                tracing::debug!(group = &*group.name, %error, "a commit was refused; it is repeated");
                self.by_topic |= is_of_one_topic(&error);
                partitions
            }
            Due::Ended(Err(_)) => owned.keys().cloned().collect(),
        };
        for partition in &refused {
            if let Some(owned) = owned.get_mut(partition) {
                owned.is_confirmed = false;
            }
        }
        if !is_short(owned) {
            return;
        }
        if refused.is_empty() {
            self.tell(group, consumer, owned);
        } else {
            self.again = Some(Instant::now() + PAUSE);
        }
    }

    /// Waits for those that are under way now.
    pub(super) async fn those_under_way(
        &mut self,
        group: &GroupContext,
        consumer: &Consumer,
        owned: &mut HashMap<Partition, Owned>,
    ) {
        for _ in 0..self.under_way.len() {
            if let Some(ended) = self.under_way.join_next().await {
                self.on(Due::Ended(ended), group, consumer, owned);
            }
        }
    }

    /// Waits for them until then, and lets go of what is left of them.
    pub(super) async fn end(&mut self, until: Instant) {
        while let Ok(Some(_)) = tokio::time::timeout_at(until, self.under_way.join_next()).await {}
        self.under_way.shutdown().await;
    }
}

/// Whether a lane waits for a commit, or soon will.
pub(super) fn is_short(owned: &HashMap<Partition, Owned>) -> bool {
    owned.values().any(|owned| owned.lane.reservation().is_short())
}

/// What Kafka is told of partitions in the end, also where their progress could not be recorded: the next owner has to
/// know how far this one had begun.
pub(super) fn last(group: &GroupContext, partitions: &[(Partition, Owned)]) -> Vec<Commit> {
    partitions.iter().map(|(partition, owned)| commit(group, partition, owned.written, owned.read(0))).collect()
}

fn commit(group: &GroupContext, partition: &Partition, offset: i64, read: Read) -> Commit {
    (partition.clone(), offset, CommittedBy::metadata(group.lineage, Some(read)))
}

/// Whether Kafka refuses it for one topic, whatever becomes of the others.
fn is_of_one_topic(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{TopicAuthorizationFailed, UnknownTopicOrPartition};
    matches!(error.rdkafka_error_code(), Some(TopicAuthorizationFailed | UnknownTopicOrPartition))
}
