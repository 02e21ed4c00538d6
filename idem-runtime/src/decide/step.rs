//! What follows from an outcome: the table of outcomes as one function.

use std::time::Duration;

use super::circuit::Verdict;
use super::outcome::{Outcome, Reason};
use super::retry;

/// What happens to the event next.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Step {
    /// Done with it: the watermark moves.
    Advance,
    /// The same event again, in place, after a backoff; no attempt is counted.
    WaitInPlace,
    /// To a retry topic; the watermark moves after the broker's acknowledgement.
    Retry {
        /// The delay of the tier.
        delay: Duration,
    },
    /// To the dead letter queue; the watermark moves after the broker's acknowledgement.
    DeadLetter {
        /// Why, as the header says it.
        reason: Reason,
    },
    /// The program is wrong: the whole run stops, the watermark stays.
    StopRun,
}

/// The step after an outcome of an event that has failed `attempt` times before. `circuit`: what the
/// handler's circuit says of a transient failure; an event that waits for it is never dead-lettered.
pub(crate) fn after(
    outcome: &Outcome,
    attempt: u32,
    tiers: &[Duration],
    unmatched_is_dead: bool,
    circuit: Verdict,
) -> Step {
    match outcome {
        Outcome::Done | Outcome::Duplicate | Outcome::Stale | Outcome::Expired => Step::Advance,
        Outcome::Unmatched if unmatched_is_dead => Step::DeadLetter { reason: Reason::Unmatched },
        Outcome::Unmatched => Step::Advance,
        Outcome::Infrastructure(_) => Step::WaitInPlace,
        Outcome::Transient { .. } if circuit == Verdict::Waits => Step::WaitInPlace,
        Outcome::Transient { panicked, failure } => {
            match retry::tier_not_before(tiers, attempt, failure.retry_after()) {
                Some(delay) => Step::Retry { delay },
                None if *panicked => Step::DeadLetter { reason: Reason::Panic },
                None => Step::DeadLetter { reason: failure.reason().unwrap_or(Reason::Exhausted) },
            }
        }
        Outcome::Permanent { reason, .. } => Step::DeadLetter { reason: *reason },
        Outcome::TransactionEnded => Step::StopRun,
    }
}

/// What became of the event, in a word: for metrics, spans and logs.
pub(crate) fn word(step: &Step, outcome: &Outcome) -> &'static str {
    match step {
        Step::Retry { .. } => "retry",
        Step::DeadLetter { .. } => "dead-letter",
        Step::WaitInPlace | Step::StopRun => "wait",
        Step::Advance => match outcome {
            Outcome::Done => "done",
            Outcome::Duplicate => "duplicate",
            Outcome::Stale => "stale",
            Outcome::Expired => "expired",
            Outcome::Unmatched => "unmatched",
            // Nothing is done with these; named one by one, so that a new outcome needs a word.
            Outcome::Infrastructure(_)
            | Outcome::Transient { .. }
            | Outcome::Permanent { .. }
            | Outcome::TransactionEnded => "wait",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;

    const TIERS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

    fn transient(panicked: bool) -> Outcome {
        Outcome::Transient { failure: Failure::new("later"), panicked }
    }

    #[test]
    fn a_money_call_says_when_to_come_again_and_why_it_ended() {
        use crate::error::HandlerError;
        use crate::money::MoneyError;

        let outcome = |error: MoneyError| Outcome::from(HandlerError::from(error));
        let after = |outcome, attempt| after(&outcome, attempt, &TIERS, false, Verdict::Counts);
        let busy = |seconds| MoneyError::NotNow { status: 429, retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(after(outcome(busy(1)), 0), Step::Retry { delay: TIERS[0] });
        assert_eq!(after(outcome(busy(2)), 0), Step::Retry { delay: TIERS[1] });
        assert_eq!(after(outcome(busy(1)), 2), Step::DeadLetter { reason: Reason::Exhausted });
        assert_eq!(after(outcome(MoneyError::Conflict), 0), Step::Retry { delay: TIERS[0] });
        assert_eq!(after(outcome(MoneyError::Conflict), 2), Step::DeadLetter { reason: Reason::Conflict });
        assert_eq!(after(outcome(MoneyError::BodyChanged), 0), Step::DeadLetter { reason: Reason::BodyChanged });
        assert_eq!(after(outcome(MoneyError::KeyExpired), 0), Step::DeadLetter { reason: Reason::KeyExpired });
        let refused = MoneyError::Refused { status: 422, body: Vec::new() };
        assert_eq!(after(outcome(refused), 0), Step::DeadLetter { reason: Reason::Permanent });
        assert_eq!(after(outcome(MoneyError::Unavailable { status: 401 }), 9), Step::WaitInPlace);
    }

    #[test]
    fn every_outcome_has_its_step() {
        let permanent = |reason| Outcome::Permanent { reason, failure: Failure::new("never") };
        let infrastructure = Outcome::Infrastructure(Failure::new("database away"));
        let dead = |reason| Step::DeadLetter { reason };
        let cases = [
            (Outcome::Done, 0, false, Step::Advance),
            (Outcome::Duplicate, 0, false, Step::Advance),
            (Outcome::Stale, 0, false, Step::Advance),
            (Outcome::Expired, 3, true, Step::Advance),
            (Outcome::Unmatched, 0, false, Step::Advance),
            (Outcome::Unmatched, 0, true, dead(Reason::Unmatched)),
            (infrastructure, 9, false, Step::WaitInPlace),
            (transient(false), 0, false, Step::Retry { delay: TIERS[0] }),
            (transient(false), 1, false, Step::Retry { delay: TIERS[1] }),
            (transient(false), 2, false, dead(Reason::Exhausted)),
            (transient(true), 1, false, Step::Retry { delay: TIERS[1] }),
            (transient(true), 2, false, dead(Reason::Panic)),
            (transient(false), u32::MAX, false, dead(Reason::Exhausted)),
            (permanent(Reason::Null), 0, false, dead(Reason::Null)),
            (permanent(Reason::Permanent), 1, false, dead(Reason::Permanent)),
            (Outcome::TransactionEnded, 0, false, Step::StopRun),
        ];
        for (outcome, attempt, unmatched_is_dead, expected) in cases {
            let step = after(&outcome, attempt, &TIERS, unmatched_is_dead, Verdict::Counts);
            assert_eq!(step, expected, "{outcome:?} at attempt {attempt}");
            let word = word(&step, &outcome);
            let is_settled = !matches!(step, Step::WaitInPlace | Step::StopRun);
            assert_eq!(crate::telemetry::OUTCOMES.contains(&word), is_settled, "what is settled is counted: {word}");
        }
        assert_eq!(after(&transient(false), 0, &[], false, Verdict::Counts), dead(Reason::Exhausted), "retry = []");
        for attempt in [0, 9] {
            assert_eq!(after(&transient(true), attempt, &TIERS, false, Verdict::Waits), Step::WaitInPlace);
        }
    }
}
