//! How much waits in the outbox. Every process asks, as nobody may be there who relays.

use std::time::Duration;

use sqlx::PgConnection;

use crate::health::{Health, Obstacle};
use crate::pg::outbox::{self, Backlog};
use crate::pg::session::{Pools, in_transaction};
use crate::telemetry;

const EVERY: Duration = Duration::from_secs(10);
/// The longest that counting may take.
const BOUND: Duration = Duration::from_secs(5);
/// An event that waits for longer is in the way of readiness.
const TOO_LONG: Duration = Duration::from_secs(300);

/// Counts from time to time, until it is dropped.
pub(crate) async fn keep_watching(pools: Pools, health: Health) {
    loop {
        match in_transaction(&pools, BOUND, |connection| Box::pin(count(connection))).await {
            Ok(backlog) => {
                telemetry::outbox(backlog.pending, backlog.parked, backlog.oldest_seconds);
                tell(&health, backlog);
            }
            Err(error) => tracing::debug!(%error, "can't count what waits in the outbox"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn count(connection: &mut PgConnection) -> Result<Backlog, sqlx::Error> {
    // The index is right, whatever the statistics say of a table that is empty most of the time.
    sqlx::raw_sql("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off").execute(&mut *connection).await?;
    outbox::backlog(connection).await
}

fn tell(health: &Health, backlog: Backlog) {
    if backlog.oldest_seconds <= TOO_LONG.as_secs_f64() {
        health.clear(&Obstacle::Outbox);
        return;
    }
    let reason = format!(
        "the oldest event of the outbox has waited for {:.0} s: is there a relay, the broker, and the event's topic?",
        backlog.oldest_seconds
    );
    if health.set(Obstacle::Outbox, reason.clone()) {
        tracing::warn!("{reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_hears_of_an_event_that_waits_for_too_long() {
        let health = Health::default();
        let waiting = |oldest_seconds| Backlog { pending: 1, parked: 0, oldest_seconds };
        tell(&health, waiting(299.0));
        assert!(health.is_ready());
        tell(&health, waiting(4_711.4));
        assert!(health.reasons()[0].contains("4711 s"), "{:?}", health.reasons());
        tell(&health, Backlog { pending: 0, parked: 9, oldest_seconds: 0.0 });
        assert!(health.is_ready(), "what is parked was told, and waits for somebody");
    }
}
