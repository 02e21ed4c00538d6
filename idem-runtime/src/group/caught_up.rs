//! Noting how far a group has read in time, for the dedup table: rows stay as long as a group may still
//! have to read events of their time.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::GroupContext;
use super::coordinator::Owned;
use crate::decide::caught_up::{self, Look};
use crate::kafka::consumer::Partition;
use crate::kafka::names;
use crate::kafka::observer::Observer;
use crate::pg::progress::{self, CaughtUp};
use crate::pg::session::on_service;

/// Often enough for what is decided by days.
const INTERVAL: Duration = Duration::from_secs(30);
/// The first time, when partitions were taken over; then twice as long each time.
const FIRST: Duration = Duration::from_secs(2);

/// Looks at the ends of the logs from time to time, beside everything else.
#[derive(Default)]
pub(super) struct Watch {
    due: Option<Instant>,
    pause: Duration,
    running: Option<JoinHandle<Seen>>,
    last: HashMap<Partition, Look>,
}

impl Watch {
    /// Partitions were taken over: look soon.
    pub(super) fn soon(&mut self) {
        self.pause = FIRST;
        self.due = Some(Instant::now() + FIRST);
    }

    /// Looks, if it is time.
    pub(super) async fn look(&mut self, group: &Arc<GroupContext>, owned: &HashMap<Partition, Owned>) {
        if self.running.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(running) = self.running.take()
        {
            let seen = running.await.unwrap_or_default();
            self.last = seen.looks;
            if seen.is_open {
                self.soon();
            }
        }
        if self.running.is_some() || owned.is_empty() || self.due.is_none_or(|due| due > Instant::now()) {
            return;
        }
        self.pause = INTERVAL.min(self.pause * 2);
        self.due = Some(Instant::now() + self.pause);
        let partitions: Vec<Partition> = owned.keys().cloned().collect();
        let mut looks: HashMap<Partition, (Look, Owner)> = HashMap::new();
        for (partition, owned) in owned {
            let is_idle = owned.lane.is_idle() && owned.lane.brake().is_none();
            let look = Look { position: owned.written, end: 0, is_idle, has_no_more: false };
            looks.insert(partition.clone(), (look, Owner { epoch: owned.epoch, server: Arc::clone(&owned.server) }));
        }
        let (group, last) = (Arc::clone(group), std::mem::take(&mut self.last));
        self.running = Some(tokio::spawn(async move {
            let name = Arc::clone(&group.name);
            // First, so that what moves on meanwhile counts as unread.
            let read = on_service(&group.pools, move |connection| {
                Box::pin(async move { progress::times(connection, &name).await })
            });
            let times = match read.await {
                Ok(times) => times,
                Err(error) => {
                    tracing::debug!(group = &*group.name, %error, "can't read how far the group is");
                    return Seen::default();
                }
            };
            let observer = Observer::new(&group.config, &group.name);
            let Ok(ends) = observer.ends(partitions).await else { return Seen::default() };
            looks.retain(|partition, (look, _)| {
                let end = ends.get(partition);
                *look = Look { end: end.copied().unwrap_or_default(), ..*look }.after(last.get(partition));
                end.is_some()
            });
            find_empty_ends(&observer, &mut looks, &last).await;
            let mut seen = Seen::default();
            let mut notes = Vec::new();
            for (partition, (look, Owner { epoch, server })) in looks {
                let floor = match names::retry_delay(&group.name, &partition.topic) {
                    Some(delay) => caught_up::floor_of_retries(delay, &times.positions).map(Some),
                    None => Some(None),
                };
                // Of a retry topic nothing is known until something is known of what leads to it.
                seen.is_open |= floor.is_none();
                if let Some(floor_millis) = floor {
                    let read_to = look.end_of_records();
                    notes.push(CaughtUp { partition: partition.clone(), epoch, server, read_to, floor_millis });
                }
                seen.looks.insert(partition, look);
            }
            let name = Arc::clone(&group.name);
            let written = on_service(&group.pools, move |connection| {
                Box::pin(async move { progress::note_caught_up(connection, &name, times.now, &notes).await })
            });
            if let Err(error) = written.await {
                tracing::debug!(group = &*group.name, %error, "can't note how far the group is");
            }
            seen
        }));
    }
}

/// Reads what idle partitions have before their ends, where that is not known. What can't be read stays
/// unknown.
async fn find_empty_ends(
    observer: &Observer,
    looks: &mut HashMap<Partition, (Look, Owner)>,
    last: &HashMap<Partition, Look>,
) {
    let mut by_topic: BTreeMap<Arc<str>, BTreeMap<i32, Range<i64>>> = BTreeMap::new();
    for (partition, (look, _)) in looks.iter() {
        if look.is_worth_reading(last.get(partition)) {
            let ranges = by_topic.entry(Arc::clone(&partition.topic)).or_default();
            ranges.insert(partition.number, look.position..look.end);
        }
    }
    for (topic, ranges) in by_topic {
        for number in observer.without_records(&topic, ranges).await.unwrap_or_default() {
            if let Some((look, _)) = looks.get_mut(&Partition { topic: Arc::clone(&topic), number }) {
                look.has_no_more = true;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// What a look found.
#[derive(Default)]
struct Seen {
    looks: HashMap<Partition, Look>,
    /// Something could not be said, because something else was not known yet.
    is_open: bool,
}

struct Owner {
    epoch: i64,
    server: progress::Server,
}
