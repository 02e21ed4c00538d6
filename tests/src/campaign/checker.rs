//! Computes from plain data what was lost and what happened twice. It knows nothing of the library: only
//! what the producer sent, what is in the topics, the tables of the business, and the provider's ledger.

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

/// A record in one of the main topics; `event` is absent where there is none to read.
#[derive(Debug, Clone)]
pub struct Found {
    pub place: Place,
    pub event: Option<Uuid>,
}

/// A row that a handler wrote.
#[derive(Debug, Clone)]
pub struct Effect {
    /// Rises in the order of writing.
    pub position: i64,
    pub handler: String,
    pub event: Uuid,
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
    pub effects: Vec<Effect>,
    pub charges: Vec<Charge>,
    pub letters: Vec<Letter>,
    pub waiting: Vec<Waiting>,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wrong {
    /// Neither done nor anywhere.
    Lost,
    /// It still waits when everything should be over.
    Unfinished,
    /// More effects than one, or one of an event that was refused.
    DoubleEffect,
    DoubleCharge,
    /// The effects of a key are not in the order of their records.
    OutOfOrder,
    /// A dead letter of an event with which nothing was wrong, and which has no effect.
    DeadForNothing,
}

/// Something wrong with an event.
#[derive(Debug, Clone)]
pub struct Finding {
    pub wrong: Wrong,
    pub event: Option<Uuid>,
    pub what: String,
}

/// What the checker knows of one event.
struct Event {
    subject: Subject,
    key: u32,
    plan: Plan,
    is_far_ahead: bool,
    is_behind: bool,
    first: Option<Place>,
}

/// Finds everything that is wrong.
#[must_use]
pub fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    let events = events(evidence, &mut findings);
    let effects = effects(evidence);
    let letters = letters(evidence);
    each_event_is_done_once_or_dead(evidence, &events, &effects, &letters, &mut findings);
    each_bad_record_is_dead(evidence, &mut findings);
    each_event_is_charged_once(evidence, &events, &effects, &mut findings);
    keys_keep_their_order(evidence, &events, &mut findings);
    findings
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

type Effects<'a> = HashMap<(&'a str, Uuid), u32>;
type Letters<'a> = HashMap<(&'a str, Uuid), Vec<&'a str>>;

fn effects(evidence: &Evidence) -> Effects<'_> {
    let mut effects = HashMap::with_capacity(evidence.effects.len());
    for effect in &evidence.effects {
        *effects.entry((effect.handler.as_str(), effect.event)).or_insert(0) += 1;
    }
    effects
}

fn letters(evidence: &Evidence) -> Letters<'_> {
    let mut letters: Letters<'_> = HashMap::new();
    for letter in &evidence.letters {
        if let Some(event) = letter.event {
            letters.entry((&letter.group, event)).or_default().push(&letter.reason);
        }
    }
    letters
}

fn each_event_is_done_once_or_dead(
    evidence: &Evidence,
    events: &HashMap<Uuid, Event>,
    effects: &Effects<'_>,
    letters: &Letters<'_>,
    findings: &mut Vec<Finding>,
) {
    let waiting: HashSet<(&str, Uuid)> =
        evidence.waiting.iter().map(|waiting| (waiting.group.as_str(), waiting.event)).collect();
    for (&id, event) in events {
        for &(handler, group) in event.subject.handlers() {
            let times = effects.get(&(handler, id)).copied().unwrap_or(0);
            let reasons = letters.get(&(group, id)).map_or(&[][..], Vec::as_slice);
            let mut wrong = |wrong, what: &str| {
                findings.push(Finding { wrong, event: Some(id), what: format!("{handler}: {what}") });
            };
            match times {
                0 if !reasons.is_empty() => {
                    if !reasons.iter().any(|reason| event.deserves(reason)) {
                        wrong(Wrong::DeadForNothing, &format!("dead-lettered as {reasons:?}, and not done"));
                    }
                }
                0 if waiting.contains(&(group, id)) => wrong(Wrong::Unfinished, "it still waits"),
                0 => wrong(Wrong::Lost, "neither done nor dead-lettered nor waiting"),
                1 if event.plan == Plan::Refuse => wrong(Wrong::DoubleEffect, "an effect of an event that was refused"),
                1 => {}
                _ => wrong(Wrong::DoubleEffect, &format!("{times} effects")),
            }
        }
    }
    let unknown = evidence.effects.iter().filter(|effect| !events.contains_key(&effect.event));
    findings.extend(unknown.map(|effect| Finding {
        wrong: Wrong::DoubleEffect,
        event: Some(effect.event),
        what: format!("{}: an effect of an event that is in no topic", effect.handler),
    }));
}

impl Event {
    /// Whether such a dead letter is right.
    fn deserves(&self, reason: &str) -> bool {
        match reason {
            "permanent" => self.plan == Plan::Refuse,
            "future" => self.is_far_ahead,
            "expired" => self.is_behind,
            // What the provider has long forgotten is not charged when its record may have been lost.
            "key-expired" => self.is_behind && self.subject == Subject::Payments,
            _ => false,
        }
    }
}

