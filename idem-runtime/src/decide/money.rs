//! Whether a money call may leave, and what its answer means.

use std::time::Duration;

use crate::spec::Conflict;

/// What the database knows of a call that was asked for before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Known {
    /// How often the call was resolved as failed.
    pub generation: u32,
    /// Requests of this generation.
    pub attempt: u32,
    pub state: State,
    /// A person decided the state.
    pub resolved: bool,
    /// Method, path and body are what they were.
    pub same_body: bool,
    /// Requests that may have been carried out, though no answer says so.
    pub unsure: Option<Unsure>,
    /// The database went back over this event and nobody decided of the call since, and the event is older
    /// than a provider remembers a key: what came after this state may be lost.
    pub is_lost: bool,
}

/// Requests that may have been carried out, though no answer says so.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Unsure {
    /// How long ago the first one left.
    pub first: Duration,
    /// How long ago the last one left whose answer is missing. `None`: the provider only said that it
    /// knows the key.
    pub last: Option<Duration>,
}

/// The state of a call, as in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Asked for, and whether it was carried out is not known.
    Unknown,
    /// Surely not carried out so far.
    Waiting,
    Applied,
    Refused,
    /// A person says that it was not carried out, or was undone.
    Failed,
}

impl State {
    const ALL: [Self; 5] = [Self::Unknown, Self::Waiting, Self::Applied, Self::Refused, Self::Failed];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Waiting => "waiting",
            Self::Applied => "applied",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }

    /// Reads what [`as_str`](Self::as_str) writes. What another version wrote is not known.
    pub(crate) fn parse(text: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.as_str() == text).unwrap_or(Self::Unknown)
    }
}

/// What follows for a call that was asked for before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Before {
    /// The same key once more.
    Again,
    /// With the key of this generation.
    NextGeneration(u32),
    /// Carried out: nothing leaves.
    AlreadyProcessed,
    /// Nothing leaves: it is not the call that it was.
    BodyChanged,
    /// Nothing leaves: the provider may have forgotten the key.
    KeyExpired,
    /// Nothing leaves: so it is, and the record does not say so. The call is to be recorded as unknown in
    /// this generation, for a person to find it.
    Lost(u32),
}

/// What follows for a call that was asked for before. `key_ttl`: how long the provider remembers a key.
pub(crate) fn before(known: &Known, key_ttl: Duration) -> Before {
    match known.state {
        // The next key may have left before the database went back.
        State::Failed if known.is_lost => Before::Lost(known.generation.saturating_add(1)),
        State::Failed => Before::NextGeneration(known.generation.saturating_add(1)),
        // A person's word holds, whatever the handler asks for now.
        State::Applied if known.resolved => Before::AlreadyProcessed,
        _ if !known.same_body => Before::BodyChanged,
        State::Applied => Before::AlreadyProcessed,
        // Only a request that may have been carried out makes a forgotten key dangerous: a provider
        // that was out of reach for a day is no reason to give an event up.
        State::Unknown if known.unsure.is_some_and(|unsure| unsure.first >= key_ttl) => Before::KeyExpired,
        _ if known.is_lost => Before::Lost(known.generation),
        _ if known.unsure.is_some_and(|unsure| unsure.first >= key_ttl) => Before::KeyExpired,
        State::Unknown | State::Waiting | State::Refused => Before::Again,
    }
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An HTTP status with the whole answer behind it.
    Status(u16),
    /// The request surely never left: no connection.
    #[cfg_attr(not(feature = "money"), allow(dead_code, reason = "nothing is sent"))]
    NotSent,
    /// It left, and no whole answer came.
    Nothing,
}

/// What an answer means for the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Meaning {
    Applied,
    AlreadyProcessed,
    /// 409, and nothing says that an earlier request of ours did it.
    Conflict,
    /// This call will never be carried out.
    Refused,
    /// The provider may carry it out later.
    NotNow,
    /// The provider as a whole is not usable by us.
    Unavailable,
    Unanswered,
}

/// What an answer means, and what is recorded of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Verdict {
    pub meaning: Meaning,
    pub state: State,
    pub doubt: Doubt,
}

/// What an answer leaves in doubt, where the state does not settle it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// Nothing but what was before: this request was surely not carried out.
    Before,
    /// The provider knows the key, so some request with it may have been carried out. Not this one.
    Key,
    /// This request may have been carried out.
    Request,
}

/// Longer than any request of ours can be in flight.
pub(crate) const IN_FLIGHT: Duration = Duration::from_secs(60);

/// The longest time that a call can be given: shorter than what counts as in flight.
pub(crate) const LONGEST_CALL: Duration = Duration::from_secs(59);

