//! Lanes that stopped because everything went to the dead letter queue for one reason.

use std::collections::{BTreeMap, HashMap};

use super::GroupContext;
use super::coordinator::Owned;
use crate::decide::outcome::Reason;
use crate::health::Obstacle;
use crate::kafka::consumer::Partition;
use crate::pg::brakes;
use crate::pg::session::on_service;

/// The group's engaged brakes, as the database last said.
#[derive(Default)]
pub(super) struct Brakes {
    recorded: BTreeMap<Partition, String>,
}

impl Brakes {
    /// Reads the brakes that are engaged.
    pub(super) async fn read(&mut self, group: &GroupContext) -> Result<(), sqlx::Error> {
        let name = group.name.clone();
        self.recorded = on_service(&group.pools, move |connection| {
            Box::pin(async move { brakes::engaged(connection, &name).await })
        })
        .await?;
        Ok(())
    }

    /// Engages the brake of a lane that starts, if it is recorded.
    pub(super) fn apply(&self, partition: &Partition, owned: &Owned) {
        if let Some(reason) = self.recorded.get(partition) {
            // A reason of a newer version is a reason all the same.
            owned.lane.set_brake(Some(Reason::parse(reason).unwrap_or(Reason::Permanent)));
        }
    }

    /// Records brakes that lanes engaged, and lets lanes go on whose brake somebody released.
    pub(super) async fn look_after(&mut self, group: &GroupContext, owned: &HashMap<Partition, Owned>) {
        let engaged: Vec<(&Partition, Reason)> =
            owned.iter().filter_map(|(partition, owned)| Some((partition, owned.lane.brake()?))).collect();
        if engaged.is_empty() {
            return;
        }
        let before: Vec<Partition> = self.recorded.keys().cloned().collect();
        for (partition, reason) in &engaged {
            if !self.recorded.contains_key(*partition)
                && let Err(error) = self.record(group, partition, *reason).await
            {
                tracing::warn!(group = &*group.name, %error, "can't record a brake; the lane stays stopped");
            }
        }
        if let Err(error) = self.read(group).await {
            tracing::debug!(group = &*group.name, %error, "can't read the brakes");
            return;
        }
        for partition in before.iter().filter(|partition| !self.recorded.contains_key(*partition)) {
            if let Some(owned) = owned.get(partition) {
                tracing::info!(
                    group = &*group.name,
                    topic = &*partition.topic,
                    partition = partition.number,
                    "the brake is released"
                );
                owned.lane.set_brake(None);
            }
            group.health.clear(&Obstacle::Brake(group.name.clone(), partition.clone()));
            metrics::gauge!("idem_lane_brake", "group" => group.name.to_string()).set(self.recorded.len() as f64);
        }
        for (partition, reason) in self.recorded.iter().filter(|(partition, _)| owned.contains_key(*partition)) {
            let Partition { topic, number } = partition;
            let text = format!(
                "group {}: {topic}/{number} is stopped, everything in it went to the dead letter queue as `{reason}`: \
                 look at why, then `idem group resume {}`",
                group.name, group.name
            );
            group.health.set(Obstacle::Brake(group.name.clone(), partition.clone()), text);
        }
    }

    async fn record(&mut self, group: &GroupContext, partition: &Partition, reason: Reason) -> Result<(), sqlx::Error> {
        let (name, of) = (group.name.clone(), partition.clone());
        on_service(&group.pools, move |connection| {
            Box::pin(async move { brakes::engage(connection, &name, &of, reason.as_str()).await })
        })
        .await?;
        tracing::error!(
            group = &*group.name,
            topic = &*partition.topic,
            partition = partition.number,
            reason = reason.as_str(),
            "the lane stops: its last events all went to the dead letter queue for one reason"
        );
        self.recorded.insert(partition.clone(), reason.as_str().to_owned());
        metrics::gauge!("idem_lane_brake", "group" => group.name.to_string()).set(self.recorded.len() as f64);
        Ok(())
    }
}
