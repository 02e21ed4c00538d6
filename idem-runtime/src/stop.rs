//! A request to stop that anybody can wait for.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Asks for the stop.
#[derive(Debug)]
pub(crate) struct StopHandle(watch::Sender<Option<Asked>>);

/// Hears of it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<Option<Asked>>);

#[derive(Debug, Clone, Copy)]
struct Asked {
    at: Instant,
    /// Until then something may be begun that others would have to do again.
    time_until: Instant,
}

pub(crate) fn channel() -> (StopHandle, Stop) {
    let (sender, receiver) = watch::channel(None);
    (StopHandle(sender), Stop(receiver))
}

impl StopHandle {
    pub(crate) fn stop(&self) {
        self.stop_after(Duration::ZERO);
    }

    /// The same, and leaves so much time for what others would have to do again.
    pub(crate) fn stop_after(&self, closing: Duration) {
        let at = Instant::now();
        self.0.send_replace(Some(Asked { at, time_until: at + closing }));
    }
}

impl Stop {
    pub(crate) fn is_requested(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// When the stop was asked for; now, if it was not.
    pub(crate) fn requested_at(&self) -> Instant {
        self.0.borrow().map_or_else(Instant::now, |asked| asked.at)
    }

    /// Whether a stop was asked for, and something may still be begun that others would have to do again.
    pub(crate) fn leaves_time(&self) -> bool {
        self.0.borrow().is_some_and(|asked| Instant::now() < asked.time_until)
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
