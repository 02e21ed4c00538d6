//! Where the testing kit looks in: points at which a process may die, how events ended, and a clock that
//! runs ahead. Without the feature `testing` all of it is empty.

/// A moment at which a process may die.
///
/// ```no_run
/// # #[cfg(feature = "testing")]
/// # mod example {
/// use idem_runtime::testing::{CrashPoint, Harness, TestingError};
///
/// async fn example(bench: &Harness, event: &serde_json::Value) -> Result<(), TestingError> {
///     bench.handler("on_order_confirmed").crash(CrashPoint::AfterCommit, event).await?;
///     Ok(())
/// }
/// # }
/// ```
#[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "nobody dies on purpose"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CrashPoint {
    /// The event's id is in the dedup table, uncommitted; its handler has not begun.
    BeforeHandler,
    /// The provider has answered a money call, and nobody has taken note of the answer.
    AfterMoneyCall,
    /// The handler has returned `Ok`, and the answers to its money calls are recorded beside the event's
    /// transaction, as they are when a commit is late; nothing of the transaction is committed.
    AfterSettling,
    /// The handler has returned `Ok`; nothing is committed.
    BeforeCommit,
    /// Everything is committed; Kafka has not been told.
    AfterCommit,
}

/// How an attempt ended that is repeated in place.
pub(crate) const WAITS: &str = "waits";

/// A process may die here.
#[inline]
pub(crate) async fn at(point: CrashPoint) {
    #[cfg(feature = "testing")]
    world::at(point).await;
    #[cfg(not(feature = "testing"))]
    let _ = point;
}

/// Whether the process dies when it comes to this point next.
#[cfg(feature = "testing")]
pub(crate) use world::dies_at;

/// An attempt at an event ended so.
#[inline]
pub(crate) fn settled(outcome: &'static str) {
    #[cfg(feature = "testing")]
    world::settled(outcome);
    #[cfg(not(feature = "testing"))]
    let _ = outcome;
}

/// How far the clock is ahead of the system's, milliseconds.
#[inline]
pub(crate) fn ahead_millis() -> u64 {
    #[cfg(feature = "testing")]
    return world::ahead_millis();
    #[cfg(not(feature = "testing"))]
    0
}

/// What runs in a task of its own is looked at like the task that starts it.
#[inline]
pub(crate) fn inherit<F: Future<Output = ()> + Send + 'static>(task: F) -> impl Future<Output = ()> + Send + 'static {
    #[cfg(feature = "testing")]
    return world::inherit(task);
    #[cfg(not(feature = "testing"))]
    task
}

/// The same for what nobody waits for: it ends with the process, when that dies.
#[inline]
pub(crate) fn mortal<F: Future<Output = ()> + Send + 'static>(task: F) -> impl Future<Output = ()> + Send + 'static {
    #[cfg(feature = "testing")]
    return world::mortal(task);
    #[cfg(not(feature = "testing"))]
    task
}

#[cfg(feature = "testing")]
pub(crate) use world::World;

#[cfg(feature = "testing")]
mod world {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use tokio::sync::{Notify, watch};

    use super::CrashPoint;

    tokio::task_local! {
        static WORLD: Arc<World>;
    }

    /// What the processes see and do that a test delivers an event to.
    #[derive(Default)]
    pub(crate) struct World {
        ahead_millis: AtomicU64,
        /// Where one dies, and the how manieth time it comes there, from 1.
        crash: Option<(CrashPoint, usize)>,
        seen: Mutex<Seen>,
        changed: Notify,
        dead: watch::Sender<bool>,
    }

    #[derive(Default, Clone)]
    pub(crate) struct Seen {
        /// The points that they came to, in order.
        pub points: Vec<CrashPoint>,
        /// How attempts ended.
        pub outcomes: Vec<&'static str>,
        /// It stands still at its point: whoever made it lets it die.
        pub dies: bool,
    }

    impl World {
        pub(crate) fn new(ahead_millis: u64, crash: Option<(CrashPoint, usize)>) -> Arc<Self> {
            Arc::new(Self { ahead_millis: ahead_millis.into(), crash, ..Self::default() })
        }

        /// Lets time pass at once.
        pub(crate) fn pass_to(&self, ahead_millis: u64) {
            self.ahead_millis.fetch_max(ahead_millis, Ordering::Relaxed);
        }

        pub(crate) fn ahead_millis(&self) -> u64 {
            self.ahead_millis.load(Ordering::Relaxed)
        }

        /// Runs what starts tasks of this process.
        pub(crate) fn enter<T>(self: &Arc<Self>, start: impl FnOnce() -> T) -> T {
            WORLD.sync_scope(Arc::clone(self), start)
        }

        pub(crate) fn seen(&self) -> Seen {
            self.lock().clone()
        }

        /// Returns when there is more to see, or was since the last time.
        pub(crate) async fn changed(&self) {
            self.changed.notified().await;
        }

        fn lock(&self) -> MutexGuard<'_, Seen> {
            self.seen.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    pub(super) async fn at(point: CrashPoint) {
        let Ok(world) = WORLD.try_with(Arc::clone) else { return };
        let dies = {
            let mut seen = world.lock();
            seen.points.push(point);
            let times = seen.points.iter().filter(|reached| **reached == point).count();
            seen.dies |= world.crash == Some((point, times));
            seen.dies
        };
        world.changed.notify_one();
        if dies {
            world.dead.send_replace(true);
            std::future::pending::<()>().await;
        }
    }

    pub(crate) fn dies_at(point: CrashPoint) -> bool {
        WORLD
            .try_with(|world| {
                let times = world.lock().points.iter().filter(|reached| **reached == point).count();
                world.crash == Some((point, times + 1))
            })
            .unwrap_or_default()
    }

    pub(super) fn settled(outcome: &'static str) {
        let _ = WORLD.try_with(|world| {
            world.lock().outcomes.push(outcome);
            world.changed.notify_one();
        });
    }

    pub(super) fn ahead_millis() -> u64 {
        WORLD.try_with(|world| world.ahead_millis()).unwrap_or_default()
    }

    pub(super) fn inherit<F: Future<Output = ()> + Send + 'static>(
        task: F,
    ) -> impl Future<Output = ()> + Send + 'static {
        let world = WORLD.try_with(Arc::clone).ok();
        async move {
            match world {
                Some(world) => WORLD.scope(world, task).await,
                None => task.await,
            }
        }
    }

    pub(super) fn mortal<F: Future<Output = ()> + Send + 'static>(
        task: F,
    ) -> impl Future<Output = ()> + Send + 'static {
        let dead = WORLD.try_with(|world| world.dead.subscribe()).ok();
        let task = inherit(task);
        async move {
            match dead {
                Some(mut dead) => tokio::select! {
                    biased;
                    _ = dead.wait_for(|dead| *dead) => {}
                    () = task => {}
                },
                None => task.await,
            }
        }
    }
}
