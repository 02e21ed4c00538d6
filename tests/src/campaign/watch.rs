//! Looks for progress from outside, handler by handler and partition by partition, and how long there was
//! none although all servers were up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::database::Address;
use super::timeline::Timeline;

const LOOK: Duration = Duration::from_millis(500);

/// Who makes progress: a handler on a partition.
type Who = (String, i32);

/// The watch. Clones look at the same.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// The last effect of each, and when it was new.
    last: HashMap<Who, (i64, Instant)>,
    /// Server faults in progress.
    outages: usize,
    /// When the last of them was over.
    up_since: Option<Instant>,
    worst: Duration,
}

/// A server fault in progress: nobody has to make progress until it is dropped.
#[derive(Debug)]
pub struct Outage(Watch);

impl Watch {
    /// Notes that a server fails.
    #[must_use]
    pub fn outage(&self) -> Outage {
        self.seen().outages += 1;
        Outage(self.clone())
    }

    /// The longest time without progress of a handler on a partition, counted from when all servers were up.
    #[must_use]
    pub fn worst(&self) -> Duration {
        self.seen().worst
    }

    /// Who has made progress so far.
    #[must_use]
    pub fn known(&self) -> usize {
        self.seen().last.len()
    }

    /// Looks until it is aborted.
    pub async fn look(self, database: Address, timeline: Arc<Timeline>) {
        loop {
            if let Some(mut session) = database.session().await
                && let Ok(positions) = positions(&mut session).await
            {
                self.note(positions, &timeline);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn note(&self, positions: Vec<(String, i32, i64)>, timeline: &Timeline) {
        let now = Instant::now();
        let mut seen = self.seen();
        for (handler, part, position) in positions {
            let entry = seen.last.entry((handler, part)).or_insert((position, now));
            // A database that went back shows older ones.
            if position > entry.0 {
                entry.1 = now;
            }
            entry.0 = position;
        }
        if seen.outages > 0 {
            return;
        }
        let up_since = seen.up_since.unwrap_or(now);
        let slowest = seen.last.iter().map(|(who, &(_, at))| (now - at.max(up_since).min(now), who.clone())).max();
        if let Some((gap, (handler, part))) = slowest
            && gap > seen.worst
        {
            if gap.as_secs() >= 10 && gap.as_secs() / 5 > seen.worst.as_secs() / 5 {
                timeline.note(format!("no progress of {handler} on partition {part} for {:.1} s", gap.as_secs_f64()));
            }
            seen.worst = gap;
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        let mut seen = self.0.seen();
        seen.outages -= 1;
        seen.up_since = Some(Instant::now());
    }
}

/// The last effect of each handler on each partition, from the index.
async fn positions(session: &mut PgConnection) -> Result<Vec<(String, i32, i64)>, sqlx::Error> {
    let handlers: Vec<&str> = super::load::Subject::SHARES
        .iter()
        .flat_map(|(subject, _)| subject.handlers().iter().map(|(handler, _)| *handler))
        .collect();
    sqlx::query_as(
        "SELECT handler, part, last.position \
           FROM unnest($1::text[]) AS handler, generate_series(0, $2 - 1) AS part, \
                LATERAL (SELECT max(position) AS position FROM effect \
                          WHERE effect.handler = handler.handler AND effect.part = part.part) AS last \
          WHERE last.position IS NOT NULL",
    )
    .bind(handlers)
    .bind(super::load::PARTITIONS.cast_signed())
    .fetch_all(session)
    .await
}