/// What an answer means. `unsure`: the earlier requests of this call that may have been carried out.
pub(crate) fn after(answer: Answer, conflict: Conflict, unsure: Option<Unsure>) -> Verdict {
    use Meaning::{AlreadyProcessed, Applied, NotNow, Refused, Unanswered, Unavailable};
    let done = |meaning| Verdict { meaning, state: State::Applied, doubt: Doubt::Before };
    let perhaps = |meaning| Verdict { meaning, state: State::Unknown, doubt: Doubt::Request };
    // An earlier request may have been, whatever is said of this one.
    let not = |meaning, state| {
        let state = if unsure.is_some() { State::Unknown } else { state };
        Verdict { meaning, state, doubt: Doubt::Before }
    };
    match answer {
        Answer::NotSent => not(Unanswered, State::Waiting),
        Answer::Nothing => perhaps(Unanswered),
        Answer::Status(status) => match status {
            200..=299 => done(Applied),
            401 | 403 | 407 | 307 | 308 => not(Unavailable, State::Waiting),
            300..=399 => perhaps(Unavailable),
            425 | 429 => not(NotNow, State::Waiting),
            // A decline is the provider's word on the payment itself.
            402 => Verdict { meaning: Refused, state: State::Refused, doubt: Doubt::Before },
            409 => match (conflict, unsure) {
                (Conflict::Processed, _) => done(AlreadyProcessed),
                (Conflict::Auto, Some(Unsure { last: Some(last), .. })) if last >= IN_FLIGHT => done(AlreadyProcessed),
                (Conflict::Auto | Conflict::InFlight, _) => {
                    Verdict { meaning: Meaning::Conflict, state: State::Unknown, doubt: Doubt::Key }
                }
            },
            408 => perhaps(NotNow),
            400..=499 => not(Refused, State::Refused),
            _ => perhaps(NotNow),
        },
    }
}

