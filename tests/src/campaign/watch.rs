//! Looks for progress from outside, group by group and partition by partition, and how long there was none
//! although all servers were up and there was something to do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::database::Address;
use super::evidence::{Lag, Lags, Reads};
use super::load::{PARTITIONS, Subject};
use super::timeline::Timeline;
use crate::Client;

const LOOK: Duration = Duration::from_millis(500);

/// Between two questions to the brokers.
const ASK: Duration = Duration::from_secs(1);

/// The watch. Clones look at the same.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    all: HashMap<Reads, Standing>,
    up: UpTime,
    worst: Duration,
}

/// How one group stands on one partition.
#[derive(Debug, Default)]
struct Standing {
    /// The last effect; retry topics have none of their own.
    effect: Option<i64>,
    lag: Option<Lag>,
    /// When it made progress or had nothing to do, in up-time.
    since: Duration,
}

/// A clock that stands still while a server is away.
#[derive(Debug)]
struct UpTime {
    outages: usize,
    before: Duration,
    since: Instant,
}

impl Default for UpTime {
    fn default() -> Self {
        Self { outages: 0, before: Duration::ZERO, since: Instant::now() }
    }
}

impl UpTime {
    fn at(&self, now: Instant) -> Duration {
        let running = if self.outages == 0 { now.saturating_duration_since(self.since) } else { Duration::ZERO };
        self.before + running
    }

    fn stop(&mut self, now: Instant) {
        self.before = self.at(now);
        self.outages += 1;
    }

    fn go_on(&mut self, now: Instant) {
        self.outages -= 1;
        self.since = now;
    }
}

/// A server fault in progress: nobody has to make progress until it is dropped.
#[derive(Debug)]
pub struct Outage(Watch);

impl Watch {
    /// Notes that a server fails.
    #[must_use]
    pub fn outage(&self) -> Outage {
        self.seen().up.stop(Instant::now());
        Outage(self.clone())
    }

    /// The longest up-time without progress of a group on a partition on which it had something to do. What
    /// goes on over several outages adds up.
    #[must_use]
    pub fn worst(&self) -> Duration {
        self.seen().worst
    }

    /// On how many partitions there was an effect so far.
    #[must_use]
    pub fn known(&self) -> usize {
        self.seen().all.values().filter(|standing| standing.effect.is_some()).count()
    }

