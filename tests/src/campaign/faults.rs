//! Carries out the faults of everything but the members.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_runtime::testing::{Provider, ProviderFault, Signal};

use super::cluster::Cluster;
use super::database::{Backup, Database, Replica};
use super::load::{Clock, GROUPS};
use super::producer::{Lull, Strings};
use super::schedule::{ServerFault, Step};
use super::timeline::Timeline;
use super::watch::Watch;
use super::{RETRIES, name};
use crate::Fault;

/// The servers of a campaign.
pub struct Servers {
    pub kafka: Cluster,
    pub database: Database,
    pub provider: Provider,
    pub producer: Strings,
    pub watch: Watch,
    pub timeline: Arc<Timeline>,
    /// The service's program and its environment, for the maintenance that an operator asks for.
    pub service: (PathBuf, Vec<(String, String)>),
    /// How far the producer's clock is behind each time: what was emptied once is forgotten, with all days
    /// before it.
    pub days_behind: std::vec::IntoIter<u8>,
    /// How long the provider remembers keys.
    pub memory: Duration,
    /// When the database went back, milliseconds since the campaign began.
    pub rewinds: Vec<i64>,
    pub days_emptied: usize,
}

/// Before all days that the dedup table has a partition for.
const BEFORE_ALL_DAYS: u8 = 20;

/// Longer than a member takes to record how far it is.
const ALL_RECORDED: Duration = Duration::from_millis(2_500);

/// So many answers are lost before keys run out, or as many as get lost in this time.
const ANSWERS_LOST: u64 = 5;
const LOSING: Duration = Duration::from_secs(3);

/// How often maintenance is asked for that did not get its lock.
const MAINTENANCE: usize = 3;

impl Servers {
    /// Lets faults happen one after another, until the end.
    pub async fn suffer(&mut self, schedule: impl Iterator<Item = Step<ServerFault>>, end: Instant) {
        for step in schedule {
            if Instant::now() + step.pause >= end {
                break;
            }
            tokio::time::sleep(step.pause).await;
            self.timeline.note(name(step.fault));
            self.timeline.count(&name(step.fault));
            self.carry_out(step).await;
        }
    }

    /// A fault that was counted and did not happen proves nothing.
    pub fn complain_of_what_did_not_happen(&self) {
        let counts = self.timeline.counts();
        let proxy = &self.database.proxy;
        let happened = [
            (ServerFault::CutBeforeCommit, proxy.count(Fault::CutBefore), "no COMMIT was cut"),
            (ServerFault::CommitReplyLost, proxy.count(Fault::LoseReply), "no COMMIT's reply was lost"),
            (ServerFault::ProducerClockBehind, self.days_emptied, "no day of the dedup table was emptied"),
        ];
        for (fault, times, nothing) in happened {
            if times == 0 && counts.contains_key(&name(fault)) {
                self.timeline.complain(format!("{}: {nothing}", name(fault)));
            }
        }
    }

