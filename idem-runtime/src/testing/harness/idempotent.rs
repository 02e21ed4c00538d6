//! Whether an event that is delivered again has the effect that it has once.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use sqlx::PgConnection;

use super::database::refused;
use super::handler::{Delivered, Driven, End, HandlerTest};
use crate::probe::CrashPoint;
use crate::testing::TestingError;

/// What [`HandlerTest::idempotence`] found. As text: for a person to read.
#[derive(Debug, Clone)]
pub struct Idempotence {
    handler: String,
    scenarios: Vec<String>,
    findings: Vec<String>,
}

impl Idempotence {
    /// Whether the event had the same effect in all scenarios, as far as the test looks at it.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.findings.is_empty()
    }

    /// What was tried, besides delivering the event once.
    #[must_use]
    pub fn scenarios(&self) -> &[String] {
        &self.scenarios
    }
}

impl fmt::Display for Idempotence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.holds() {
            return write!(f, "{} is idempotent: {}", self.handler, self.scenarios.join("; "));
        }
        write!(f, "{} is not idempotent, or not shown to be", self.handler)?;
        self.findings.iter().try_for_each(|finding| write!(f, "\n\n  {finding}"))?;
        write!(
            f,
            "\n\nAn effect happens once if it is written through the handler's own `tx`, or is a call through a \
             `MoneyClient`. Look for another connection, another HTTP client, or a value that differs from attempt to \
             attempt."
        )
    }
}

/// What an event leaves behind.
#[derive(PartialEq)]
struct Effect<T> {
    seen: T,
    /// The bodies that the provider charged for.
    charges: Vec<Vec<u8>>,
}

impl HandlerTest<'_> {
    /// Panics unless an event has the same effect however often it is delivered: once, twice, and again
    /// after a crash at every [`CrashPoint`] that its handling comes to.
    ///
    /// `effects` reads what the handler is to do once: rows that it writes, a balance that it changes. It
    /// is asked on a database that is put back to its present state for each scenario, and so is the
    /// provider, whose charges are compared as well; nothing else is looked at. What differs by nature, such
    /// as a time, is not to be read. Sessions that are open on the database are ended.
    ///
    /// # Panics
    /// When the event has another effect the second time; when it does not end as done, or changes nothing
    /// that `effects` reads; when a crash point is not reached again; when the harness fails. The message
    /// names the crash point.
    pub async fn assert_idempotent<E, T, F>(&self, event: &E, effects: F)
    where
        E: Serialize + ?Sized,
        T: PartialEq + fmt::Debug,
        F: AsyncFn(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        match self.idempotence(event, effects).await {
            Ok(found) => assert!(found.holds(), "{found}"),
            Err(error) => panic!("{} could not be tested: {error}", self.name),
        }
    }

    /// What [`assert_idempotent`](Self::assert_idempotent) finds, without a panic.
    ///
    /// # Errors
    /// Those of [`deliver`](Self::deliver), and of `effects`.
    pub async fn idempotence<E, T, F>(&self, event: &E, effects: F) -> Result<Idempotence, TestingError>
    where
        E: Serialize + ?Sized,
        T: PartialEq + fmt::Debug,
        F: AsyncFn(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let mut found = Idempotence { handler: self.name.clone(), scenarios: Vec::new(), findings: Vec::new() };
        // Its tables are part of what is put back.
        drop(self.process().await?);
        let start = (self.bench.database.save().await?, self.bench.provider.save());
        let before = self.effect(&effects).await?;

        let world = self.world(None);
        let Driven::To(Delivered { end, .. }) = self.drive(&world, self.hand(event)?).await? else {
            unreachable!("nowhere to die")
        };
        if end != End::Done {
            let end = end.told();
            found.findings.push(format!("delivered once, the event {end}: there is no effect to compare"));
            return Ok(found);
        }
        let once = self.effect(&effects).await?;
        if once.seen == before.seen {
            let seen = format!("delivered once, the event changed nothing that the test looks at: {:?}", once.seen);
            found.findings.push(seen);
            return Ok(found);
        }
        for crash in std::iter::once(None).chain(crashes(&world.seen().points).map(Some)) {
            let scenario = told(crash);
            self.bench.database.restore(&start.0).await?;
            self.bench.provider.restore(&start.1);
            let world = self.world(crash);
            let hand = self.hand(event)?;
            // After a crash, what the process had in its hand; else the same record, as after a rebalance.
            let again = match (self.drive(&world, hand.clone()).await?, crash) {
                (Driven::Died(hand), _) => hand,
                (Driven::To(_), None) => hand,
                (Driven::To(_), Some(_)) => {
                    let text = "this point was not reached again, so nothing is shown: the handler takes another way \
                                each time";
                    found.findings.push(format!("{scenario}:\n      {text}"));
                    continue;
                }
            };
            let Driven::To(Delivered { end, .. }) = self.drive(&self.world(None), again).await? else {
                unreachable!("nowhere to die")
            };
            let effect = self.effect(&effects).await?;
            if effect != once || !matches!(end, End::Done | End::Duplicate) {
                found.findings.push(format!("{scenario}:{}", difference(&effect, &once, &end)));
            }
            found.scenarios.push(scenario);
        }
        Ok(found)
    }

    async fn effect<T, F>(&self, effects: &F) -> Result<Effect<T>, TestingError>
    where
        F: AsyncFn(&mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let mut connection = self.bench.connect().await?;
        let seen = effects(&mut connection).await.map_err(refused("read the effects"))?;
        let charges = self.bench.provider.charges().into_iter().map(|charge| charge.body).collect();
        Ok(Effect { seen, charges })
    }
}