/// The timeouts that must fit into each other, outermost last, as `(what it is, how long)`. `None`:
/// no limit.
///
/// # Errors
/// Names the two that contradict each other.
pub(crate) fn check_timeouts(money: (&str, Duration), limits: &[(String, Option<Duration>)]) -> Vec<String> {
    let (name, timeout) = money;
    limits
        .iter()
        .filter_map(|(limit, longest)| {
            let longest = (*longest)?;
            (timeout >= longest).then(|| {
                format!(
                    "{name} is {timeout:?}, and {limit} is {longest:?}: a call may take longer than the transaction \
                     that waits for it; shorten the first or lengthen the second"
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(86_400);

    fn unsure(first: u64, last: u64) -> Option<Unsure> {
        Some(Unsure { first: Duration::from_secs(first), last: Some(Duration::from_secs(last)) })
    }

    fn known(state: State, resolved: bool, same_body: bool, unsure: Option<Unsure>) -> Known {
        Known { generation: 2, attempt: 3, state, resolved, same_body, unsure, is_lost: false }
    }

    #[test]
    fn what_was_recorded_decides_whether_a_call_leaves() {
        use State::{Applied, Failed, Refused, Unknown, Waiting};
        let cases = [
            (known(Unknown, false, true, unsure(10, 10)), Before::Again),
            (known(Unknown, false, true, unsure(86_400, 10)), Before::KeyExpired),
            (known(Unknown, false, false, unsure(86_400, 10)), Before::BodyChanged),
            (known(Waiting, false, true, None), Before::Again),
            (known(Waiting, false, false, None), Before::BodyChanged),
            (known(Refused, false, true, None), Before::Again),
            (known(Refused, false, false, None), Before::BodyChanged),
            (known(Applied, false, true, unsure(90_000, 90_000)), Before::AlreadyProcessed),
            (known(Applied, false, false, None), Before::BodyChanged),
            (known(Applied, true, false, None), Before::AlreadyProcessed),
            (known(Failed, true, true, unsure(90_000, 10)), Before::NextGeneration(3)),
            (known(Failed, true, false, None), Before::NextGeneration(3)),
        ];
        for (known, expected) in cases {
            assert_eq!(before(&known, TTL), expected, "{known:?}");
        }
    }

    #[test]
    fn what_a_database_says_that_went_back_lets_nothing_leave() {
        use State::{Applied, Failed, Refused, Unknown, Waiting};
        let known =
            |state, resolved, same_body, unsure| Known { is_lost: true, ..known(state, resolved, same_body, unsure) };
        let cases = [
            (known(Waiting, false, true, None), Before::Lost(2)),
            (known(Refused, false, true, None), Before::Lost(2)),
            (known(Unknown, false, true, unsure(10, 10)), Before::Lost(2)),
            (known(Unknown, false, true, unsure(86_400, 10)), Before::KeyExpired),
            (known(Failed, true, true, None), Before::Lost(3)),
            (known(Failed, true, false, None), Before::Lost(3)),
            (known(Waiting, false, false, None), Before::BodyChanged),
            // What was carried out stays so.
            (known(Applied, false, true, None), Before::AlreadyProcessed),
            (known(Applied, true, false, None), Before::AlreadyProcessed),
        ];
        for (known, expected) in cases {
            assert_eq!(before(&known, TTL), expected, "{known:?}");
        }
    }

    #[test]
    fn every_status_has_one_meaning() {
        use Doubt::{Before, Request};
        use Meaning::{Applied, NotNow, Refused, Unanswered, Unavailable};
        let cases = [
            (Answer::Status(200), Applied, State::Applied, Before),
            (Answer::Status(201), Applied, State::Applied, Before),
            (Answer::Status(204), Applied, State::Applied, Before),
            (Answer::Status(101), NotNow, State::Unknown, Request),
            (Answer::Status(302), Unavailable, State::Unknown, Request),
            (Answer::Status(307), Unavailable, State::Waiting, Before),
            (Answer::Status(400), Refused, State::Refused, Before),
            (Answer::Status(401), Unavailable, State::Waiting, Before),
            (Answer::Status(402), Refused, State::Refused, Before),
            (Answer::Status(403), Unavailable, State::Waiting, Before),
            (Answer::Status(404), Refused, State::Refused, Before),
            (Answer::Status(407), Unavailable, State::Waiting, Before),
            (Answer::Status(408), NotNow, State::Unknown, Request),
            (Answer::Status(422), Refused, State::Refused, Before),
            (Answer::Status(425), NotNow, State::Waiting, Before),
            (Answer::Status(429), NotNow, State::Waiting, Before),
            (Answer::Status(500), NotNow, State::Unknown, Request),
            (Answer::Status(503), NotNow, State::Unknown, Request),
            (Answer::Status(999), NotNow, State::Unknown, Request),
            (Answer::NotSent, Unanswered, State::Waiting, Before),
            (Answer::Nothing, Unanswered, State::Unknown, Request),
        ];
        for (answer, meaning, state, doubt) in cases {
            assert_eq!(after(answer, Conflict::Auto, None), Verdict { meaning, state, doubt }, "{answer:?}");
            // After a request whose answer is missing, only the provider's word on the payment settles it.
            let later = after(answer, Conflict::Auto, unsure(5, 5));
            let settles = matches!(answer, Answer::Status(200..=299 | 402));
            assert_eq!((later.meaning, later.doubt), (meaning, doubt), "{answer:?}");
            assert_eq!(later.state, if settles { state } else { State::Unknown }, "{answer:?}");
        }
    }

    #[test]
    fn a_conflict_is_done_only_after_a_request_that_can_not_be_in_flight_any_more() {
        use Meaning::AlreadyProcessed;
        let cases = [
            (Conflict::Processed, None, AlreadyProcessed),
            (Conflict::InFlight, unsure(600, 600), Meaning::Conflict),
            (Conflict::Auto, None, Meaning::Conflict),
            (Conflict::Auto, unsure(1, 1), Meaning::Conflict),
            (Conflict::Auto, unsure(600, 59), Meaning::Conflict),
            (Conflict::Auto, unsure(600, 60), AlreadyProcessed),
            // Only conflicts so far: no request of ours is known to have reached it before.
            (Conflict::Auto, Some(Unsure { first: Duration::from_secs(600), last: None }), Meaning::Conflict),
        ];
        for (conflict, earlier, expected) in cases {
            let verdict = after(Answer::Status(409), conflict, earlier);
            assert_eq!(verdict.meaning, expected, "{conflict:?} {earlier:?}");
            assert_eq!(verdict.state == State::Applied, expected == AlreadyProcessed);
        }
    }

    #[test]
    fn a_conflict_proves_that_the_provider_knows_the_key() {
        for conflict in [Conflict::Auto, Conflict::InFlight] {
            let verdict = after(Answer::Status(409), conflict, None);
            assert_eq!((verdict.state, verdict.doubt), (State::Unknown, Doubt::Key));
        }
        let since = |secs| Some(Unsure { first: Duration::from_secs(secs), last: None });
        let later = after(Answer::Status(404), Conflict::Auto, since(5));
        assert_eq!((later.meaning, later.state), (Meaning::Refused, State::Unknown));
        let unknown = |unsure| Known {
            generation: 0,
            attempt: 1,
            state: State::Unknown,
            resolved: false,
            same_body: true,
            unsure,
            is_lost: false,
        };
        assert_eq!(before(&unknown(since(86_399)), TTL), Before::Again);
        assert_eq!(before(&unknown(since(86_400)), TTL), Before::KeyExpired);
    }

    #[test]
    fn a_contradiction_names_both_timeouts() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let limits = [
            ("the timeout of a".to_owned(), seconds(10)),
            ("the timeout of b".to_owned(), seconds(11)),
            ("idle_in_transaction_session_timeout".to_owned(), None),
        ];
        let found = check_timeouts(("IDEM_MONEY_TIMEOUT", Duration::from_secs(10)), &limits);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("IDEM_MONEY_TIMEOUT is 10s, and the timeout of a is 10s"), "{found:?}");
    }

    #[test]
    fn states_are_read_back() {
        for state in State::ALL {
            assert_eq!(State::parse(state.as_str()), state);
        }
    }
}