    async fn carry_out(&mut self, step: Step<ServerFault>) {
        let broker = usize::try_from(step.dice % 64).unwrap_or(0) % self.kafka.size();
        match step.fault {
            ServerFault::BrokerKilled => self.broker_away(broker, Signal::Kill, &step).await,
            ServerFault::BrokerRestarted => self.broker_away(broker, Signal::Terminate, &step).await,
            ServerFault::BrokerStalled => {
                let _outage = self.watch.outage();
                self.kafka.signal(broker, Signal::Stop);
                tokio::time::sleep(step.millis(3_000, 8_000)).await;
                self.kafka.signal(broker, Signal::Continue);
            }
            ServerFault::ControllerKilled => {
                let controller = self.kafka.controller().await;
                self.broker_away(controller, Signal::Kill, &step).await;
            }
            ServerFault::RetriesRefused => self.retries_refused(step.millis(3_000, 6_000)).await,
            ServerFault::PostgresRestartedFast => self.postgres_restarted(Signal::Interrupt).await,
            ServerFault::PostgresRestartedImmediate => self.postgres_restarted(Signal::Quit).await,
            ServerFault::BackendsTerminated => self.database.terminate_backends().await,
            ServerFault::PostgresRestored => {
                let backup = self.database.back_up().await;
                tokio::time::sleep(step.millis(3_000, 7_000)).await;
                let _lull = self.lull(&step).await;
                let _outage = self.watch.outage();
                self.restore(backup).await;
            }
            ServerFault::PostgresFailedOver => {
                let replica = self.lagging_replica(&step).await;
                let _lull = self.lull(&step).await;
                self.fail_over(replica, false).await;
            }
            ServerFault::PostgresSwitchedOver => {
                let replica = self.lagging_replica(&step).await;
                let _lull = self.rest().await;
                self.fail_over(replica, true).await;
            }
            ServerFault::CutBeforeCommit => self.at_commits(Fault::CutBefore, &step).await,
            ServerFault::CommitReplyLost => self.at_commits(Fault::LoseReply, &step).await,
            ServerFault::ConnectionsCut => self.database.proxy.cut_all(),
            ServerFault::DatabaseSlow => {
                let _outage = self.watch.outage();
                self.database.proxy.delay(step.millis(10, 60));
                tokio::time::sleep(step.millis(3_000, 6_000)).await;
                self.database.proxy.delay(Duration::ZERO);
            }
            ServerFault::DatabaseBlackhole => {
                let _outage = self.watch.outage();
                self.database.proxy.freeze(true);
                tokio::time::sleep(step.millis(2_000, 8_000)).await;
                self.database.proxy.freeze(false);
            }
            ServerFault::AnswersLost => self.provider_fails(ProviderFault::DropAfter, step.millis(300, 900)).await,
            ServerFault::ProviderDown => self.provider_fails(ProviderFault::Status(503), step.millis(500, 1_000)).await,
            ServerFault::ProviderRefuses => {
                self.provider_fails(ProviderFault::Status(401), step.millis(3_000, 6_000)).await;
            }
            ServerFault::ProducerClockAhead => self.producer_clock(Clock::Ahead, &step).await,
            ServerFault::ProducerClockFarAhead => self.producer_clock(Clock::FarAhead, &step).await,
            ServerFault::KeysRunOut => self.keys_run_out().await,
            ServerFault::KeysRunOutOverRestore => self.keys_run_out_over_restore(&step).await,
            ServerFault::ProducerClockBehind => {
                if self.days_emptied == 0 {
                    self.producer.set_clock(Clock::Behind(BEFORE_ALL_DAYS));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                let days = self.days_behind.next().unwrap_or(2);
                self.producer.set_clock(Clock::Behind(days));
                tokio::time::sleep(step.millis(2_000, 5_000)).await;
                // While events of that day still come.
                self.maintain().await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                self.producer.set_clock(Clock::Right);
            }
            ServerFault::Maintenance => self.maintain().await,
        }
    }

    async fn broker_away(&mut self, at: usize, signal: Signal, step: &Step<ServerFault>) {
        let _outage = self.watch.outage();
        self.kafka.end(at, signal).await;
        tokio::time::sleep(step.millis(500, 4_000)).await;
        self.kafka.start_again(at).await;
    }

    async fn postgres_restarted(&mut self, signal: Signal) {
        let _outage = self.watch.outage();
        self.database.restart(signal).await;
    }

    /// More replicas than there are must confirm: the brokers refuse what is produced.
    async fn retries_refused(&self, time: Duration) {
        let _outage = self.watch.outage();
        self.alter_retries(&[("retention.ms", "-1"), ("min.insync.replicas", "4")]).await;
        tokio::time::sleep(time).await;
        self.alter_retries(&[("retention.ms", "-1")]).await;
    }

    async fn alter_retries(&self, config: &[(&str, &str)]) {
        for group in GROUPS {
            for delay in RETRIES {
                self.kafka.client.alter_topic(&format!("{group}.retry.{delay}"), config).await;
            }
        }
    }

    /// The next COMMITs end badly.
    async fn at_commits(&self, fault: Fault, step: &Step<ServerFault>) {
        self.database.proxy.arm(fault, "commit", usize::try_from(step.dice % 20).unwrap_or(0) + 5);
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.database.proxy.arm(fault, "commit", 0);
    }

    async fn provider_fails(&self, fault: ProviderFault, time: Duration) {
        let _outage = self.watch.outage();
        self.provider.always(Some(fault));
        tokio::time::sleep(time).await;
        self.provider.always(None);
    }

    /// What was charged, and nobody has heard of it, can't be asked for again in the end.
    async fn keys_run_out(&mut self) {
        let _outage = self.watch.outage();
        let (begun, lost) = (Instant::now(), self.provider.lost_answers());
        self.provider.always(Some(ProviderFault::DropAfter));
        while self.provider.lost_answers() < lost + ANSWERS_LOST && begun.elapsed() < LOSING {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.refuse_until_keys_are_forgotten(Instant::now()).await;
    }

    /// The same where it was heard of, and the database has lost all that it knew of it.
    async fn keys_run_out_over_restore(&mut self, step: &Step<ServerFault>) {
        let backup = self.database.back_up().await;
        tokio::time::sleep(step.millis(1_000, 3_000)).await;
        let _outage = self.watch.outage();
        self.provider.always(Some(ProviderFault::Status(401)));
        let refused = Instant::now();
        self.restore(backup).await;
        self.refuse_until_keys_are_forgotten(refused).await;
    }

    async fn refuse_until_keys_are_forgotten(&self, since: Instant) {
        self.provider.always(Some(ProviderFault::Status(401)));
        tokio::time::sleep((self.memory + Duration::from_secs(1)).saturating_sub(since.elapsed())).await;
        self.provider.always(None);
    }

    async fn restore(&mut self, backup: Backup) {
        self.timeline.note("the backup comes back");
        self.database.restore(backup).await;
        self.note_rewind();
    }

    fn note_rewind(&mut self) {
        self.rewinds.push(self.timeline.millis().cast_signed());
    }

    async fn lagging_replica(&mut self, step: &Step<ServerFault>) -> Replica {
        let replica = self.database.replica().await;
        replica.lag().await;
        tokio::time::sleep(step.millis(1_500, 5_000)).await;
        replica
    }

    async fn fail_over(&mut self, replica: Replica, without_gap: bool) {
        self.timeline.note("the replica takes over");
        let _outage = self.watch.outage();
        self.database.fail_over(replica, without_gap).await;
        self.note_rewind();
    }

    /// Half of the times the load rests before something happens.
    async fn lull(&self, step: &Step<ServerFault>) -> Option<Lull> {
        if step.dice >> 32 & 1 == 0 { None } else { Some(self.rest().await) }
    }

    /// Lets everybody come to rest and record how far they are.
    async fn rest(&self) -> Lull {
        self.timeline.note("a lull");
        let lull = self.producer.lull();
        tokio::time::sleep(ALL_RECORDED).await;
        lull
    }

    async fn producer_clock(&self, clock: Clock, step: &Step<ServerFault>) {
        self.producer.set_clock(clock);
        tokio::time::sleep(step.millis(2_000, 5_000)).await;
        self.producer.set_clock(Clock::Right);
    }

    /// What an operator may ask for at any time. It waits for nobody's lock for long, so it may have to be asked
    /// for again.
    async fn maintain(&mut self) {
        for _ in 0..MAINTENANCE {
            let (program, variables) = self.service.clone();
            let maintain = move || {
                let mut command = Command::new(program);
                command.arg("maintain").envs(variables).stdin(Stdio::null()).output()
            };
            let output = tokio::task::spawn_blocking(maintain).await.expect("no panic").expect("the service starts");
            let said = String::from_utf8_lossy(&output.stdout);
            self.timeline.note(format!("maintenance ({}): {}", output.status, said.trim()));
            self.days_emptied += said.lines().filter(|line| line.starts_with("emptied ")).count();
            if output.status.success() {
                return;
            }
        }
        self.timeline.complain(format!("maintenance failed {MAINTENANCE} times in a row"));
    }
}
