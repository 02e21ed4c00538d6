//! The circuit of a handler: when all its events fail for one cause, the events are not to blame.

/// Different events in a row that must fail transiently for one cause, with no other event between
/// them that ended otherwise, before the circuit opens.
pub(crate) const THRESHOLD: usize = 10;
/// First pause between two probes; it doubles with each one that fails.
const FIRST_PAUSE_MILLIS: u64 = 1_000;
/// Longest pause between two probes.
const LONGEST_PAUSE_MILLIS: u64 = 30_000;
/// How long one event may be the probe. Then it is moved to a retry tier after all, if it has one
/// left, so that an event that fails for its own reasons can't keep the circuit open for ever.
const PATIENCE_MILLIS: u64 = 600_000;

/// Which event: topic, partition and offset of its origin.
pub(crate) type EventKey = (std::sync::Arc<str>, i32, i64);

/// The circuit of one handler in one process. Times are milliseconds on any steady clock.
#[derive(Debug, Default)]
pub(crate) struct Circuit {
    state: State,
}

#[derive(Debug)]
enum State {
    Closed { cause: String, failed: Vec<EventKey> },
    Open { cause: String, next_probe: u64, pause: u64, probe: Option<Probe> },
}

#[derive(Debug)]
struct Probe {
    event: EventKey,
    since: u64,
    running: bool,
}

impl Default for State {
    fn default() -> Self {
        Self::Closed { cause: String::new(), failed: Vec::new() }
    }
}

/// Whether an event may run.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Admission {
    /// It may.
    Run,
    /// It is to ask again in this many milliseconds.
    Wait(u64),
}

/// What an attempt says of the handler's surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note<'a> {
    /// It ended without needing them to be blamed: a success, or a failure of the event's own.
    Well,
    /// It failed transiently for this cause.
    Failed(&'a str),
    /// Nothing: it did not come as far.
    Nothing,
}

/// What follows for the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// Its outcome counts as usual.
    Counts,
    /// It waits in place, and no attempt is counted.
    Waits,
}

impl Circuit {
    /// Whether it is open.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Asks for an event to run.
    pub(crate) fn admit(&mut self, event: &EventKey, now: u64) -> Admission {
        let State::Open { next_probe, pause, probe, .. } = &mut self.state else { return Admission::Run };
        if probe.as_ref().is_some_and(|probe| probe.running) {
            return Admission::Wait((*pause).min(FIRST_PAUSE_MILLIS));
        }
        if now < *next_probe {
            return Admission::Wait(*next_probe - now);
        }
        let since = probe.as_ref().filter(|probe| probe.event == *event).map_or(now, |probe| probe.since);
        *probe = Some(Probe { event: event.clone(), since, running: true });
        Admission::Run
    }

    /// Notes how an attempt ended.
    pub(crate) fn note(&mut self, event: &EventKey, note: Note<'_>, now: u64) -> Verdict {
        match (&mut self.state, note) {
            (State::Closed { .. }, Note::Nothing) => Verdict::Counts,
            (State::Closed { failed, .. }, Note::Well) => {
                failed.clear();
                Verdict::Counts
            }
            (State::Closed { cause, failed }, Note::Failed(with)) => {
                if cause != with {
                    *cause = with.to_owned();
                    failed.clear();
                }
                if !failed.contains(event) {
                    failed.push(event.clone());
                }
                if failed.len() < THRESHOLD {
                    return Verdict::Counts;
                }
                let cause = std::mem::take(cause);
                self.state =
                    State::Open { cause, next_probe: now + FIRST_PAUSE_MILLIS, pause: FIRST_PAUSE_MILLIS, probe: None };
                Verdict::Waits
            }
            (State::Open { cause, next_probe, pause, probe }, note) => {
                let probing = probe.as_mut().filter(|probe| probe.event == *event && probe.running);
                match (note, probing) {
                    (Note::Failed(with), probing) if with == cause => {
                        let Some(probe) = probing else { return Verdict::Waits };
                        probe.running = false;
                        *pause = (*pause * 2).min(LONGEST_PAUSE_MILLIS);
                        *next_probe = now + *pause;
                        if now.saturating_sub(probe.since) < PATIENCE_MILLIS { Verdict::Waits } else { Verdict::Counts }
                    }
                    (Note::Nothing, probing) => {
                        if let Some(probe) = probing {
                            probe.running = false;
                        }
                        Verdict::Counts
                    }
                    // A probe that ends otherwise, well or for another cause: this one is gone. So is it
                    // when an event ends well that was running when the circuit opened.
                    (Note::Well, _) | (Note::Failed(_), Some(_)) => {
                        self.state = State::default();
                        Verdict::Counts
                    }
                    (Note::Failed(_), None) => Verdict::Counts,
                }
            }
        }
    }

