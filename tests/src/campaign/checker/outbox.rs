//! What a handler publishes, on its way to those who handle it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use uuid::Uuid;

use super::{Evidence, Finding, Known, Place, Published, Wrong};
use crate::campaign::load::{self, Subject};

/// The handler that publishes.
const PUBLISHER: &str = "orders";

/// Each effect of the publisher has one event on the wire, however often, and that one effect in each group; and
/// nothing takes effect that no effect has published.
pub(super) fn what_is_published_arrives_once(known: &Known<'_>, findings: &mut Vec<Finding>) {
    let mut of_cause: HashMap<Uuid, BTreeMap<Uuid, Place>> = HashMap::new();
    for published in &known.evidence.published {
        let first = of_cause.entry(published.cause).or_default().entry(published.event).or_insert(published.place);
        *first = published.place.min(*first);
    }
    let publishes = |cause: Uuid| known.effects.contains_key(&(PUBLISHER, cause));
    let is_publisher = |cause| known.events.get(&cause).is_some_and(|event| load::publishes(event.key));
    let orders = known.effects.keys().filter(|(handler, _)| *handler == PUBLISHER).map(|(_, cause)| *cause);
    let publishers = orders.filter(|cause| is_publisher(*cause));
    for cause in publishers {
        let mut wrong = |wrong, what: String| findings.push(Finding { wrong, event: Some(cause), what });
        let events = of_cause.get(&cause);
        match events.map_or(0, BTreeMap::len) {
            0 if known.evidence.unsent.contains(&cause) => {
                wrong(Wrong::Unfinished, "what it published was not sent".to_owned());
            }
            0 => wrong(Wrong::Lost, "what it published is neither in the topic nor in the outbox".to_owned()),
            1 => {}
            times => wrong(Wrong::DoubleEffect, format!("it published {times} events instead of one")),
        }
        for (&event, &first) in events.into_iter().flatten() {
            for &(handler, group) in Subject::Invoices.handlers() {
                match known.effects.get(&(handler, event)).map_or(0, |(times, _)| *times) {
                    0 if known.letters(group, event).is_empty() => {
                        let (kind, what) = known.missing(group, event, Some(first));
                        wrong(kind, format!("{handler}: {event}, which it published: {what}"));
                    }
                    // Its id is of its cause's time, which may have been forgotten.
                    0 if is_forgotten(known, group, cause, event) => {}
                    0 => wrong(Wrong::DeadForNothing, format!("{handler}: {event}, which it published, is dead")),
                    1 => {}
                    times => wrong(Wrong::DoubleEffect, format!("{handler}: {event}: {times} effects")),
                }
            }
        }
    }
    let wire: HashMap<Uuid, Uuid> =
        known.evidence.published.iter().map(|published| (published.event, published.cause)).collect();
    for effect in &known.evidence.effects {
        let Some(cause) = effect.cause else { continue };
        // It may have been published by an effect that was lost with the database, of an event that was forgotten.
        let is_told = publishes(cause) || is_forgotten(known, "billing", cause, cause);
        if wire.get(&effect.event) != Some(&cause) || !is_told {
            let what = format!("{}: an effect of {}, which nobody published", effect.handler, effect.event);
            findings.push(Finding { wrong: Wrong::DoubleEffect, event: Some(cause), what });
        }
    }
}

/// Whether the group was right to dead-letter an event of the time of `cause` as forgotten.
fn is_forgotten(known: &Known<'_>, group: &'static str, cause: Uuid, event: Uuid) -> bool {
    let is_behind = known.events.get(&cause).is_some_and(|event| event.is_behind);
    is_behind && known.letters(group, event).iter().any(|letter| letter.reason == "expired")
}

/// What a broker has acknowledged is in the topic, where it said.
pub(super) fn what_was_acknowledged_is_there(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let wire: HashMap<Place, Uuid> =
        evidence.published.iter().map(|published| (published.place, published.event)).collect();
    for &(event, place) in &evidence.acknowledged {
        if wire.get(&place) != Some(&event) {
            let there = wire.get(&place).map_or_else(|| "nothing".to_owned(), Uuid::to_string);
            let what = format!("{event} was acknowledged at {place}, where {there} is");
            findings.push(Finding { wrong: Wrong::Lost, event: Some(event), what });
        }
    }
}

/// What is new on the wire comes in the order in which the transactions of its key published it. When the database
/// goes back, numbers begin anew, and what was sent is sent again.
pub(super) fn keys_keep_their_order_on_the_wire(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let mut records: Vec<&Published> = evidence.published.iter().collect();
    records.sort_by_key(|published| published.place);
    let mut seen = HashSet::new();
    let mut last: HashMap<(u32, i32), &Published> = HashMap::new();
    for published in records.into_iter().filter(|published| seen.insert(published.event)) {
        let Published { place, key, number, epoch, .. } = published;
        match last.get(&(*key, *epoch)) {
            Some(before) if before.number >= *number => {
                let what =
                    format!("number {number} of key {key} at {place} came after {} at {}", before.number, before.place);
                findings.push(Finding { wrong: Wrong::OutOfOrder, event: Some(published.cause), what });
            }
            _ => drop(last.insert((*key, *epoch), published)),
        }
    }
}

/// How many records on the wire repeat an earlier one.
#[must_use]
pub fn repeated(published: &[Published]) -> usize {
    published.len() - published.iter().map(|published| published.event).collect::<BTreeSet<_>>().len()
}
