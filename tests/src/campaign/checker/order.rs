//! The order of effects, for the handler that keeps it.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Effect, Finding, Known, Place, Wrong};

/// Each effect has found the one before it: that of the record before it, of the same key.
pub(super) fn keys_keep_their_order(known: &Known<'_>, findings: &mut Vec<Finding>) {
    let mut keys: BTreeMap<u32, BTreeMap<Place, &Effect>> = BTreeMap::new();
    for effect in known.evidence.effects.iter().filter(|effect| effect.handler == "accounts") {
        // One of an unknown event is a finding of its own.
        if let Some((key, first)) = known.events.get(&effect.event).and_then(|event| Some((event.key, event.first?))) {
            keys.entry(key).or_default().insert(first, effect);
        }
    }
    for (key, effects) in keys {
        let mut expected: Option<Uuid> = None;
        for (first, effect) in effects {
            if effect.before != expected {
                let told = |event: Option<Uuid>| event.map_or("nothing".to_owned(), |event| event.to_string());
                let (found, expected) = (told(effect.before), told(expected));
                let what = format!("accounts: {first} of key {key} came after {found} instead of {expected}");
                findings.push(Finding { wrong: Wrong::OutOfOrder, event: Some(effect.event), what });
            }
            expected = Some(effect.event);
        }
    }
}
