//! How far the group is behind on each of its partitions, also on those that stand still.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::GroupContext;
use super::coordinator::Owned;
use crate::decide::stall::{self, Look, Standstill};
use crate::health::Obstacle;
use crate::kafka::consumer::Partition;
use crate::kafka::observer::Observer;
use crate::telemetry::LaneView;

/// How often the broker is asked for the ends of the logs.
const INTERVAL: Duration = Duration::from_secs(10);
/// A position that has not moved for so long, and the longest handler on top of it, although there is
/// work, is a stalled lane.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks at the ends of the logs from time to time, beside everything else.
pub(super) struct Lag {
    started: Instant,
    due: Instant,
    running: Option<JoinHandle<HashMap<Partition, i64>>>,
    asked: usize,
    /// Questions in a row without any answer.
    unanswered: u32,
    standstills: HashMap<Partition, Standstill>,
}

impl Default for Lag {
    fn default() -> Self {
        let now = Instant::now();
        Self { started: now, due: now, running: None, asked: 0, unanswered: 0, standstills: HashMap::new() }
    }
}

impl Lag {
    /// Notes where the lanes are; asks for the ends, if it is time.
    pub(super) async fn look(&mut self, group: &GroupContext, owned: &HashMap<Partition, Owned>) {
        self.note_lanes(group, owned);
        if self.running.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(running) = self.running.take()
        {
            let ends = running.await.unwrap_or_default();
            self.note_answer(group, ends.is_empty());
            for (partition, end) in ends {
                if let Some(owned) = owned.get(&partition) {
                    self.note_end(group, partition, owned, end);
                }
            }
        }
        if self.running.is_none() && !owned.is_empty() && self.due <= Instant::now() {
            self.due = Instant::now() + INTERVAL;
            self.asked = owned.len();
            let partitions = owned.keys().cloned().collect();
            let observer = Observer::new(&group.config, &group.name);
            self.running = Some(tokio::spawn(async move { observer.ends(partitions).await.unwrap_or_default() }));
        }
    }

    fn note_lanes(&mut self, group: &GroupContext, owned: &HashMap<Partition, Owned>) {
        let mut lanes = group.stats.lanes();
        lanes.retain(|partition, _| {
            let is_owned = owned.contains_key(partition);
            if !is_owned {
                // Somebody else tells of it now.
                gauge("idem_consumer_lag", group, partition).set(0.0);
                self.standstills.remove(partition);
                forget_stall(group, partition);
            }
            is_owned
        });
        for (partition, owned) in owned {
            let view = lanes.entry(partition.clone()).or_insert_with(|| {
                self.due = Instant::now();
                gauge("idem_lane_stalled", group, partition).set(0.0);
                LaneView::default()
            });
            view.position = owned.lane.position().0;
            view.queued_bytes = owned.lane.queued_bytes();
            view.brake = owned.lane.brake().map(|reason| reason.as_str());
        }
    }

    /// One question may fail for many reasons; two in a row without any answer are the broker's.
    fn note_answer(&mut self, group: &GroupContext, is_empty: bool) {
        self.unanswered = if is_empty { self.unanswered + 1 } else { 0 };
        let obstacle = Obstacle::Broker(Arc::clone(&group.name));
        if self.unanswered >= 2 {
            let text = format!("group {}: the broker does not say where its {} logs end", group.name, self.asked);
            group.health.set(obstacle, text);
        } else if !is_empty {
            group.health.clear(&obstacle);
        }
    }

    fn note_end(&mut self, group: &GroupContext, partition: Partition, owned: &Owned, end: i64) {
        let position = owned.lane.position().0;
        let lag = (end - position).max(0);
        gauge("idem_consumer_lag", group, &partition).set(lag as f64);
        // Events of the group's own topics wait until they are due, and a stopped lane has a reason of its own.
        let may_wait = group.is_own_topic(&partition.topic) || owned.lane.brake().is_some();
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let before = self.standstills.get(&partition).copied().filter(|_| !may_wait);
        let look = Look { position, end, has_work: !owned.lane.is_idle() };
        let standstill = stall::after(before, look, now);
        self.standstills.insert(partition.clone(), standstill);
        let stands = Duration::from_millis(now.saturating_sub(standstill.since_millis));
        let stalled_for = Some(stands).filter(|_| standstill.is_behind && stands > PATIENCE + group.longest_handler);
        match stalled_for {
            None => forget_stall(group, &partition),
            Some(stands) => {
                gauge("idem_lane_stalled", group, &partition).set(1.0);
                let Partition { topic, number } = &partition;
                let text = format!(
                    "group {}: {topic}/{number} has stood at offset {position} for {} s, {lag} events behind",
                    group.name,
                    stands.as_secs()
                );
                let obstacle = Obstacle::Stalled(Arc::clone(&group.name), partition.clone());
                if group.health.set(obstacle, text) {
                    tracing::error!(group = &*group.name, topic = &**topic, partition = number, "the lane is stalled");
                }
            }
        }
        if let Some(view) = group.stats.lanes().get_mut(&partition) {
            (view.lag, view.stalled_for) = (Some(lag), stalled_for);
        }
    }
}

fn forget_stall(group: &GroupContext, partition: &Partition) {
    if group.health.clear(&Obstacle::Stalled(Arc::clone(&group.name), partition.clone())) {
        gauge("idem_lane_stalled", group, partition).set(0.0);
    }
}

fn gauge(name: &'static str, group: &GroupContext, partition: &Partition) -> metrics::Gauge {
    let (topic, number) = (partition.topic.to_string(), partition.number.to_string());
    metrics::gauge!(name, "group" => group.name.to_string(), "topic" => topic, "partition" => number)
}

impl Drop for Lag {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}