    /// Looks for effects until it is aborted.
    pub async fn look(self, database: Address, timeline: Arc<Timeline>) {
        loop {
            if let Some(mut session) = database.session().await
                && let Ok(effects) = effects(&mut session).await
            {
                let outbox = first_in_outbox(&mut session).await;
                let mut seen = self.seen();
                for (who, effect) in effects {
                    seen.effect(who, effect);
                }
                if let Ok(first) = outbox {
                    seen.outbox(first);
                }
                seen.judge(Instant::now(), &timeline);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks the brokers how far the groups are, until it is aborted.
    pub async fn ask(self, kafka: Client) {
        let lags = tokio::task::spawn_blocking(move || Lags::new(&kafka)).await;
        let mut lags = lags.expect("no panic").unwrap_or_else(|error| panic!("cannot ask for lags: {error}"));
        loop {
            let asked = tokio::task::spawn_blocking(move || (lags.look(), lags)).await;
            let (looked, again) = asked.expect("no panic");
            lags = again;
            // A broker that is away leaves what was known.
            for (who, lag) in looked.unwrap_or_default() {
                self.seen().lag(who, lag);
            }
            tokio::time::sleep(ASK).await;
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn effect(&mut self, who: Reads, effect: i64) {
        let now = self.up.at(Instant::now());
        let standing = self.standing(who, now);
        // A database that went back shows older ones.
        if standing.effect.is_none_or(|last| effect > last) {
            standing.since = now;
        }
        standing.effect = Some(effect);
    }

    fn lag(&mut self, who: Reads, lag: Lag) {
        let now = self.up.at(Instant::now());
        let standing = self.standing(who, now);
        if standing.lag.is_none_or(|last| lag.next > last.next) || lag.next >= lag.end {
            standing.since = now;
        }
        standing.lag = Some(lag);
    }

    /// The relay is one more reader: of the outbox.
    fn outbox(&mut self, first: Option<i64>) {
        let who = ("relay", "idem_outbox".to_owned(), 0);
        let last = self.all.get(&who).and_then(|standing| standing.lag).map_or(0, |lag| lag.next);
        let lag = first.map_or(Lag { next: last, end: last }, |first| Lag { next: first, end: first + 1 });
        self.lag(who, lag);
    }

    fn standing(&mut self, who: Reads, now: Duration) -> &mut Standing {
        self.all.entry(who).or_insert_with(|| Standing { since: now, ..Standing::default() })
    }

    fn judge(&mut self, now: Instant, timeline: &Timeline) {
        let up = self.up.at(now);
        // Where nothing is known of a lag there is one.
        let busy = self.all.iter().filter(|(_, standing)| standing.lag.is_none_or(|lag| lag.next < lag.end));
        let slowest = busy.map(|(who, standing)| (up.saturating_sub(standing.since), who)).max();
        let Some((gap, (group, topic, partition))) = slowest else { return };
        if gap > self.worst {
            if gap.as_secs() >= 10 && gap.as_secs() / 5 > self.worst.as_secs() / 5 {
                let gap = gap.as_secs_f64();
                timeline.note(format!("no progress of {group} on {topic}/{partition} for {gap:.1} s"));
            }
            self.worst = gap;
        }
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        self.0.seen().up.go_on(Instant::now());
    }
}

/// The last effect of each group on each partition, from the index.
async fn effects(session: &mut PgConnection) -> Result<Vec<(Reads, i64)>, sqlx::Error> {
    let all =
        || Subject::SHARES.iter().flat_map(|(subject, _)| subject.handlers().iter().map(move |of| (*subject, *of)));
    let found: Vec<(String, i32, i64)> = sqlx::query_as(
        "SELECT handler, part, last.position \
           FROM unnest($1::text[]) AS handler, generate_series(0, $2 - 1) AS part, \
                LATERAL (SELECT max(position) AS position FROM effect \
                          WHERE effect.handler = handler.handler AND effect.part = part.part) AS last \
          WHERE last.position IS NOT NULL",
    )
    .bind(all().map(|(_, (handler, _))| handler).collect::<Vec<_>>())
    .bind(PARTITIONS.cast_signed())
    .fetch_all(session)
    .await?;
    let who = |(handler, part, position): (String, i32, i64)| {
        let (subject, (_, group)) = all().find(|(_, (name, _))| *name == handler)?;
        Some(((group, subject.topic().to_owned(), part), position))
    };
    Ok(found.into_iter().filter_map(who).collect())
}

/// The lowest number in the outbox.
async fn first_in_outbox(session: &mut PgConnection) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT min(seq) FROM idem_outbox").fetch_one(session).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn up_time_stands_still_in_outages_and_adds_up_over_them() {
        let start = Instant::now();
        let mut up = UpTime { since: start, ..UpTime::default() };
        up.stop(after(start, 10));
        up.stop(after(start, 12));
        up.go_on(after(start, 14));
        assert_eq!(up.at(after(start, 20)), Duration::from_secs(10));
        up.go_on(after(start, 21));
        assert_eq!(up.at(after(start, 25)), Duration::from_secs(14));
    }

    #[test]
    fn only_who_has_something_to_do_and_does_nothing_is_slow() {
        let (start, timeline) = (Instant::now(), Timeline::default());
        let who = |partition| ("books", "campaign.views".to_owned(), partition);
        let standing = |next, end| Standing { lag: Some(Lag { next, end }), ..Standing::default() };
        let mut seen = Seen { up: UpTime { since: start, ..UpTime::default() }, ..Seen::default() };
        seen.all.insert(who(0), standing(7, 7));
        seen.judge(after(start, 60), &timeline);
        assert_eq!(seen.worst, Duration::ZERO);
        seen.all.insert(who(1), standing(6, 7));
        // An outage in the middle does not begin a new time.
        seen.up.stop(after(start, 20));
        seen.up.go_on(after(start, 50));
        seen.judge(after(start, 60), &timeline);
        assert_eq!(seen.worst, Duration::from_secs(30));
    }
}
