//! How many money calls somebody has to look at.

use std::time::Duration;

use crate::decide::money::State;
use crate::pg::money::open;
use crate::pg::session::{Pools, on_service};

/// A person decides on them: minutes do not matter.
const EVERY: Duration = Duration::from_secs(60);

/// Counts them from time to time, until it is dropped.
pub(crate) async fn keep_counting(pools: Pools) {
    loop {
        match on_service(&pools, |connection| Box::pin(open::open(connection))).await {
            Ok(calls) => {
                for (label, state) in [("unknown", State::Unknown), ("unrecorded", State::Applied)] {
                    let count = calls.iter().filter(|call| call.state == state).count();
                    metrics::gauge!("idem_money_open", "state" => label).set(count as f64);
                }
            }
            Err(error) => tracing::debug!(%error, "can't count the open money calls"),
        }
        tokio::time::sleep(EVERY).await;
    }
}
