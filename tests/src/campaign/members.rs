//! The processes with the handlers, and what happens to them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_runtime::testing::Signal;
use uuid::Uuid;

use super::SESSION_TIMEOUT;
use super::checker::Place;
use super::load::Subject;
use super::schedule::{MemberFault, Step};
use super::timeline::Timeline;
use crate::Program;

/// How long a process may take that was asked to end: its grace period and a little.
const ENDING: Duration = Duration::from_secs(20);

/// So many lines of its log are shown of a process that did not end as it should.
const LAST_WORDS: usize = 12;

/// The members of the groups.
pub struct Members {
    program: PathBuf,
    variables: Vec<(String, String)>,
    running: Vec<Program>,
    timeline: Arc<Timeline>,
    /// What brokers have acknowledged to the relays of processes that have ended.
    acknowledged: Vec<(Uuid, Place)>,
    /// How often one was killed.
    pub kills: u64,
}

impl Members {
    /// Starts so many.
    #[must_use]
    pub fn start(program: PathBuf, variables: Vec<(String, String)>, count: usize, timeline: Arc<Timeline>) -> Self {
        let mut members =
            Self { program, variables, running: Vec::new(), timeline, acknowledged: Vec::new(), kills: 0 };
        members.running = (0..count).map(|_| members.one()).collect();
        members
    }

    /// Lets faults happen one after another, until the end.
    pub async fn suffer(&mut self, schedule: impl Iterator<Item = Step<MemberFault>>, end: Instant) {
        for step in schedule {
            if Instant::now() + step.pause >= end {
                break;
            }
            tokio::time::sleep(step.pause).await;
            self.restart_what_ended();
            self.timeline.count(&super::name(step.fault));
            self.carry_out(step).await;
        }
        self.restart_what_ended();
    }

    async fn carry_out(&mut self, step: Step<MemberFault>) {
        let at = usize::try_from(step.dice % 64).unwrap_or(0) % self.running.len();
        match step.fault {
            MemberFault::Kill => {
                self.timeline.note(format!("member {at} is killed"));
                self.running[at].signal(Signal::Kill);
                let _ = self.running[at].wait(ENDING).await;
                self.kills += 1;
                self.replace(at);
            }
            MemberFault::PauseBriefly => self.pause(at, step.millis(500, 2_500)).await,
            MemberFault::PausePastSession => {
                self.pause(at, SESSION_TIMEOUT + step.millis(1_500, 3_000)).await;
            }
            MemberFault::PausePastPoll => self.pause(at, super::MAX_POLL + step.millis(1_500, 3_500)).await,
            MemberFault::Terminate => self.terminate(at).await,
            MemberFault::RollingRestart => {
                for at in 0..self.running.len() {
                    self.terminate(at).await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
            MemberFault::JoinAndLeave => {
                self.timeline.note("one more member joins");
                let mut guest = self.one();
                tokio::time::sleep(step.millis(4_000, 8_000)).await;
                self.timeline.note("it leaves");
                guest.terminate();
                self.see_off(guest).await;
            }
        }
    }

    async fn pause(&mut self, at: usize, time: Duration) {
        self.timeline.note(format!("member {at} is stopped for {:.1} s", time.as_secs_f64()));
        self.running[at].pause();
        tokio::time::sleep(time).await;
        self.running[at].resume();
    }

    async fn terminate(&mut self, at: usize) {
        self.timeline.note(format!("member {at} is asked to end"));
        self.running[at].terminate();
        let next = self.one();
        let leaving = std::mem::replace(&mut self.running[at], next);
        self.see_off(leaving).await;
    }

    /// Waits until a process that was asked to end has done so in time.
    async fn see_off(&mut self, mut leaving: Program) {
        let asked = Instant::now();
        while leaving.ended().is_none() && asked.elapsed() < ENDING {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        match leaving.ended() {
            None => self.timeline.complain(format!("a member did not end within {ENDING:?} after SIGTERM")),
            Some(status) if !status.success() => {
                let said = last_words(&leaving, LAST_WORDS);
                self.timeline.complain(format!("a member ended with {status} after SIGTERM; it said:\n{said}"));
            }
            Some(_) => {}
        }
        self.acknowledged.extend(acknowledged(&leaving));
    }

    /// Starts another one in the place of one that has ended.
    fn replace(&mut self, at: usize) {
        self.acknowledged.extend(acknowledged(&self.running[at]));
        self.running[at] = self.one();
    }

    /// A process that ended by itself is started again, and complained of.
    pub fn restart_what_ended(&mut self) {
        for at in 0..self.running.len() {
            if let Some(status) = self.running[at].ended() {
                let said = last_words(&self.running[at], LAST_WORDS);
                self.timeline.complain(format!("member {at} ended by itself ({status}); it said:\n{said}"));
                self.replace(at);
            }
        }
    }

    /// Starts what ends by itself again, until it is dropped.
    pub async fn keep_running(&mut self) {
        loop {
            self.restart_what_ended();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Notes the end of what each has logged.
    pub fn say_what_they_said(&self) {
        for (at, member) in self.running.iter().enumerate() {
            self.timeline.note(format!("member {at} said last:\n{}", last_words(member, 60)));
        }
    }

    /// Asks all of them to end, and waits. Returns the events that brokers have acknowledged to their relays, with the
    /// places that they named.
    pub async fn end(mut self) -> Vec<(Uuid, Place)> {
        for member in &mut self.running {
            member.terminate();
        }
        for member in std::mem::take(&mut self.running) {
            self.see_off(member).await;
        }
        self.acknowledged
    }

    fn one(&self) -> Program {
        Program::start(&self.program, &[], &self.variables)
    }
}

fn last_words(program: &Program, lines: usize) -> String {
    let said = program.output();
    said[said.len().saturating_sub(lines)..].join("\n")
}

/// What a process has logged of its relay: `event_id=.. topic="..." partition=.. offset=..`.
fn acknowledged(program: &Program) -> Vec<(Uuid, Place)> {
    let of_line = |line: &String| {
        let (_, fields) = line.split_once(" idem::published: ")?;
        let field = |name: &str| {
            fields.split(' ').find_map(|field| Some(field.strip_prefix(name)?.strip_prefix('=')?.trim_matches('"')))
        };
        let subject = Subject::of_topic(field("topic")?)?;
        let place =
            Place { subject, partition: field("partition")?.parse().ok()?, offset: field("offset")?.parse().ok()? };
        Some((field("event_id")?.parse().ok()?, place))
    };
    program.output().iter().filter_map(of_line).collect()
}
