//! Where a group is, as Kafka and the database know it, and where it would start.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use uuid::Uuid;

use super::{Ops, OpsError, Timestamp};
use crate::config::OffsetReset;
use crate::decide::position::{self, Committed, Facts, Start, Why};
use crate::kafka::consumer::Partition;
use crate::kafka::names;

/// Where a group is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupOffsets {
    /// The group.
    pub group: String,
    /// The lineage of the database in use.
    pub lineage: Uuid,
    /// Events that are not handled yet, over all partitions.
    pub lag: i64,
    /// By topic and partition: every one that Kafka or the database knows a position of, and the
    /// others of such topics.
    pub partitions: Vec<PartitionOffsets>,
}

/// Where a group is on one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionOffsets {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// What Kafka says.
    pub kafka: Option<KafkaOffset>,
    /// What the database says.
    pub database: Option<DatabaseOffset>,
    /// First offset of the log. None: the partition has no leader now, or is gone.
    pub log_start: Option<i64>,
    /// One past the last offset of the log.
    pub log_end: Option<i64>,
    /// Events from the database's position, or else Kafka's, to the log's end.
    pub lag: Option<i64>,
    /// Where a member that takes the partition over now would start. None while the log's bounds
    /// aren't known.
    pub start: Option<Decision>,
}

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KafkaOffset {
    /// The next offset to read.
    pub offset: i64,
    /// The text that was committed with it: a lineage, or nothing after an operator's reset.
    pub metadata: String,
}

/// A row of `consumer_progress`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DatabaseOffset {
    /// The next offset to read.
    pub next_offset: i64,
    /// Raised with each takeover.
    pub epoch: i64,
    /// When it was last written.
    pub updated_at: Timestamp,
}

/// Where a member would start, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The offset. None: the run would stop.
    pub offset: Option<i64>,
    /// A word for programs: `agreed`, `database-ahead`, `database-went-back`, `operator-reset`,
    /// `kafka-forgot`, `first-time`, `out-of-range`, `another-database`.
    pub why: &'static str,
    /// The same in a sentence.
    pub explanation: String,
}

/// Reads a group's offsets and says what would be decided from them. Members that run stay where they
/// are; they commit to Kafka up to a second after the database.
///
/// # Errors
/// When a server is away, or nobody knows the group.
pub async fn offsets(ops: &Ops, group: &str) -> Result<GroupOffsets, OpsError> {
    let (lineage, recorded) = recorded(ops, group).await?;
    let observer = ops.observer(group);
    let cluster = observer.partitions().await.map_err(OpsError::kafka("list its topics"))?;
    // Of all topics: a database that went back may not know the group's.
    let asked = cluster.keys().filter(|partition| !partition.topic.starts_with("__")).cloned().collect();
    let committed = observer.committed(asked).await.map_err(OpsError::kafka("tell the group's offsets"))?;
    if committed.is_empty() && recorded.is_empty() {
        return Err(OpsError::NoGroup { group: group.to_owned() });
    }

    let topics: BTreeSet<Arc<str>> =
        committed.keys().chain(recorded.keys()).map(|partition| Arc::clone(&partition.topic)).collect();
    let mut shown: BTreeSet<Partition> = recorded.keys().cloned().collect();
    shown.extend(cluster.keys().filter(|partition| topics.contains(&partition.topic)).cloned());
    let led = shown.iter().filter(|partition| cluster.get(partition) == Some(&true)).cloned().collect();
    let bounds = observer.bounds(led).await.map_err(OpsError::kafka("tell the ends of the group's topics"))?;

    let known = Known { ops, group, lineage, committed, recorded, bounds };
    let known_topics: HashSet<Arc<str>> = known.recorded.keys().map(|found| Arc::clone(&found.topic)).collect();
    let partitions: Vec<PartitionOffsets> =
        shown.iter().map(|partition| known.partition(partition, known_topics.contains(&partition.topic))).collect();
    let lag = partitions.iter().filter_map(|partition| partition.lag).sum();
    Ok(GroupOffsets { group: group.to_owned(), lineage, lag, partitions })
}

struct Known<'a> {
    ops: &'a Ops,
    group: &'a str,
    lineage: Uuid,
    committed: HashMap<Partition, (i64, String)>,
    recorded: BTreeMap<Partition, DatabaseOffset>,
    bounds: BTreeMap<Partition, Range<i64>>,
}