fn each_bad_record_is_dead(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let dead: HashSet<(&str, Place)> =
        evidence.letters.iter().filter_map(|letter| Some((letter.group.as_str(), letter.origin?))).collect();
    for found in evidence.found.iter().filter(|found| found.event.is_none()) {
        for (_, group) in found.place.subject.handlers() {
            if !dead.contains(&(group, found.place)) {
                let what = format!("{group}: {} is nobody's event and was not dead-lettered", found.place);
                findings.push(Finding { wrong: Wrong::Lost, event: None, what });
            }
        }
    }
}

fn each_event_is_charged_once(
    evidence: &Evidence,
    events: &HashMap<Uuid, Event>,
    effects: &Effects<'_>,
    findings: &mut Vec<Finding>,
) {
    let mut charges: BTreeMap<Uuid, u32> = BTreeMap::new();
    for charge in &evidence.charges {
        *charges.entry(charge.event).or_default() += 1;
    }
    for (&event, &times) in charges.iter().filter(|&(_, &times)| times > 1) {
        let what = format!("{times} charges");
        findings.push(Finding { wrong: Wrong::DoubleCharge, event: Some(event), what });
    }
    for &id in events.iter().filter(|(_, event)| event.subject == Subject::Payments).map(|(id, _)| id) {
        if effects.contains_key(&("payments", id)) && !charges.contains_key(&id) {
            let what = "done without a charge".to_owned();
            findings.push(Finding { wrong: Wrong::Lost, event: Some(id), what });
        }
    }
}

