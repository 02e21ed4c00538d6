//! The relay that is active: looks, sends, and deletes what was acknowledged.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rdkafka::error::KafkaError;
use rdkafka::producer::future_producer::Delivery;
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::Notify;
use tracing::Instrument;
use uuid::Uuid;

use super::session::Session;
use super::slots::Slots;
use super::{Ended, FAREWELL};
use crate::decide::relay::{Limits, Plan, Queue};
use crate::kafka::refusal::told;
use crate::outbox::sender::{SendError, Sender, With};
use crate::pg::outbox::Row;
use crate::stop::Stop;
use crate::telemetry::spans;

/// What is in memory at once.
const LIMITS: Limits = Limits { rows: 8_192, bytes: 32 * 1024 * 1024, rows_of_a_line: 64, failing_of_a_topic: 16 };
/// Rows that are looked at.
const DEPTH: usize = LIMITS.rows;
/// While something was published lately, it looks by itself, so that no publisher has to wake it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// A look that found little may have stepped over much: the next one waits so many times as long as it took, or if it
/// found nothing.
const LOOK_LESS: u32 = 2;
const LOOK_MUCH_LESS: u32 = 10;
/// It falls asleep late: each time is an update of a row that everybody who publishes reads.
const AWAKE_FOR: Duration = Duration::from_secs(5);
/// Until then it looks less and less often: after this part of the time in which nothing was found.
const LESS_OFTEN: u32 = 40;
/// Asleep it looks all the same: a wake-up may have been missed.
const SLOWEST: Duration = Duration::from_secs(1);
/// Publishers wake it for so long after it fell asleep, if it does not ask again: none is left to be woken in vain.
const WAKE_SECONDS: u32 = 30;
const WARN_EVERY: Duration = Duration::from_secs(10);
/// Topics that have rested are tried, at most so many in one look.
const TRIALS: usize = 16;

/// What comes back.
enum Event {
    Sent(i64, With, Result<Delivery, SendError>),
    /// After a pause a row is sent again.
    Again(i64, With),
}

pub(super) struct Active {
    pub(super) session: Session,
    pub(super) sender: Sender,
    queue: Queue,
    /// What the queue holds, with how often it was not acknowledged.
    rows: HashMap<i64, (Row, u32)>,
    under_way: FuturesUnordered<BoxFuture<'static, Event>>,
    /// How many of these wait for an acknowledgement.
    in_flight: usize,
    acknowledged: Vec<(i64, Uuid)>,
    /// There was more than the last look has shown.
    there_is_more: bool,
    /// When a look may step over long lines again.
    step_over_at: Instant,
    started: Instant,
    /// When there was last something new.
    found_at: Instant,
    /// Since when publishers are to wake it.
    asleep: Option<Instant>,
    /// When it last said that something can't be sent: an outage concerns thousands.
    warned: Option<Instant>,
    slots: Slots,
}

impl Active {
    pub(super) fn new(session: Session, sender: Sender) -> Self {
        let now = Instant::now();
        Self {
            session,
            sender,
            queue: Queue::new(LIMITS),
            rows: HashMap::new(),
            under_way: FuturesUnordered::new(),
            in_flight: 0,
            acknowledged: Vec::new(),
            there_is_more: false,
            step_over_at: now,
            started: now,
            found_at: now,
            asleep: None,
            warned: None,
            slots: Slots::default(),
        }
    }

