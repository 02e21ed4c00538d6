//! A request to stop that anybody can wait for.

use std::time::Duration;

use tokio::sync::watch;

/// Asks for the stop.
#[derive(Debug)]
pub(crate) struct StopHandle(watch::Sender<bool>);

/// Hears of it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

pub(crate) fn channel() -> (StopHandle, Stop) {
    let (sender, receiver) = watch::channel(false);
    (StopHandle(sender), Stop(receiver))
}

impl StopHandle {
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    pub(crate) fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the stop is asked for, or when nobody can ask any more.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
    pub(crate) async fn requested(&self) {
        let _ = self.0.clone().wait_for(|stop| *stop).await;
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
