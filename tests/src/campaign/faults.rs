//! Carries out the faults of everything but the members.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use idem_runtime::testing::{Provider, ProviderFault, Signal};

use super::cluster::Cluster;
use super::database::Database;
use super::load::{Clock, GROUPS};
use super::producer::ProducerClock;
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
    pub clock: ProducerClock,
    pub watch: Watch,
    pub timeline: Arc<Timeline>,
    /// The service's program and its environment, for the maintenance that an operator asks for.
    pub service: (PathBuf, Vec<(String, String)>),
    /// How far the producer's clock is behind each time: what was emptied once is forgotten, with all days
    /// before it. The first one lies before all days.
    pub days_behind: std::vec::IntoIter<u8>,
}

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
                self.timeline.note("the backup comes back");
                let _outage = self.watch.outage();
                self.database.restore(backup).await;
            }
            ServerFault::PostgresFailedOver => {
                let replica = self.database.replica().await;
                replica.lag().await;
                tokio::time::sleep(step.millis(1_500, 5_000)).await;
                self.timeline.note("the replica takes over");
                let _outage = self.watch.outage();
                self.database.fail_over(replica).await;
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
            ServerFault::ProviderDown => self.provider_fails(ProviderFault::Status(503), step.millis(500, 1_500)).await,
            ServerFault::ProviderRefuses => {
                self.provider_fails(ProviderFault::Status(401), step.millis(3_000, 6_000)).await;
            }
            ServerFault::ProducerClockAhead => self.producer_clock(Clock::Ahead, &step).await,
            ServerFault::ProducerClockFarAhead => self.producer_clock(Clock::FarAhead, &step).await,
            ServerFault::ProducerClockBehind => {
                let days = self.days_behind.next().unwrap_or(2);
                self.set_clock(Clock::Behind(days));
                tokio::time::sleep(step.millis(2_000, 5_000)).await;
                // While events of that day still come.
                self.maintain().await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                self.set_clock(Clock::Right);
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

    async fn producer_clock(&self, clock: Clock, step: &Step<ServerFault>) {
        self.set_clock(clock);
        tokio::time::sleep(step.millis(2_000, 5_000)).await;
        self.set_clock(Clock::Right);
    }

    fn set_clock(&self, clock: Clock) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = clock;
    }

    /// What an operator may ask for at any time.
    async fn maintain(&self) {
        let (program, variables) = self.service.clone();
        let maintain = move || {
            let mut command = Command::new(program);
            command.arg("maintain").envs(variables).stdin(Stdio::null()).output()
        };
        let output = tokio::task::spawn_blocking(maintain).await.expect("no panic").expect("the service starts");
        let said = String::from_utf8_lossy(&output.stdout);
        self.timeline.note(format!("maintenance ({}): {}", output.status, said.trim()));
    }
}
