//! How many money calls somebody has to look at.

use std::time::Duration;

use crate::clock;
use crate::decide::money::{IN_FLIGHT, State};
use crate::pg::money::open::{self, Listed};
use crate::pg::session::{Pools, on_service};

/// A person decides on them: minutes do not matter.
const EVERY: Duration = Duration::from_secs(60);

/// Counts them from time to time, until it is dropped.
pub(crate) async fn keep_counting(pools: Pools) {
    metrics::counter!("idem_money_calls_total", "outcome" => "applied").increment(0);
    loop {
        match on_service(&pools, |connection| Box::pin(open::open(connection))).await {
            Ok(calls) => {
                let now = clock::unix_millis();
                for (label, state) in [("unknown", State::Unknown), ("unrecorded", State::Applied)] {
                    let in_flight = |call: &&Listed| {
                        let age = now.saturating_sub(u64::try_from(call.attempted_millis).unwrap_or(0));
                        call.state == State::Unknown && Duration::from_millis(age) < IN_FLIGHT
                    };
                    let count = calls.iter().filter(|call| call.state == state && !in_flight(call)).count();
                    metrics::gauge!("idem_money_open", "state" => label).set(count as f64);
                }
            }
            Err(error) => tracing::debug!(%error, "can't count the open money calls"),
        }
        tokio::time::sleep(EVERY).await;
    }
}