impl End {
    fn told(&self) -> String {
        match self {
            Self::Done => "was done".to_owned(),
            Self::Duplicate => "was taken for one that was done before".to_owned(),
            Self::Skipped => "was skipped".to_owned(),
            Self::DeadLetter { reason, error } => format!("became a dead letter ({reason}: {error})"),
        }
    }
}

/// Each point, as often as it was reached.
fn crashes(points: &[CrashPoint]) -> impl Iterator<Item = (CrashPoint, usize)> + use<> {
    let mut times: BTreeMap<CrashPoint, usize> = BTreeMap::new();
    points.iter().for_each(|point| *times.entry(*point).or_default() += 1);
    times.into_iter().flat_map(|(point, times)| (1..=times).map(move |time| (point, time)))
}

fn told(crash: Option<(CrashPoint, usize)>) -> String {
    let Some((point, time)) = crash else { return "delivered twice".to_owned() };
    let place = match point {
        CrashPoint::BeforeHandler => "before the handler",
        CrashPoint::AfterMoneyCall => "after the money call",
        CrashPoint::AfterSettling => "after its answer was recorded, before the commit",
        CrashPoint::BeforeCommit => "before the commit",
        CrashPoint::AfterCommit => "after the commit",
    };
    let which = if time == 1 { String::new() } else { format!(", time {time}") };
    format!("crashed {place} (CrashPoint::{point:?}{which}), then delivered again")
}

fn difference<T: PartialEq + fmt::Debug>(effect: &Effect<T>, once: &Effect<T>, end: &End) -> String {
    let mut text = String::new();
    if effect.seen != once.seen {
        text += &format!("\n      effects:    {:?}\n      instead of: {:?}", effect.seen, once.seen);
    }
    if effect.charges != once.charges {
        let (charges, once) = (effect.charges.len(), once.charges.len());
        text += &if charges == once {
            "\n      charges:    for other bodies".to_owned()
        } else {
            format!("\n      charges:    {charges} instead of {once}")
        };
    }
    if !matches!(end, End::Done | End::Duplicate) {
        text += &format!("\n      the event {}", end.told());
    }
    text
}