impl Known<'_> {
    fn partition(&self, partition: &Partition, topic_is_known: bool) -> PartitionOffsets {
        let committed = self.committed.get(partition);
        let recorded = self.recorded.get(partition);
        let log = self.bounds.get(partition);
        let position = recorded.map(|row| row.next_offset).or(committed.map(|(offset, _)| *offset));
        let is_main = names::retry_delay(self.group, &partition.topic).is_none()
            && *partition.topic != *names::replay_topic(self.group);
        let start = log.map(|log| {
            let config = &self.ops.config;
            decision(&Facts {
                committed: committed.map(|(offset, text)| Committed::parse(*offset, text)),
                recorded: recorded.map(|row| row.next_offset),
                lineage: self.lineage,
                lineage_accepted: config.accept_database == Some(self.lineage),
                log_start: log.start,
                log_end: log.end,
                start_at_end: is_main && !topic_is_known && config.auto_offset_reset == OffsetReset::Latest,
            })
        });
        PartitionOffsets {
            topic: partition.topic.to_string(),
            partition: partition.number,
            kafka: committed.map(|(offset, text)| KafkaOffset { offset: *offset, metadata: text.clone() }),
            database: recorded.copied(),
            log_start: log.map(|log| log.start),
            log_end: log.map(|log| log.end),
            lag: log.map(|log| (log.end - position.unwrap_or(log.start).max(log.start)).max(0)),
            start,
        }
    }
}

fn decision(facts: &Facts) -> Decision {
    let (offset, why) = match position::start(facts) {
        Start::At(offset, why) => (offset, why),
        Start::AnotherDatabase { theirs } => {
            let explanation = format!(
                "Kafka's offset was committed for the database with the lineage {theirs}: the run would stop; \
                 `idem group accept` if this database is the right one now"
            );
            return Decision { offset: None, why: "another-database", explanation };
        }
    };
    let (why, explanation) = match why {
        Why::Agreed => ("agreed", "Kafka and the database agree"),
        Why::DatabaseAhead => ("database-ahead", "Kafka's commit came not as far: would go on where the database is"),
        Why::DatabaseWentBack if facts.recorded.is_none() => (
            "database-went-back",
            "database behind: it does not know the partition, which it once did; would go back to the log's start",
        ),
        Why::DatabaseWentBack => (
            "database-went-back",
            "database behind: it was restored or failed over; would go back to where the database is",
        ),
        Why::OperatorReset => {
            ("operator-reset", "another client or a person committed the group's offset in Kafka: would be honoured")
        }
        Why::KafkaForgot => ("kafka-forgot", "Kafka knows no offset: would go on where the database is"),
        Why::FirstTime => ("first-time", "nobody knows a position: would start as IDEM_AUTO_OFFSET_RESET says"),
        Why::OutOfRange => ("out-of-range", "the position is not in the log any more: would start at the log's start"),
    };
    Decision { offset: Some(offset), why, explanation: explanation.to_owned() }
}

/// The lineage, and the group's rows of `consumer_progress`.
async fn recorded(ops: &Ops, group: &str) -> Result<(Uuid, BTreeMap<Partition, DatabaseOffset>), OpsError> {
    type Row = (String, i32, i64, i64, i64);
    let group = group.to_owned();
    ops.database("tell where the group is", move |connection| {
        Box::pin(async move {
            let lineage = sqlx::query_scalar("SELECT id FROM idem_lineage").fetch_one(&mut *connection).await?;
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT topic, partition, next_offset, epoch, (extract(epoch FROM updated_at) * 1000)::bigint \
                   FROM consumer_progress WHERE consumer_group = $1",
            )
            .bind(group)
            .fetch_all(connection)
            .await?;
            let rows = rows.into_iter().map(|(topic, number, next_offset, epoch, updated_at)| {
                let updated_at = Timestamp(updated_at.unsigned_abs());
                (Partition { topic: topic.into(), number }, DatabaseOffset { next_offset, epoch, updated_at })
            });
            Ok((lineage, rows.collect()))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::position::CommittedBy;

    #[test]
    fn a_decision_is_explained() {
        let (ours, theirs) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let facts = |by, recorded| Facts {
            committed: Some(Committed { offset: 50, by, read: None }),
            recorded,
            lineage: ours,
            lineage_accepted: false,
            log_start: 10,
            log_end: 100,
            start_at_end: false,
        };
        let cases = [
            (facts(CommittedBy::Lineage(ours), Some(20)), Some(20), "database-went-back", "where the database is"),
            (facts(CommittedBy::Lineage(ours), None), Some(10), "database-went-back", "the log's start"),
            (facts(CommittedBy::Lineage(theirs), Some(20)), None, "another-database", "idem group accept"),
            (facts(CommittedBy::Other, Some(20)), Some(50), "operator-reset", "honoured"),
            (facts(CommittedBy::Lineage(ours), Some(5)), Some(10), "out-of-range", "the log's start"),
        ];
        for (facts, offset, why, says) in cases {
            let decision = decision(&facts);
            assert_eq!((decision.offset, decision.why), (offset, why), "{facts:?}");
            assert!(decision.explanation.contains(says), "{decision:?}");
        }
    }
}
