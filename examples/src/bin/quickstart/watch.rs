//! What has happened so far, counted from the business table and the topics.

use std::collections::{BTreeMap, HashMap};

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaResult;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor, PgPool};
use uuid::Uuid;

use crate::error::QuickstartError;
use crate::figures::Figures;
use crate::handlers::{GROUPS, TABLE, TOPIC};
use crate::load::{Load, RUN_HEADER};
use crate::servers::{Servers, dead_letter_topic, retry_topics};
use crate::topics;

/// Watches one run.
pub struct Watch {
    pool: PgPool,
    events: Vec<Uuid>,
    bad: u64,
    look: Look,
}

/// What is needed to look into the topics, on whatever thread.
#[derive(Clone)]
struct Look {
    client: ClientConfig,
    run: String,
    /// Where each topic ended before the run: what lies before is not its.
    starts: HashMap<String, HashMap<i32, i64>>,
}

impl Watch {
    /// Makes the business table and notes where the topics end now.
    pub async fn start(servers: &Servers, load: &Load) -> Result<Self, QuickstartError> {
        let failed = || QuickstartError::database("make the table of effects");
        let pool = PgPoolOptions::new().max_connections(2).connect(servers.database_url()).await.map_err(failed())?;
        pool.execute(TABLE).await.map_err(failed())?;
        let look = Look { client: servers.client(), run: load.run.clone(), starts: HashMap::new() };
        let starts = on_thread("say where topics end", look.clone(), |look| look.ends()).await?;
        Ok(Self { pool, events: load.events.clone(), bad: load.bad, look: Look { starts, ..look } })
    }

    /// How many effects there are, whatever their group: for the progress bar.
    pub async fn effects(&self) -> Result<u64, QuickstartError> {
        // The ids of a run ascend, so its effects are a range: quicker than thousands of ids.
        let count = sqlx::query_scalar("SELECT count(*) FROM quickstart_effect WHERE event_id BETWEEN $1 AND $2")
            .bind(self.events.first())
            .bind(self.events.last())
            .fetch_one(&self.pool);
        let count: i64 = count.await.map_err(QuickstartError::database("count effects"))?;
        Ok(count.unsigned_abs())
    }

    /// What is not done yet, in words. Empty when every event is applied in every group, every bad
    /// record is a dead letter, and no group has records before it: a second delivery that is still
    /// to come could still do harm.
    pub async fn missing(&self) -> Result<Vec<String>, QuickstartError> {
        let mut missing = Vec::new();
        for (group, effects) in self.by_group().await? {
            if effects.missing > 0 {
                missing.push(format!("{group}: {} events not applied", effects.missing));
            }
        }
        if missing.is_empty() {
            let bad = self.bad;
            let look = move |look: &Look| look.missing(bad);
            missing = on_thread("show the groups' progress", self.look.clone(), look).await?;
        }
        Ok(missing)
    }

    /// Counts everything that can be counted from outside.
    pub async fn count(&self) -> Result<Figures, QuickstartError> {
        let effects = self.by_group().await?;
        let look = |look: &Look| Ok((look.retried()?, look.dead_letters()?));
        let (retried, dead) = on_thread("show retries and dead letters", self.look.clone(), look).await?;
        let mut dead_lettered = BTreeMap::from([("unparsable".to_owned(), 0), ("null".to_owned(), 0)]);
        let mut undelivered = 0;
        for letters in dead.values() {
            undelivered += self.bad.saturating_sub(letters.len() as u64);
            for reason in letters.values() {
                *dead_lettered.entry(reason.clone()).or_default() += 1;
            }
        }
        Ok(Figures {
            unique: self.events.len() as u64,
            lost: effects.values().map(|effects| effects.missing).sum::<u64>() + undelivered,
            double_effects: effects.values().map(|effects| effects.double).sum(),
            applied: effects.into_iter().map(|(group, effects)| (group.to_owned(), effects.applied)).collect(),
            retried,
            dead_lettered,
            ..Figures::default()
        })
    }

