//! Computes from plain data what was lost and what happened twice. It knows nothing of the library: only
//! what the producer sent, what is in the topics, the tables of the business, and the provider's ledger.

mod order;
pub(super) mod outbox;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use super::load::{Plan, Subject};

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub subject: Subject,
    pub partition: i32,
    pub offset: i64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.subject.topic(), self.partition, self.offset)
    }
}

/// A record that the producer sent.
#[derive(Debug, Clone)]
pub struct Sent {
    pub subject: Subject,
    pub key: u32,
    /// The event and what its handlers do; `None`: a record that is nobody's event.
    pub event: Option<(Uuid, Plan)>,
    /// The producer's clock was so far ahead that the event is to be refused.
    pub is_far_ahead: bool,
    /// It was so far behind that the groups may have forgotten the event.
    pub is_behind: bool,
    /// Milliseconds since the campaign began.
    pub at_millis: u64,
    /// Where the broker said that it is.
    pub acked: Option<Place>,
}

/// A record in one of the producer's topics; `event` is absent where there is none to read.
#[derive(Debug, Clone)]
pub struct Found {
    pub place: Place,
    pub event: Option<Uuid>,
}

/// A record that a handler published.
#[derive(Debug, Clone)]
pub struct Published {
    pub place: Place,
    pub event: Uuid,
    /// The event whose handler published it.
    pub cause: Uuid,
    pub key: u32,
    /// Rises in the order of the transactions that published for the key.
    pub number: i64,
    /// How often the database had gone back: numbers begin anew then.
    pub epoch: i32,
}

/// A row that a handler wrote.
#[derive(Debug, Clone)]
pub struct Effect {
    pub position: i64,
    pub handler: String,
    pub event: Uuid,
    /// The event that this handler of an ordered topic found to be the last one of its key.
    pub before: Option<Uuid>,
    /// The event whose handler published this one.
    pub cause: Option<Uuid>,
    /// The process that wrote it, and when: milliseconds since the campaign began.
    pub member: i32,
    pub at_millis: i64,
}

/// Money that moved.
#[derive(Debug, Clone)]
pub struct Charge {
    pub event: Uuid,
    pub key: String,
}

/// A dead letter.
#[derive(Debug, Clone)]
pub struct Letter {
    pub group: String,
    pub origin: Option<Place>,
    pub event: Option<Uuid>,
    pub reason: String,
    /// Milliseconds since the campaign began.
    pub at_millis: i64,
}

/// An event that somebody has put aside for later: a retry topic, a row.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub group: String,
    pub event: Uuid,
    pub whereabouts: String,
}

