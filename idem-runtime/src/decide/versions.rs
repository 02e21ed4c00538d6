//! Which of several events tell of a state that is older than the one applied.

use std::collections::HashMap;

use crate::event::EventVersion;

/// For each event in order whether it is stale, when these versions were applied before. `applied` holds
/// what is applied after all of them.
///
/// An equal version is stale too: it is the same state, told in another event.
pub(crate) fn stale(applied: &mut HashMap<String, i64>, events: &[Option<&EventVersion>]) -> Vec<bool> {
    let is_stale = |event: &Option<&EventVersion>| {
        let Some(EventVersion { aggregate, version }) = event else { return false };
        match applied.get_mut(aggregate) {
            Some(known) if version <= known => true,
            Some(known) => {
                *known = *version;
                false
            }
            None => {
                applied.insert(aggregate.clone(), *version);
                false
            }
        }
    };
    events.iter().map(is_stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// In whatever order and however often versions come, in transactions of whatever size, what is
        /// applied rises, and the last one applied is the highest.
        #[test]
        fn any_permutation_with_duplicates_ends_with_the_highest_version(
            events in proptest::collection::vec((0_usize..3, -3_i64..6), 1..40),
            size in 1_usize..10,
        ) {
            let versions: Vec<EventVersion> =
                events.iter().map(|(of, version)| EventVersion::new(of.to_string(), *version)).collect();
            let mut applied = HashMap::new();
            let mut state: HashMap<String, Vec<i64>> = HashMap::new();
            for transaction in versions.chunks(size) {
                let refs: Vec<_> = transaction.iter().map(Some).collect();
                for (event, stale) in transaction.iter().zip(stale(&mut applied, &refs)) {
                    if !stale {
                        state.entry(event.aggregate.clone()).or_default().push(event.version);
                    }
                }
            }
            for event in &versions {
                let applied = &state[&event.aggregate];
                prop_assert!(applied.is_sorted_by(|one, next| one < next));
                let highest = versions.iter().filter(|other| other.aggregate == event.aggregate).map(|other| other.version);
                prop_assert_eq!(applied.last().copied(), highest.max());
            }
        }
    }

    #[test]
    fn an_event_without_a_version_is_never_stale() {
        assert_eq!(stale(&mut HashMap::new(), &[None, None]), [false, false]);
    }
}