    async fn by_group(&self) -> Result<BTreeMap<&'static str, Effects>, QuickstartError> {
        let mut by_group = BTreeMap::new();
        for group in GROUPS {
            let counted = sqlx::query_as(
                "SELECT count(*), coalesce(sum(times - 1), 0)::bigint
                 FROM (SELECT count(*) AS times FROM quickstart_effect
                       WHERE consumer_group = $1 AND event_id = ANY($2) GROUP BY event_id) AS per_event",
            );
            let counted = counted.bind(group).bind(&self.events).fetch_one(&self.pool).await;
            let (applied, double): (i64, i64) = counted.map_err(QuickstartError::database("count effects"))?;
            let (applied, double) = (applied.unsigned_abs(), double.unsigned_abs());
            let missing = (self.events.len() as u64).saturating_sub(applied);
            by_group.insert(group, Effects { applied, missing, double });
        }
        Ok(by_group)
    }
}

/// A group's effects.
struct Effects {
    /// Events with at least one.
    applied: u64,
    /// Events without.
    missing: u64,
    /// Effects beyond the first.
    double: u64,
}

/// Dead letters by where their record came from: a crash between the acknowledgement and the offset
/// leaves the same one twice.
type DeadLetters = HashMap<(Option<String>, Option<String>), String>;

impl Look {
    fn ends(&self) -> KafkaResult<HashMap<String, HashMap<i32, i64>>> {
        let observer = topics::observer(&self.client, "quickstart")?;
        let topics = GROUPS.iter().flat_map(|group| retry_topics(group).chain([dead_letter_topic(group)]));
        topics.map(|topic| Ok((topic.clone(), topics::ends(&observer, &topic)?))).collect()
    }

    fn missing(&self, bad: u64) -> KafkaResult<Vec<String>> {
        let mut missing = Vec::new();
        for (group, letters) in self.dead_letters()? {
            if (letters.len() as u64) < bad {
                missing.push(format!("{group}: {} of {bad} dead letters", letters.len()));
            }
            let observer = topics::observer(&self.client, group)?;
            for topic in retry_topics(group).chain([TOPIC.to_owned()]) {
                let behind = topics::behind(&observer, &topic)?;
                if behind > 0 {
                    missing.push(format!("{group}: {behind} records of {topic} not settled"));
                }
            }
        }
        Ok(missing)
    }

    /// Records of this run in the retry topics.
    fn retried(&self) -> KafkaResult<u64> {
        let observer = topics::observer(&self.client, "quickstart")?;
        let mut retried = 0;
        for topic in GROUPS.iter().flat_map(|group| retry_topics(group)) {
            topics::read(&observer, &topic, self.start(&topic), |record| {
                retried += u64::from(topics::header(record, RUN_HEADER).as_ref() == Some(&self.run));
            })?;
        }
        Ok(retried)
    }

    /// The dead letters of this run, by group.
    fn dead_letters(&self) -> KafkaResult<BTreeMap<&'static str, DeadLetters>> {
        let observer = topics::observer(&self.client, "quickstart")?;
        let mut by_group = BTreeMap::new();
        for group in GROUPS {
            let topic = dead_letter_topic(group);
            let mut letters = DeadLetters::new();
            topics::read(&observer, &topic, self.start(&topic), |record| {
                if topics::header(record, RUN_HEADER).as_ref() == Some(&self.run) {
                    let header = |name| topics::header(record, name);
                    let origin = (header("idem-origin-partition"), header("idem-origin-offset"));
                    letters.insert(origin, header("idem-reason").unwrap_or_else(|| "no reason".to_owned()));
                }
            })?;
            by_group.insert(group, letters);
        }
        Ok(by_group)
    }

    fn start(&self, topic: &str) -> &HashMap<i32, i64> {
        static NONE: std::sync::LazyLock<HashMap<i32, i64>> = std::sync::LazyLock::new(HashMap::new);
        self.starts.get(topic).unwrap_or(&NONE)
    }
}

/// librdkafka's questions block: they are asked on a thread of their own.
async fn on_thread<T: Send + 'static>(
    what: &str,
    look: Look,
    ask: impl FnOnce(&Look) -> KafkaResult<T> + Send + 'static,
) -> Result<T, QuickstartError> {
    match tokio::task::spawn_blocking(move || ask(&look)).await {
        Ok(answer) => answer.map_err(QuickstartError::kafka(what)),
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}
