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

mod session;
mod slots;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::Instrument;

use self::session::{Session, listen};
use self::slots::Slots;
use super::sender::{SendError, Sender, With};
use crate::config::Config;
use crate::decide::relay::{Limits, Queue};
use crate::kafka::refusal::told;
use crate::pg::migrate;
use crate::pg::outbox::Row;
use crate::pg::session::Pools;
use crate::pipeline::in_place_backoff;
use crate::run::{RunError, termination};
use crate::stop::{self, Stop};
use crate::telemetry::{self, spans};

/// What is in memory at once.
const LIMITS: Limits = Limits { rows: 8_192, bytes: 32 * 1024 * 1024, rows_of_a_line: 64 };
/// Rows that are looked at, at first and at most: a long line of one key may stand before the others.
const DEPTH: usize = LIMITS.rows;
const DEEPEST: usize = 64 * DEPTH;
/// While something was published lately, it looks by itself, so that no publisher has to wake it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const AWAKE_FOR: Duration = Duration::from_millis(250);
/// Asleep it looks all the same, less and less often: a wake-up may have been missed.
const SLOWEST: Duration = Duration::from_secs(1);
/// Publishers wake it for so long after it fell asleep, if it does not ask again: none is left to be woken in vain.
const WAKE_SECONDS: u32 = 30;
/// How often what waits is counted.
const COUNT_EVERY: Duration = Duration::from_secs(5);
const WARN_EVERY: Duration = Duration::from_secs(10);
/// How long an end waits for acknowledgements.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why the active relay stopped.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("its database session failed: {0}")]
    Database(#[from] sqlx::Error),
    #[error("its producer failed: {0}")]
    Producer(rdkafka::error::KafkaError),
}

/// Relays until the stop is asked for, whenever nobody else does.
pub(crate) async fn keep(config: Arc<Config>, stop: Stop) {
    let mut backoff = in_place_backoff();
    while !stop.is_requested() {
        let started = Instant::now();
        let ended = tokio::select! {
            ended = turn(&config, &stop) => ended,
            // It ends by itself; a server that does not answer is not waited for.
            () = async { stop.requested().await; tokio::time::sleep(FAREWELL * 2).await } => return,
        };
        let Err(ended) = ended else { return };
        tracing::warn!(error = %ended, "the outbox is not relayed by this process; trying again");
        if started.elapsed() > Duration::from_secs(60) {
            backoff = in_place_backoff();
        }
        if !stop.sleep(backoff.next().unwrap_or(SLOWEST)).await {
            return;
        }
    }
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
        keep(Arc::clone(&config), stop.clone()).await;
        Ok(())
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
        if !stop.sleep(SLOWEST).await {
            return Ok(false);
        }
    }
}