    /// Notes that an admitted event was abandoned before it ended.
    pub(crate) fn abandon(&mut self, event: &EventKey) {
        if let State::Open { probe: Some(probe), .. } = &mut self.state
            && probe.event == *event
        {
            probe.running = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(offset: usize) -> EventKey {
        ("orders".into(), 0, i64::try_from(offset).unwrap())
    }

    fn opened() -> Circuit {
        let mut circuit = Circuit::default();
        for offset in 0..THRESHOLD - 1 {
            assert_eq!(circuit.note(&event(offset), Note::Failed("away"), 0), Verdict::Counts);
        }
        assert!(!circuit.is_open());
        assert_eq!(circuit.note(&event(99), Note::Failed("away"), 0), Verdict::Waits);
        assert!(circuit.is_open());
        circuit
    }

    #[test]
    fn one_event_that_fails_again_and_again_does_not_open_it() {
        let mut circuit = Circuit::default();
        for _ in 0..100 {
            assert_eq!(circuit.note(&event(1), Note::Failed("away"), 0), Verdict::Counts);
        }
        assert!(!circuit.is_open());
    }

    #[test]
    fn a_success_or_another_cause_between_starts_anew() {
        for between in [Note::Well, Note::Failed("other")] {
            let mut circuit = Circuit::default();
            for offset in 0..THRESHOLD * 3 {
                let note = if offset % (THRESHOLD - 1) == 0 { between } else { Note::Failed("away") };
                assert_eq!(circuit.note(&event(offset), note, 0), Verdict::Counts);
            }
            assert!(!circuit.is_open());
        }
    }

    #[test]
    fn open_it_lets_one_probe_through_at_a_time_with_growing_pauses() {
        let mut circuit = opened();
        assert_eq!(circuit.admit(&event(1), 400), Admission::Wait(600));
        let mut now = 1_000;
        for pause in [2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert_eq!(circuit.admit(&event(1), now), Admission::Run);
            assert_eq!(circuit.admit(&event(2), now), Admission::Wait(1_000), "one probe at a time");
            assert_eq!(circuit.note(&event(1), Note::Failed("away"), now), Verdict::Waits);
            assert_eq!(circuit.admit(&event(2), now), Admission::Wait(pause));
            now += pause;
        }
    }

    #[test]
    fn what_was_running_when_it_opened_waits_too() {
        let mut circuit = opened();
        assert_eq!(circuit.note(&event(50), Note::Failed("away"), 10), Verdict::Waits);
        assert_eq!(circuit.note(&event(51), Note::Failed("other"), 10), Verdict::Counts);
        assert!(circuit.is_open());
    }

    #[test]
    fn a_probe_that_ends_otherwise_closes_it() {
        for note in [Note::Well, Note::Failed("other")] {
            let mut circuit = opened();
            assert_eq!(circuit.admit(&event(1), 1_000), Admission::Run);
            assert_eq!(circuit.note(&event(1), note, 1_000), Verdict::Counts);
            assert!(!circuit.is_open());
            assert_eq!(circuit.admit(&event(2), 1_000), Admission::Run);
        }
    }

    #[test]
    fn a_probe_that_learns_nothing_or_is_abandoned_leaves_its_place() {
        let mut circuit = opened();
        assert_eq!(circuit.admit(&event(1), 1_000), Admission::Run);
        assert_eq!(circuit.note(&event(1), Note::Nothing, 1_000), Verdict::Counts);
        assert_eq!(circuit.admit(&event(2), 1_000), Admission::Run);
        circuit.abandon(&event(2));
        assert_eq!(circuit.admit(&event(3), 1_000), Admission::Run);
    }

    #[test]
    fn an_event_is_not_the_probe_for_ever() {
        let mut circuit = opened();
        let (mut now, mut verdict) = (1_000, Verdict::Waits);
        let start = now;
        while verdict == Verdict::Waits {
            match circuit.admit(&event(1), now) {
                Admission::Wait(millis) => now += millis,
                Admission::Run => verdict = circuit.note(&event(1), Note::Failed("away"), now),
            }
        }
        assert!((600_000..660_000).contains(&(now - start)), "{}", now - start);
        assert!(circuit.is_open());
    }
}