fn keys_keep_their_order(evidence: &Evidence, events: &HashMap<Uuid, Event>, findings: &mut Vec<Finding>) {
    let mut rows: Vec<&Effect> = evidence.effects.iter().filter(|effect| effect.handler == "accounts").collect();
    rows.sort_by_key(|effect| effect.position);
    let mut last: HashMap<u32, Place> = HashMap::new();
    for row in rows {
        let Some((key, first)) = events.get(&row.event).and_then(|event| Some((event.key, event.first?))) else {
            continue;
        };
        match last.get(&key) {
            Some(&before) if before > first => {
                let what = format!("accounts: {first} took effect after {before}, of the same key {key}");
                findings.push(Finding { wrong: Wrong::OutOfOrder, event: Some(row.event), what });
            }
            _ => drop(last.insert(key, first)),
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
    for effect in evidence.effects.iter().filter(|effect| effect.event == event) {
        let Effect { position, handler, member, at_millis, .. } = effect;
        lines.push(format!("effect {position} of {handler} after {:.1} s by process {member}", seconds(*at_millis)));
    }
    let charges = evidence.charges.iter().filter(|charge| charge.event == event);
    lines.extend(charges.map(|charge| format!("charged with key {}", charge.key)));
    let letters = evidence.letters.iter().filter(|letter| letter.event == Some(event));
    lines.extend(letters.map(|letter| format!("dead letter of {}: {}", letter.group, letter.reason)));
    let waiting = evidence.waiting.iter().filter(|waiting| waiting.event == event);
    lines.extend(waiting.map(|waiting| format!("waits for {}: {}", waiting.group, waiting.whereabouts)));
    lines
}

fn seconds(millis: i64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a campaign is not that long")]
    let millis = millis as f64;
    millis / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of a subject at consecutive offsets of one partition, each with its effects.
    struct World(Evidence);

    impl World {
        fn new() -> Self {
            Self(Evidence::default())
        }

        fn event(&mut self, subject: Subject, plan: Plan) -> Uuid {
            let id = Uuid::now_v7();
            let place = Place { subject, partition: 0, offset: i64::try_from(self.0.found.len()).unwrap() };
            self.0.sent.push(Sent {
                subject,
                key: 1,
                event: Some((id, plan)),
                is_far_ahead: false,
                is_behind: false,
                at_millis: 0,
                acked: Some(place),
            });
            self.0.found.push(Found { place, event: Some(id) });
            id
        }

        fn effect(&mut self, handler: &str, event: Uuid) {
            let position = i64::try_from(self.0.effects.len()).unwrap();
            self.0.effects.push(Effect { position, handler: handler.to_owned(), event, member: 1, at_millis: 0 });
        }

        fn charge(&mut self, event: Uuid) {
            self.0.charges.push(Charge { event, key: event.to_string() });
        }

        fn letter(&mut self, group: &str, event: Uuid, reason: &str) {
            let (group, reason) = (group.to_owned(), reason.to_owned());
            self.0.letters.push(Letter { group, origin: None, event: Some(event), reason });
        }

        fn wrong(&self) -> Vec<(Wrong, Option<Uuid>)> {
            check(&self.0).into_iter().map(|finding| (finding.wrong, finding.event)).collect()
        }
    }

    #[test]
    fn nothing_is_wrong_with_one_effect_per_handler_and_a_letter_for_what_was_refused() {
        let mut world = World::new();
        let order = world.event(Subject::Orders, Plan::Fail(1));
        world.effect("orders", order);
        world.effect("order-books", order);
        let refused = world.event(Subject::Clicks, Plan::Refuse);
        world.letter("books", refused, "permanent");
        let paid = world.event(Subject::Payments, Plan::Succeed);
        world.charge(paid);
        world.effect("payments", paid);
        // Acknowledged or not: what is in no topic was not published.
        let unsent = world.event(Subject::Views, Plan::Succeed);
        world.0.found.pop();
        world.0.sent.last_mut().unwrap().acked = None;
        assert_eq!(world.wrong(), []);
        assert!(history(&world.0, unsent)[0].contains("never acknowledged"));
    }

    #[test]
    fn an_event_without_an_effect_is_lost_and_one_that_waits_is_unfinished() {
        let mut world = World::new();
        let lost = world.event(Subject::Orders, Plan::Succeed);
        world.effect("orders", lost);
        assert_eq!(world.wrong(), [(Wrong::Lost, Some(lost))], "its other group has not seen it");
        let (group, whereabouts) = ("books".to_owned(), "books.retry.1s".to_owned());
        world.0.waiting.push(Waiting { group, event: lost, whereabouts });
        assert_eq!(world.wrong(), [(Wrong::Unfinished, Some(lost))]);
    }

    #[test]
    fn what_kafka_acknowledged_and_does_not_hold_is_lost() {
        let mut world = World::new();
        let gone = world.event(Subject::Views, Plan::Succeed);
        world.0.found.clear();
        assert_eq!(world.wrong(), [(Wrong::Lost, Some(gone))]);
    }

    #[test]
    fn a_second_effect_and_one_of_a_refused_or_unknown_event_are_double_effects() {
        let mut world = World::new();
        let twice = world.event(Subject::Views, Plan::Succeed);
        world.effect("views", twice);
        world.effect("views", twice);
        assert_eq!(world.wrong(), [(Wrong::DoubleEffect, Some(twice))]);

        let mut world = World::new();
        let refused = world.event(Subject::Views, Plan::Refuse);
        world.letter("books", refused, "permanent");
        world.effect("views", refused);
        let unknown = Uuid::now_v7();
        world.effect("views", unknown);
        assert_eq!(world.wrong(), [(Wrong::DoubleEffect, Some(refused)), (Wrong::DoubleEffect, Some(unknown))]);
    }

    #[test]
    fn a_dead_letter_needs_a_reason_that_the_event_deserves() {
        let mut world = World::new();
        let fine = world.event(Subject::Views, Plan::Succeed);
        world.letter("books", fine, "exhausted");
        assert_eq!(world.wrong(), [(Wrong::DeadForNothing, Some(fine))]);
        // A letter from before the database went back, and then it was done.
        world.effect("views", fine);
        assert_eq!(world.wrong(), []);

        let mut world = World::new();
        let old = world.event(Subject::Views, Plan::Succeed);
        world.0.sent[0].is_behind = true;
        world.letter("books", old, "expired");
        assert_eq!(world.wrong(), []);
    }

    #[test]
    fn a_second_charge_and_an_effect_without_one_are_found() {
        let mut world = World::new();
        let twice = world.event(Subject::Payments, Plan::Succeed);
        world.effect("payments", twice);
        world.charge(twice);
        world.charge(twice);
        let free = world.event(Subject::Payments, Plan::Succeed);
        world.effect("payments", free);
        assert_eq!(world.wrong(), [(Wrong::DoubleCharge, Some(twice)), (Wrong::Lost, Some(free))]);
    }

    #[test]
    fn effects_of_a_key_are_in_the_order_of_first_records() {
        let mut world = World::new();
        let ids: Vec<Uuid> = (0..3).map(|_| world.event(Subject::Accounts, Plan::Succeed)).collect();
        // A copy changes nothing: the first record counts.
        let place = Place { subject: Subject::Accounts, partition: 0, offset: 3 };
        world.0.found.push(Found { place, event: Some(ids[0]) });
        for &id in &ids {
            world.effect("accounts", id);
        }
        assert_eq!(world.wrong(), []);
        world.0.effects[1].position = 7;
        assert_eq!(world.wrong(), [(Wrong::OutOfOrder, Some(ids[1]))]);
    }

    #[test]
    fn a_record_that_is_nobodys_event_needs_a_letter_of_each_group() {
        let mut world = World::new();
        let place = Place { subject: Subject::Orders, partition: 2, offset: 5 };
        world.0.found.push(Found { place, event: None });
        let letter = |group: &str| Letter {
            group: group.to_owned(),
            origin: Some(place),
            event: None,
            reason: "null".to_owned(),
        };
        world.0.letters.push(letter("billing"));
        assert_eq!(world.wrong(), [(Wrong::Lost, None)]);
        world.0.letters.push(letter("books"));
        assert_eq!(world.wrong(), []);
    }

    #[test]
    fn a_history_names_everything_that_is_known_of_an_event() {
        let mut world = World::new();
        let id = world.event(Subject::Payments, Plan::Fail(1));
        world.effect("payments", id);
        world.charge(id);
        world.letter("billing", id, "exhausted");
        let history = history(&world.0, id).join("\n");
        for part in ["Fail(1)", "campaign.payments/0@0", "effect 0 of payments", "charged with key", "exhausted"] {
            assert!(history.contains(part), "{part} in {history}");
        }
    }
}