/// From waiting for the lock to losing it; `Ok`: asked to stop.
async fn turn(config: &Arc<Config>, stop: &Stop) -> Result<(), Ended> {
    // Of the time that a successor waits.
    let lease = config.relay_timeout / 5;
    let mut session = Session::open(config, lease).await?;
    while !session.try_lock().await? {
        if !stop.sleep(SLOWEST.min(config.relay_timeout)).await {
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
    let woken = Arc::new(Notify::new());
    // Ends with this.
    let mut listener = JoinSet::new();
    listener.spawn(listen(Arc::clone(config), Arc::clone(&woken)));
    let mut relay = Relay {
        session,
        sender,
        queue: Queue::new(LIMITS),
        rows: HashMap::new(),
        under_way: FuturesUnordered::new(),
        in_flight: 0,
        acknowledged: Vec::new(),
        depth: DEPTH,
        found_at: Instant::now(),
        asleep: None,
        counted: None,
        warned: None,
        slots: Slots::default(),
    };
    tracing::info!("relaying the outbox");
    metrics::counter!("idem_outbox_published_total").increment(0);
    let ended = relay.run(&woken, stop).await;
    // From now on another process says.
    telemetry::outbox(0, 0, 0.0);
    let ended = match ended {
        Ok(()) => relay.farewell().await,
        Err(ended) => Err(ended),
    };
    let Relay { sender, session, .. } = relay;
    sender.purge();
    // Its drop waits for librdkafka, and nobody is to wait for that.
    std::thread::spawn(move || drop(sender));
    if ended.is_ok() {
        session.close().await;
    }
    ended
}

/// What comes back.
enum Event {
    Sent(i64, With, Result<(), SendError>),
    /// After a pause a row is sent again.
    Again(i64, With),
}

struct Relay {
    session: Session,
    sender: Sender,
    queue: Queue,
    /// What the queue holds, with how often it was not acknowledged.
    rows: HashMap<i64, (Row, u32)>,
    under_way: FuturesUnordered<BoxFuture<'static, Event>>,
    /// How many of these wait for an acknowledgement.
    in_flight: usize,
    acknowledged: Vec<i64>,
    depth: usize,
    /// When there was last something new.
    found_at: Instant,
    /// Since when publishers are to wake it.
    asleep: Option<Instant>,
    counted: Option<(Instant, Duration)>,
    /// When it last said that something can't be sent: an outage concerns thousands.
    warned: Option<Instant>,
    slots: Slots,
}

impl Relay {
    async fn run(&mut self, woken: &Notify, stop: &Stop) -> Result<(), Ended> {
        let mut look_at = Instant::now();
        loop {
            self.forget_acknowledged().await?;
            if Instant::now() >= look_at {
                let more = self.look().await?;
                look_at = Instant::now() + if more { Duration::ZERO } else { self.pause().await? };
                self.count().await?;
                self.slots.give_back(&mut self.session).await?;
            }
            // While there is no room, only acknowledgements and the lease matter.
            let look = if self.queue.has_room() { look_at } else { Instant::now() + self.session.lease() / 2 };
            tokio::select! {
                biased;
                () = stop.requested() => return Ok(()),
                Some(event) = self.under_way.next() => {
                    self.on(event).await?;
                    // Those that came together are deleted together.
                    while let Some(Some(event)) = self.under_way.next().now_or_never() {
                        self.on(event).await?;
                    }
                }
                () = woken.notified() => look_at = Instant::now(),
                () = tokio::time::sleep_until(look.into()) => if !self.queue.has_room() {
                    self.session.confirm().await?;
                },
            }
        }
    }

    /// Takes what is visible and may be taken. `true`: there may be more.
    async fn look(&mut self) -> Result<bool, Ended> {
        if !self.queue.has_room() {
            return Ok(false);
        }
        let seen = self.session.seen(self.depth).await?;
        let all = seen.len() < self.depth;
        self.slots.saw(&seen);
        let plan = self.queue.plan(&seen, all);
        if !plan.aside.is_empty() {
            self.session.set_aside(&plan.aside).await?;
        }
        let mut taken = self.session.read(&plan.take).await?;
        taken.sort_unstable_by_key(|taken| taken.seq);
        for taken in taken {
            self.rows.insert(taken.seq, (taken.row, 0));
        }
        for seq in plan.take.iter().filter(|seq| !self.rows.contains_key(*seq)) {
            // Somebody deleted it.
            self.queue.done(*seq);
        }
        self.start().await?;
        self.depth = if plan.look_deeper { (self.depth * 2).min(DEEPEST) } else { DEPTH };
        if !plan.take.is_empty() || !plan.aside.is_empty() {
            self.found_at = Instant::now();
            if self.asleep.take().is_some() {
                self.session.wanted_awake(0).await?;
            }
        }
        Ok(!all && (!plan.take.is_empty() || (plan.look_deeper && seen.len() < DEEPEST)))
    }

    /// How long until it looks again. Falls asleep when nothing was found for a while, and looks once more then:
    /// somebody may have looked at it before, and committed since.
    async fn pause(&mut self) -> Result<Duration, Ended> {
        let idle = self.found_at.elapsed();
        if idle < AWAKE_FOR {
            return Ok(LOOK_AGAIN);
        }
        let asleep = self.asleep.map(|since| since.elapsed());
        let is_old = asleep.is_none_or(|asleep| asleep > Duration::from_secs(u64::from(WAKE_SECONDS) / 2));
        if is_old {
            self.asleep = Some(Instant::now());
            self.session.wanted_awake(WAKE_SECONDS).await?;
            return Ok(Duration::ZERO);
        }
        Ok(idle.clamp(LOOK_AGAIN, SLOWEST.min(self.session.lease() / 2)))
    }

    /// Sends what is first in its line.
    async fn start(&mut self) -> Result<(), Ended> {
        while let Some(seq) = self.queue.start() {
            self.send(seq, With::Others).await?;
        }
        Ok(())
    }

    async fn send(&mut self, seq: i64, with: With) -> Result<(), Ended> {
        self.session.within_lease().await?;
        let Some((row, _)) = self.rows.get(&seq) else { return Ok(()) };
        self.in_flight += 1;
        match self.sender.send(row, with) {
            Ok(sent) => {
                let sent = sent.map(move |sent| Event::Sent(seq, with, sent)).instrument(spans::send(row));
                self.under_way.push(sent.boxed());
            }
            Err(error) => self.under_way.push(std::future::ready(Event::Sent(seq, with, Err(error))).boxed()),
        }
        Ok(())
    }

    async fn on(&mut self, event: Event) -> Result<(), Ended> {
        self.in_flight -= usize::from(matches!(event, Event::Sent(..)));
        match event {
            Event::Sent(seq, _, Ok(())) => {
                self.rows.remove(&seq);
                self.queue.done(seq);
                self.acknowledged.push(seq);
                self.start().await?;
            }
            Event::Sent(seq, With::Others, Err(SendError::Refused(_))) => self.send(seq, With::Nobody).await?,
            Event::Sent(seq, With::Nobody, Err(SendError::Refused(code))) => {
                self.park(seq, &format!("{code:?}")).await?
            }
            Event::Sent(seq, with, Err(SendError::NotNow(error))) => {
                let Some((row, failures)) = self.rows.get_mut(&seq) else { return Ok(()) };
                *failures += 1;
                let pause = Duration::from_millis(100 << (*failures).min(6));
                if self.warned.is_none_or(|warned| warned.elapsed() > WARN_EVERY) {
                    self.warned = Some(Instant::now());
                    let error = told(&error);
                    tracing::warn!(topic = &*row.topic, error, "events of the outbox can't be sent now; trying again");
                }
                self.under_way.push(tokio::time::sleep(pause).map(move |()| Event::Again(seq, with)).boxed());
            }
            Event::Sent(_, _, Err(SendError::Fatal(error))) => return Err(Ended::Producer(error)),
            Event::Again(seq, with) => self.send(seq, with).await?,
        }
        Ok(())
    }

    async fn park(&mut self, seq: i64, reason: &str) -> Result<(), Ended> {
        let Some((row, _)) = self.rows.remove(&seq) else { return Ok(()) };
        tracing::error!(
            event_id = %row.event_id, topic = &*row.topic, reason, seq,
            "an event can't be published and was parked with all later ones of its key: see `idem outbox list`"
        );
        self.session.park(seq, reason).await?;
        for seq in self.queue.parked(seq) {
            self.rows.remove(&seq);
        }
        Ok(())
    }

    async fn forget_acknowledged(&mut self) -> Result<(), Ended> {
        if self.acknowledged.is_empty() {
            return Ok(());
        }
        let acknowledged = std::mem::take(&mut self.acknowledged);
        metrics::counter!("idem_outbox_published_total").increment(acknowledged.len() as u64);
        Ok(self.session.delete(&acknowledged).await?)
    }

    /// Counts what waits, but not for more than a twentieth of the time.
    async fn count(&mut self) -> Result<(), Ended> {
        if self.counted.is_some_and(|(at, took)| at.elapsed() < COUNT_EVERY.max(took * 20)) {
            return Ok(());
        }
        let start = Instant::now();
        let backlog = self.session.backlog().await?;
        telemetry::outbox(backlog.pending, backlog.parked, backlog.oldest_seconds);
        self.counted = Some((Instant::now(), start.elapsed()));
        Ok(())
    }

    /// Ends. What is on its way is waited for; if all of it comes back, the successor need not wait.
    async fn farewell(&mut self) -> Result<(), Ended> {
        let last = async {
            while self.in_flight > 0 {
                let Some(event) = self.under_way.next().await else { break };
                if let Event::Sent(seq, _, sent) = event {
                    self.in_flight -= 1;
                    self.acknowledged.extend(sent.is_ok().then_some(seq));
                }
            }
        };
        let all_came = tokio::time::timeout(FAREWELL, last).await.is_ok();
        self.forget_acknowledged().await?;
        if all_came {
            self.session.say_goodbye().await?;
        }
        Ok(())
    }
}
