//! A request to stop that anybody can wait for.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Asks for the stop.
#[derive(Debug)]
pub(crate) struct StopHandle(watch::Sender<Option<Instant>>);

/// Hears of it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<Option<Instant>>);

pub(crate) fn channel() -> (StopHandle, Stop) {
    let (sender, receiver) = watch::channel(None);
    (StopHandle(sender), Stop(receiver))
}

impl StopHandle {
    pub(crate) fn stop(&self) {
        self.0.send_replace(Some(Instant::now()));
    }
}

impl Stop {
    pub(crate) fn is_requested(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// When the stop was asked for; now, if it was not.
    pub(crate) fn requested_at(&self) -> Instant {
        self.0.borrow().unwrap_or_else(Instant::now)
    }

    /// Returns when the stop is asked for, or when nobody can ask any more.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
    pub(crate) async fn requested(&self) {
        let _ = self.0.clone().wait_for(Option::is_some).await;
    }

    /// Sleeps. `false`: the stop came first.
    #[must_use]
    pub(crate) async fn sleep(&self, duration: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.requested() => false,
            () = tokio::time::sleep(duration) => true,
        }
    }
}
