//! What a replay does with a dead letter.

use serde::Serialize;

/// What would come of an event's next delivery, by the dedup table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DedupState {
    /// The group has processed it: a delivery is a duplicate, without an effect.
    Done,
    /// The group has not processed it, and would know if it had.
    InWindow,
    /// The group may have processed it and forgotten.
    Expired,
    /// No id was found in its payload, so nothing is known.
    NoId,
}

/// All that the decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// The library wrote it, so it says where the event comes from.
    pub is_ours: bool,
    /// No later letter of the same event stands in the queue.
    pub is_last: bool,
    /// The event had a value that did not fit into the queue.
    pub lost_its_value: bool,
    /// What the dedup table knows of the event.
    pub state: DedupState,
    /// Somebody wants this event handled even if the group may have forgotten it.
    pub may_be_expired: bool,
}

/// What a replay does with a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// Goes to the replay topic.
    Replay,
    /// Skipped: the group has processed the event.
    Done,
    /// Skipped: a later letter of the same event stands in the queue.
    Superseded,
    /// Refused: the group may have processed the event and forgotten it. Whoever knows that it did not can
    /// allow it, event by event.
    Expired,
    /// Skipped: its value did not fit into the queue. It may still be at its origin.
    WithoutValue,
    /// Refused: it is larger than the replay topic takes, see the topic's `max.message.bytes`.
    TooLarge,
    /// Skipped: it does not say where it comes from, so the library did not write it, and the group
    /// would only dead-letter it again.
    Foreign,
}

/// Decides. That a record is too large only the broker knows.
pub(crate) fn action(facts: &Facts) -> Action {
    match facts {
        Facts { is_ours: false, .. } => Action::Foreign,
        Facts { state: DedupState::Done, .. } => Action::Done,
        Facts { is_last: false, .. } => Action::Superseded,
        Facts { lost_its_value: true, .. } => Action::WithoutValue,
        // The group would only dead-letter it again.
        Facts { state: DedupState::Expired, may_be_expired: false, .. } => Action::Expired,
        Facts { state: DedupState::InWindow | DedupState::Expired | DedupState::NoId, .. } => Action::Replay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_letter_of_an_unprocessed_event_goes() {
        let facts = Facts {
            is_ours: true,
            is_last: true,
            lost_its_value: false,
            state: DedupState::InWindow,
            may_be_expired: false,
        };
        let cases = [
            (facts, Action::Replay),
            (Facts { state: DedupState::NoId, ..facts }, Action::Replay),
            (Facts { state: DedupState::Expired, ..facts }, Action::Expired),
            (Facts { state: DedupState::Expired, may_be_expired: true, ..facts }, Action::Replay),
            (Facts { state: DedupState::Done, may_be_expired: true, ..facts }, Action::Done),
            (Facts { state: DedupState::Done, ..facts }, Action::Done),
            (Facts { state: DedupState::Done, is_last: false, ..facts }, Action::Done),
            (Facts { is_last: false, ..facts }, Action::Superseded),
            (Facts { lost_its_value: true, ..facts }, Action::WithoutValue),
            (Facts { is_ours: false, ..facts }, Action::Foreign),
        ];
        for (facts, expected) in cases {
            assert_eq!(action(&facts), expected, "{facts:?}");
        }
    }
}
