//! The relay: sends the rows of the outbox to Kafka, one process at a time.
//!
//! Which rows may be sent is decided in `decide/relay.rs`. Here: who is the one that sends, what it asks the
//! database, and when.
//!
//! Two relays must not send at once, or a late record of the one would come behind a newer one of its key. The one
//! holds an advisory lock on a session of its own, and queues a record only within its lease: for a short time
//! after the session has answered. Its producer gives up what it could not deliver in time. Lease and that time
//! together are `IDEM_RELAY_TIMEOUT`, for which a successor waits before it sends, unless its predecessor has said
//! goodbye.

mod active;
mod session;
mod slots;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::active::Active;
use self::session::{OpenError, Session, listen};
use super::sender::Sender;
use crate::config::Config;
use crate::health::{Health, Obstacle};
use crate::pg::migrate;
use crate::pg::session::Pools;
use crate::pipeline::in_place_backoff;
use crate::run::{RunError, termination};
use crate::stop::{self, Stop};

/// How often whoever waits for its turn asks for the lock.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// For so long somebody may hold the lock who does not say that he relays.
const NOBODY_FOR: Duration = Duration::from_secs(10);
/// So many failures in a row are worth a word to readiness.
const FAILURES: u32 = 3;
/// How long an end waits for acknowledgements.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why the active relay stopped.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("its database session failed: {0}")]
    Database(#[from] sqlx::Error),
    #[error("its producer failed: {0}")]
    Producer(rdkafka::error::KafkaError),
    #[error("it panicked; the panic's own message was printed before")]
    Panicked,
    #[error("{0}")]
    Pooler(String),
}

impl From<OpenError> for Ended {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Pooler(problem) => Self::Pooler(problem),
            OpenError::Database(error) => Self::Database(error),
        }
    }
}

/// Relays until the stop is asked for, whenever nobody else does. What fails is tried again.
///
/// # Errors
/// When its session can't be one of its own: no waiting cures that.
pub(crate) async fn keep(config: Arc<Config>, health: Health, stop: Stop) -> Result<(), RunError> {
    let mut backoff = in_place_backoff();
    let mut failures = 0;
    while !stop.is_requested() {
        let started = Instant::now();
        let turn = AssertUnwindSafe(turn(&config, &health, &stop)).catch_unwind();
        let ended = tokio::select! {
            ended = turn => ended.unwrap_or(Err(Ended::Panicked)),
            // It ends by itself; a server that does not answer is not waited for.
            () = async { stop.requested().await; tokio::time::sleep(FAREWELL * 2).await } => break,
        };
        match ended {
            Ok(()) => break,
            Err(Ended::Pooler(problem)) => return Err(RunError::setup(problem)),
            Err(ended) => {
                tracing::warn!(error = %ended, "the outbox is not relayed by this process; trying again");
                if started.elapsed() > Duration::from_secs(60) {
                    (failures, backoff) = (0, in_place_backoff());
                }
                failures += 1;
                if failures >= FAILURES {
                    health.set(Obstacle::Relay, format!("the relay of the outbox fails again and again: {ended}"));
                }
            }
        }
        if !stop.sleep(backoff.next().unwrap_or(ASK_AGAIN)).await {
            break;
        }
    }
    Ok(())
}

pub(super) async fn alone(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), RunError> {
    // Refused settings show here.
    Sender::new(&config, config.relay_timeout).map_err(RunError::Producer)?;
    let (stopper, stop) = stop::channel();
    let config = Arc::new(config);
    let work = async {
        if config.migrate && !migrated(&config, &stop).await? {
            return Ok(());
        }
        keep(Arc::clone(&config), Health::default(), stop.clone()).await
    };
    tokio::pin!(work);
    tokio::select! {
        ended = &mut work => return ended,
        () = shutdown => stopper.stop(),
        () = termination() => stopper.stop(),
    }
    work.await
}

/// Brings the schema up to date, when the database is there. `false`: asked to stop.
async fn migrated(config: &Config, stop: &Stop) -> Result<bool, RunError> {
    use crate::{decide::sql_error, error::Class};
    let pools = Pools::new(&config.database, &config.client_id, 1, Duration::from_secs(60));
    loop {
        match migrate::migrate(&pools.service).await {
            Ok(()) => return Ok(true),
            Err(error) if sql_error::class(&error) == Class::Infrastructure => {
                tracing::warn!(%error, "the database is not usable; waiting for it");
            }
            Err(error) => return Err(RunError::Database(error)),
        }
        if !stop.sleep(ASK_AGAIN).await {
            return Ok(false);
        }
    }
}

/// From waiting for the lock to losing it; `Ok`: asked to stop.
async fn turn(config: &Arc<Config>, health: &Health, stop: &Stop) -> Result<(), Ended> {
    // Of the time that a successor waits.
    let lease = config.relay_timeout / 5;
    let mut session = Session::open(config, lease).await?;
    let mut nobody_since = None;
    while !session.try_lock().await? {
        health.clear(&Obstacle::Relay);
        if session.is_relayed().await? {
            nobody_since = None;
        } else if nobody_since.get_or_insert_with(Instant::now).elapsed() > NOBODY_FOR {
            nobody_since = None;
            tracing::warn!(
                "a database session holds the lock of the outbox's relay, and none says that it relays: nothing is \
                 published meanwhile; look for it in pg_locks (locktype = 'advisory')"
            );
        }
        if !stop.sleep(ASK_AGAIN.min(config.relay_timeout)).await {
            return Ok(());
        }
    }
    if let Some(wait) = session.take_over().await? {
        tracing::info!(?wait, "the outbox's former relay ended without a goodbye; waiting for what it may still send");
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if !stop.sleep(lease / 2).await {
                return Ok(());
            }
            session.confirm().await?;
        }
    }
    let sender = Sender::new(config, config.relay_timeout - lease).map_err(Ended::Producer)?;
    session.announce().await?;
    health.clear(&Obstacle::Relay);
    let woken = Arc::new(Notify::new());
    // Ends with this.
    let mut listener = JoinSet::new();
    listener.spawn(listen(Arc::clone(config), Arc::clone(&woken)));
    let mut active = Active::new(session, sender);
    tracing::info!("relaying the outbox");
    metrics::counter!("idem_outbox_published_total").increment(0);
    let mut ended = active.run(&woken, stop).await;
    let can_speak = match &ended {
        Err(Ended::Database(_)) => {
            // What is not on its way never will be; what was acknowledged can still be deleted.
            active.sender.purge_queued();
            active.session.reopen(config).await.is_ok()
        }
        _ => true,
    };
    let farewell = if can_speak { active.farewell().await } else { Ok(()) };
    let Active { sender, session, .. } = active;
    sender.purge();
    // Its drop waits for librdkafka, and nobody is to wait for that.
    std::thread::spawn(move || drop(sender));
    if ended.is_ok() {
        ended = farewell;
    }
    if ended.is_ok() {
        session.close().await;
    }
    ended
}