    /// Relays until the stop is asked for.
    pub(super) async fn run(&mut self, woken: &Notify, stop: &Stop) -> Result<(), Ended> {
        let mut look_at = Instant::now();
        loop {
            self.forget_acknowledged().await?;
            if self.queue.has_room() && Instant::now() >= look_at {
                let pause = self.look().await?;
                look_at = Instant::now() + pause;
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

    /// Takes what is visible and may be taken, and says when to look again.
    async fn look(&mut self) -> Result<Duration, Ended> {
        let start = Instant::now();
        let steps_over = self.there_is_more && start >= self.step_over_at;
        let seen = self.session.seen(DEPTH, &self.queue.passed_over(steps_over)).await?;
        self.slots.saw(&seen);
        let plan = self.queue.plan(&seen);
        let mut found = plan.take.len() + plan.aside.len();
        self.carry_out(plan).await?;
        for _ in 0..TRIALS {
            let Some((topic, most)) = self.queue.to_be_tried(self.now()) else { break };
            let seen = self.session.seen_of(&topic, most).await?;
            self.slots.saw(&seen);
            let plan = self.queue.plan(&seen);
            found += plan.take.len() + plan.aside.len();
            self.carry_out(plan).await?;
            self.queue.tried(&topic, seen.len(), self.now());
        }
        if found > 0 {
            self.found_at = Instant::now();
            if self.asleep.take().is_some() {
                self.session.wanted_awake(0).await?;
            }
        }
        let took = start.elapsed();
        if steps_over {
            self.step_over_at = Instant::now() + took * LOOK_MUCH_LESS;
        }
        let is_much = self.queue.is_much(found);
        self.there_is_more = !is_much && seen.len() == DEPTH;
        if is_much {
            return Ok(Duration::ZERO);
        }
        let pause = if self.there_is_more { LOOK_AGAIN } else { self.pause().await? };
        let less = if found == 0 { LOOK_MUCH_LESS } else { LOOK_LESS };
        Ok(if pause.is_zero() { pause } else { pause.max(took * less) })
    }

    /// Reads what was taken, and sends what is first in its line.
    async fn carry_out(&mut self, plan: Plan) -> Result<(), Ended> {
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
            self.queue.gone(*seq);
        }
        self.start().await
    }

    /// How long until it looks again. Falls asleep when nothing was found for a while, and looks once more then:
    /// somebody may have looked at it before, and committed since.
    async fn pause(&mut self) -> Result<Duration, Ended> {
        let idle = self.found_at.elapsed();
        let longest = SLOWEST.min(self.session.lease() / 2);
        // While topics can't be written to, it would be woken for each event of theirs, and could do nothing.
        if idle < AWAKE_FOR || self.queue.is_in_trouble() {
            return Ok((idle / LESS_OFTEN).clamp(LOOK_AGAIN, (AWAKE_FOR / LESS_OFTEN).min(longest)));
        }
        let asleep = self.asleep.map(|since| since.elapsed());
        let is_old = asleep.is_none_or(|asleep| asleep > Duration::from_secs(u64::from(WAKE_SECONDS) / 2));
        if is_old {
            self.asleep = Some(Instant::now());
            self.session.wanted_awake(WAKE_SECONDS).await?;
            return Ok(Duration::ZERO);
        }
        Ok(longest)
    }

    /// Since it began.
    fn now(&self) -> Duration {
        self.started.elapsed()
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
            Event::Sent(seq, _, Ok(delivery)) => {
                self.acknowledged(seq, &delivery);
                self.queue.acknowledged(seq, self.now());
                self.start().await?;
            }
            Event::Sent(seq, with, Err(SendError::Unplaced)) => self.send(seq, with).await?,
            Event::Sent(seq, With::Others, Err(SendError::Refused(_))) => self.send(seq, With::Nobody).await?,
            Event::Sent(seq, With::Nobody, Err(SendError::Refused(code))) => {
                self.park(seq, &format!("{code:?}")).await?
            }
            Event::Sent(seq, with, Err(SendError::NotNow(error))) => self.not_now(seq, with, &error),
            Event::Sent(_, _, Err(SendError::Fatal(error))) => return Err(Ended::Producer(error)),
            Event::Again(seq, with) => {
                if self.queue.again(seq) {
                    self.send(seq, with).await?;
                }
            }
        }
        Ok(())
    }

    /// A row is sent again later, or is out of memory until its topic can be written to.
    fn not_now(&mut self, seq: i64, with: With, error: &KafkaError) {
        let now = self.now();
        let Some((row, failures)) = self.rows.get_mut(&seq) else { return };
        *failures += 1;
        let pause = Duration::from_millis(100 << (*failures).min(6));
        if self.warned.is_none_or(|warned| warned.elapsed() > WARN_EVERY) {
            self.warned = Some(Instant::now());
            let error = told(error);
            tracing::warn!(topic = &*row.topic, error, "events of the outbox can't be sent now; trying again");
        }
        // That says nothing of the topic.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) {
            self.queue.pause(seq);
        } else {
            for seq in self.queue.failed(seq, now) {
                self.rows.remove(&seq);
            }
        }
        if self.rows.contains_key(&seq) {
            self.under_way.push(tokio::time::sleep(pause).map(move |()| Event::Again(seq, with)).boxed());
        }
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

    /// The broker has a row: it is to be deleted.
    fn acknowledged(&mut self, seq: i64, delivery: &Delivery) {
        let Some((row, _)) = self.rows.remove(&seq) else { return };
        let (topic, partition, offset) = (&*row.topic, delivery.partition, delivery.offset);
        tracing::debug!(target: "idem::published", event_id = %row.event_id, topic, partition, offset, seq);
        self.acknowledged.push((seq, row.event_id));
    }

    async fn forget_acknowledged(&mut self) -> Result<(), Ended> {
        if self.acknowledged.is_empty() {
            return Ok(());
        }
        // They stay noted until they are deleted: who fails here tries again with its farewell.
        self.session.delete(&self.acknowledged).await?;
        metrics::counter!("idem_outbox_published_total").increment(self.acknowledged.len() as u64);
        self.acknowledged.clear();
        Ok(())
    }

    /// Ends. What is on its way is waited for; if all of it comes back, the successor need not wait.
    pub(super) async fn farewell(&mut self) -> Result<(), Ended> {
        let last = async {
            while self.in_flight > 0 {
                let Some(event) = self.under_way.next().await else { break };
                if let Event::Sent(seq, _, sent) = event {
                    self.in_flight -= 1;
                    if let Ok(delivery) = sent {
                        self.acknowledged(seq, &delivery);
                    }
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