/// Everything that is known when all is over.
#[derive(Debug, Default)]
pub struct Evidence {
    pub sent: Vec<Sent>,
    pub found: Vec<Found>,
    pub published: Vec<Published>,
    /// The events that brokers have acknowledged to whoever sent what was published, and where they said that each is.
    pub acknowledged: Vec<(Uuid, Place)>,
    pub effects: Vec<Effect>,
    pub charges: Vec<Charge>,
    pub letters: Vec<Letter>,
    pub waiting: Vec<Waiting>,
    /// The events whose handlers published what was not sent yet.
    pub unsent: HashSet<Uuid>,
    /// The first offset that a group has not read; all is read where nothing is said.
    pub read_below: HashMap<(&'static str, Subject, i32), i64>,
    /// When the database went back, milliseconds since the campaign began.
    pub rewinds: Vec<i64>,
    /// How long after its first request a payment may be asked for again.
    pub key_ttl_millis: i64,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wrong {
    /// Neither done nor anywhere.
    Lost,
    /// It still waits, or was not read, when everything should be over.
    Unfinished,
    /// More effects than one, or one of an event that was refused.
    DoubleEffect,
    DoubleCharge,
    /// The effects of a key, or what was published for it, are not in the order of their records.
    OutOfOrder,
    /// A dead letter of an event with which nothing was wrong.
    DeadForNothing,
}

/// Something wrong with an event.
#[derive(Debug, Clone)]
pub struct Finding {
    pub wrong: Wrong,
    pub event: Option<Uuid>,
    pub what: String,
}

/// What the checker knows of one event of the producer's.
struct Event {
    subject: Subject,
    key: u32,
    plan: Plan,
    is_far_ahead: bool,
    is_behind: bool,
    sent_at_millis: i64,
    first: Option<Place>,
}

/// Finds everything that is wrong.
#[must_use]
pub fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    let known = Known::new(evidence, &mut findings);
    each_event_is_done_once_or_dead(&known, &mut findings);
    each_bad_record_is_dead(evidence, &mut findings);
    each_event_is_charged_once(&known, &mut findings);
    order::keys_keep_their_order(&known, &mut findings);
    outbox::what_is_published_arrives_once(&known, &mut findings);
    outbox::what_was_acknowledged_is_there(evidence, &mut findings);
    outbox::keys_keep_their_order_on_the_wire(evidence, &mut findings);
    findings
}

/// The evidence, by event.
struct Known<'a> {
    evidence: &'a Evidence,
    events: HashMap<Uuid, Event>,
    /// How many effects there are of a handler, and when the last one was.
    effects: HashMap<(&'a str, Uuid), (u32, i64)>,
    letters: HashMap<(&'a str, Uuid), Vec<&'a Letter>>,
    waiting: HashSet<(&'a str, Uuid)>,
}

impl<'a> Known<'a> {
    fn new(evidence: &'a Evidence, findings: &mut Vec<Finding>) -> Self {
        let mut effects = HashMap::with_capacity(evidence.effects.len());
        for effect in &evidence.effects {
            let (times, at) = effects.entry((effect.handler.as_str(), effect.event)).or_insert((0, effect.at_millis));
            *times += 1;
            *at = effect.at_millis.max(*at);
        }
        let mut letters: HashMap<(&str, Uuid), Vec<&Letter>> = HashMap::new();
        for letter in &evidence.letters {
            if let Some(event) = letter.event {
                letters.entry((&letter.group, event)).or_default().push(letter);
            }
        }
        let waiting = evidence.waiting.iter().map(|waiting| (waiting.group.as_str(), waiting.event)).collect();
        Self { evidence, events: events(evidence, findings), effects, letters, waiting }
    }

    fn letters(&self, group: &'static str, event: Uuid) -> &[&'a Letter] {
        self.letters.get(&(group, event)).map_or(&[], Vec::as_slice)
    }

    /// What an event is that has neither an effect nor a letter.
    fn missing(&self, group: &'static str, event: Uuid, first: Option<Place>) -> (Wrong, &'static str) {
        if self.waiting.contains(&(group, event)) {
            (Wrong::Unfinished, "it still waits")
        } else if first.is_some_and(|place| is_unread(self.evidence, group, place)) {
            (Wrong::Unfinished, "it was not read")
        } else {
            (Wrong::Lost, "neither done nor dead-lettered nor waiting")
        }
    }
}

fn is_unread(evidence: &Evidence, group: &'static str, place: Place) -> bool {
    let below = evidence.read_below.get(&(group, place.subject, place.partition));
    below.is_some_and(|below| place.offset >= *below)
}

/// The events by their ids, each with its first record. A record that was acknowledged must be there.
fn events(evidence: &Evidence, findings: &mut Vec<Finding>) -> HashMap<Uuid, Event> {
    let mut events: HashMap<Uuid, Event> = HashMap::new();
    for sent in &evidence.sent {
        let Some((id, plan)) = sent.event else { continue };
        events.entry(id).or_insert(Event {
            subject: sent.subject,
            key: sent.key,
            plan,
            is_far_ahead: sent.is_far_ahead,
            is_behind: sent.is_behind,
            sent_at_millis: sent.at_millis.cast_signed(),
            first: None,
        });
    }
    let mut there = HashSet::with_capacity(evidence.found.len());
    for found in &evidence.found {
        there.insert(found.place);
        let Some(event) = found.event.and_then(|id| events.get_mut(&id)) else { continue };
        event.first = Some(event.first.map_or(found.place, |first| first.min(found.place)));
    }
    for sent in &evidence.sent {
        if let Some(place) = sent.acked.filter(|place| !there.contains(place)) {
            let what = format!("{place} was acknowledged and is not in the topic: Kafka lost it");
            findings.push(Finding { wrong: Wrong::Lost, event: sent.event.map(|(id, _)| id), what });
        }
    }
    // What is in no topic was never acknowledged.
    events.retain(|_, event| event.first.is_some());
    events
}

fn each_event_is_done_once_or_dead(known: &Known<'_>, findings: &mut Vec<Finding>) {
    for (&id, event) in &known.events {
        for &(handler, group) in event.subject.handlers() {
            let letters = known.letters(group, id);
            let reasons = || letters.iter().map(|letter| &*letter.reason).collect::<Vec<_>>().join(", ");
            let mut wrong = |wrong, what: &str| {
                findings.push(Finding { wrong, event: Some(id), what: format!("{handler}: {what}") });
            };
            match known.effects.get(&(handler, id)) {
                None if letters.iter().any(|letter| event.deserves(letter, known.evidence)) => {}
                None if !letters.is_empty() => {
                    wrong(Wrong::DeadForNothing, &format!("dead-lettered ({}), and not done", reasons()));
                }
                None => {
                    let (kind, what) = known.missing(group, id, event.first);
                    wrong(kind, what);
                }
                Some(_) if event.plan == Plan::Refuse || event.is_far_ahead => {
                    wrong(Wrong::DoubleEffect, "an effect of an event that was refused");
                }
                Some(&(1, at)) => {
                    if letters.iter().any(|letter| !event.may_be_done_beside(letter, at, known.evidence)) {
                        wrong(Wrong::DeadForNothing, &format!("dead-lettered ({}), and done", reasons()));
                    }
                }
                Some((times, _)) => wrong(Wrong::DoubleEffect, &format!("{times} effects")),
            }
        }
    }
    let of_producer = |handler: &str| {
        let is_one = |(subject, _): &(Subject, u32)| subject.handlers().iter().any(|(name, _)| *name == handler);
        Subject::SHARES.iter().find(|share| is_one(share)).is_none_or(|(subject, _)| *subject != Subject::Invoices)
    };
    let effects = known.evidence.effects.iter().filter(|effect| of_producer(&effect.handler));
    let unknown = effects.filter(|effect| !known.events.contains_key(&effect.event));
    findings.extend(unknown.map(|effect| Finding {
        wrong: Wrong::DoubleEffect,
        event: Some(effect.event),
        what: format!("{}: an effect of an event that is in no topic", effect.handler),
    }));
}

impl Event {
    /// Whether such a dead letter is right, where there is no effect.
    fn deserves(&self, letter: &Letter, evidence: &Evidence) -> bool {
        match &*letter.reason {
            "permanent" => self.plan == Plan::Refuse,
            "future" => self.is_far_ahead,
            "expired" => self.is_behind,
            // Asked for again when the provider may have forgotten that it was asked before.
            "key-expired" => {
                let age = letter.at_millis - self.sent_at_millis;
                self.subject == Subject::Payments && (self.is_behind || age >= evidence.key_ttl_millis)
            }
            _ => false,
        }
    }

    /// Whether such a dead letter is right beside an effect: a copy that came when its day was forgotten; or one
    /// of them is from before the database went back, and the other from after.
    fn may_be_done_beside(&self, letter: &Letter, done_at_millis: i64, evidence: &Evidence) -> bool {
        let (from, to) = (letter.at_millis.min(done_at_millis), letter.at_millis.max(done_at_millis));
        let went_back = evidence.rewinds.iter().any(|at| (from..=to).contains(at));
        let is_later = letter.at_millis + CLOCKS >= done_at_millis;
        self.deserves(letter, evidence) && (went_back || letter.reason == "expired" && is_later)
    }
}

/// Kafka's clients and the database take their times at different moments.
const CLOCKS: i64 = 1_000;

fn each_bad_record_is_dead(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let dead: HashSet<(&str, Place)> =
        evidence.letters.iter().filter_map(|letter| Some((letter.group.as_str(), letter.origin?))).collect();
    for found in evidence.found.iter().filter(|found| found.event.is_none()) {
        for &(_, group) in found.place.subject.handlers() {
            if !dead.contains(&(group, found.place)) {
                let is_unread = is_unread(evidence, group, found.place);
                let wrong = if is_unread { Wrong::Unfinished } else { Wrong::Lost };
                let what = format!("{group}: {} is nobody's event and was not dead-lettered", found.place);
                findings.push(Finding { wrong, event: None, what });
            }
        }
    }
}

fn each_event_is_charged_once(known: &Known<'_>, findings: &mut Vec<Finding>) {
    let mut charges: BTreeMap<Uuid, u32> = BTreeMap::new();
    for charge in &known.evidence.charges {
        *charges.entry(charge.event).or_default() += 1;
    }
    for (&event, &times) in charges.iter().filter(|&(_, &times)| times > 1) {
        let what = format!("{times} charges");
        findings.push(Finding { wrong: Wrong::DoubleCharge, event: Some(event), what });
    }
    for (&id, _) in known.events.iter().filter(|(_, event)| event.subject == Subject::Payments) {
        if known.effects.contains_key(&("payments", id)) && !charges.contains_key(&id) {
            let what = "done without a charge".to_owned();
            findings.push(Finding { wrong: Wrong::Lost, event: Some(id), what });
        }
    }
}

/// Everything that is known of an event, in words.
#[must_use]
pub fn history(evidence: &Evidence, event: Uuid) -> Vec<String> {
    let mut lines = Vec::new();
    for sent in evidence.sent.iter().filter(|sent| sent.event.is_some_and(|(id, _)| id == event)) {
        let acked =
            sent.acked.map_or_else(|| "never acknowledged".to_owned(), |place| format!("acknowledged at {place}"));
        let plan = sent.event.map(|(_, plan)| plan);
        lines.push(format!("sent after {:.1} s, plan {plan:?}, {acked}", seconds(sent.at_millis.cast_signed())));
    }
    let found = evidence.found.iter().filter(|found| found.event == Some(event));
    lines.extend(found.map(|found| format!("in the topic at {}", found.place)));
    for published in evidence.published.iter().filter(|published| [published.event, published.cause].contains(&event)) {
        let Published { place, event, cause, key, number, epoch } = published;
        lines.push(format!("{event} published at {place} for {cause}: number {number} of key {key}, epoch {epoch}"));
    }
    for effect in evidence.effects.iter().filter(|effect| effect.event == event || effect.cause == Some(event)) {
        let Effect { position, handler, member, at_millis, .. } = effect;
        lines.push(format!("effect {position} of {handler} after {:.1} s by process {member}", seconds(*at_millis)));
    }
    let charges = evidence.charges.iter().filter(|charge| charge.event == event);
    lines.extend(charges.map(|charge| format!("charged with key {}", charge.key)));
    for letter in evidence.letters.iter().filter(|letter| letter.event == Some(event)) {
        let Letter { group, reason, at_millis, .. } = letter;
        lines.push(format!("dead letter of {group} after {:.1} s: {reason}", seconds(*at_millis)));
    }
    let waiting = evidence.waiting.iter().filter(|waiting| waiting.event == event);
    lines.extend(waiting.map(|waiting| format!("waits for {}: {}", waiting.group, waiting.whereabouts)));
    lines
}

fn seconds(millis: i64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a campaign is not that long")]
    let millis = millis as f64;
    millis / 1_000.0
}
