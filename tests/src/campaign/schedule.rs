//! What goes wrong, and when: a pure function of the seed.
//!
//! Faults are dealt like cards: every one comes up before any comes again, in another order each time.
//! Members and servers have a deck each, so that a process is killed while a server is failing.

use std::time::Duration;

use serde::Serialize;

/// What happens to the processes with the handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberFault {
    /// SIGKILL, and started again.
    Kill,
    /// SIGSTOP for less than the session timeout.
    PauseBriefly,
    /// SIGSTOP for longer than the session timeout: others take over, and it comes back as a zombie.
    PausePastSession,
    /// SIGSTOP for longer than `max.poll.interval.ms`.
    PausePastPoll,
    /// SIGTERM, and started again.
    Terminate,
    /// SIGTERM one after another, each started again.
    RollingRestart,
    /// One more joins and leaves again.
    JoinAndLeave,
}

/// What happens to everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerFault {
    BrokerKilled,
    BrokerRestarted,
    /// SIGSTOP: connections stay, and nobody answers.
    BrokerStalled,
    ControllerKilled,
    /// The retry topics take no record.
    RetriesRefused,
    PostgresRestartedFast,
    PostgresRestartedImmediate,
    BackendsTerminated,
    /// The database comes back from an earlier base backup; Kafka is current.
    PostgresRestored,
    /// A replica that lags takes over from a primary that has ended.
    PostgresFailedOver,
    /// The same without a gap, and while nothing happens: nobody notices by an error.
    PostgresSwitchedOver,
    /// Connections are cut before COMMIT reaches the server.
    CutBeforeCommit,
    /// Connections are cut when COMMIT was carried out, before the client hears of it.
    CommitReplyLost,
    ConnectionsCut,
    DatabaseSlow,
    /// Connections to the database stay, and nothing goes through.
    DatabaseBlackhole,
    /// Answers of the provider are lost after charging.
    AnswersLost,
    /// The provider answers 503.
    ProviderDown,
    /// The provider answers 401 to everything.
    ProviderRefuses,
    /// The provider loses answers, and then answers 401 for longer than it remembers keys.
    KeysRunOut,
    /// The provider answers 401 for longer than it remembers keys; meanwhile the database comes back from an
    /// earlier base backup.
    KeysRunOutOverRestore,
    ProducerClockAhead,
    ProducerClockFarAhead,
    ProducerClockBehind,
    /// Dedup partitions are swept, and a day is emptied under redeliveries of it.
    Maintenance,
}

impl ServerFault {
    /// Whether a broker or the database fails, rather than something beside them.
    #[must_use]
    pub fn is_of_broker_or_database(self) -> bool {
        use ServerFault::*;
        matches!(
            self,
            BrokerKilled
                | BrokerRestarted
                | BrokerStalled
                | ControllerKilled
                | RetriesRefused
                | PostgresRestartedFast
                | PostgresRestartedImmediate
                | BackendsTerminated
                | PostgresRestored
                | PostgresFailedOver
                | PostgresSwitchedOver
                | KeysRunOutOverRestore
        )
    }
}

/// The faults of members: mostly kills.
pub const MEMBER_DECK: &[(MemberFault, usize)] = &[
    (MemberFault::Kill, 24),
    (MemberFault::PauseBriefly, 2),
    (MemberFault::PausePastSession, 1),
    (MemberFault::PausePastPoll, 1),
    (MemberFault::Terminate, 2),
    (MemberFault::RollingRestart, 1),
    (MemberFault::JoinAndLeave, 1),
];

/// The faults of everything else.
pub const SERVER_DECK: &[(ServerFault, usize)] = &[
    (ServerFault::BrokerKilled, 1),
    (ServerFault::BrokerRestarted, 1),
    (ServerFault::BrokerStalled, 1),
    (ServerFault::ControllerKilled, 1),
    (ServerFault::RetriesRefused, 1),
    (ServerFault::PostgresRestartedFast, 1),
    (ServerFault::PostgresRestartedImmediate, 1),
    (ServerFault::BackendsTerminated, 1),
    (ServerFault::PostgresRestored, 1),
    (ServerFault::PostgresFailedOver, 1),
    (ServerFault::PostgresSwitchedOver, 1),
    (ServerFault::CutBeforeCommit, 1),
    (ServerFault::CommitReplyLost, 1),
    (ServerFault::ConnectionsCut, 1),
    (ServerFault::DatabaseSlow, 1),
    (ServerFault::DatabaseBlackhole, 1),
    (ServerFault::AnswersLost, 1),
    (ServerFault::ProviderDown, 1),
    (ServerFault::ProviderRefuses, 1),
    (ServerFault::KeysRunOut, 1),
    (ServerFault::KeysRunOutOverRestore, 1),
    (ServerFault::ProducerClockAhead, 1),
    (ServerFault::ProducerClockFarAhead, 1),
    (ServerFault::ProducerClockBehind, 1),
    (ServerFault::Maintenance, 1),
];

/// A fault, how long after the end of the one before it begins, and a number that decides the rest: which
/// member, how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<F> {
    pub pause: Duration,
    pub fault: F,
    pub dice: u64,
}

impl<F> Step<F> {
    /// A duration in this range, in milliseconds, by the dice.
    #[must_use]
    pub fn millis(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.dice / 64 % (to - from))
    }
}

/// Deals faults for ever, with pauses in this range of milliseconds.
pub fn deal<F: Copy>(
    seed: u64,
    deck: &[(F, usize)],
    pauses: std::ops::Range<u64>,
) -> impl Iterator<Item = Step<F>> + use<F> {
    let cards: Vec<F> = deck.iter().flat_map(|&(fault, times)| std::iter::repeat_n(fault, times)).collect();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut hand = Vec::new();
    std::iter::from_fn(move || {
        if hand.is_empty() {
            hand.clone_from(&cards);
            rng.shuffle(&mut hand);
        }
        let fault = hand.pop()?;
        let pause = Duration::from_millis(rng.u64(pauses.clone()));
        Some(Step { pause, fault, dice: rng.u64(..) })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_deals_the_same_faults_each_time_and_every_fault_before_any_comes_again() {
        let of = |seed| deal(seed, SERVER_DECK, 3_000..8_000).take(SERVER_DECK.len() * 20).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        for hand in of(3).chunks(SERVER_DECK.len()) {
            let faults: HashSet<ServerFault> = hand.iter().map(|step| step.fault).collect();
            assert_eq!(faults.len(), SERVER_DECK.len());
        }
        assert!(of(4).iter().all(|step| (3_000..8_000).contains(&step.pause.as_millis())));
    }

    #[test]
    fn no_server_fault_is_missing_from_the_deck() {
        let dealt: HashSet<ServerFault> = SERVER_DECK.iter().map(|&(fault, _)| fault).collect();
        assert_eq!(dealt.len(), SERVER_DECK.len());
        assert_eq!(dealt.iter().filter(|fault| fault.is_of_broker_or_database()).count(), 12);
    }
}
