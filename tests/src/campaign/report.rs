//! What a campaign says in the end.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde::Serialize;

use super::Settings;
use super::checker::outbox::repeated;
use super::checker::{Evidence, Finding, Wrong, history};
use super::timeline::Timeline;

/// A handler makes progress on each of its partitions again within this time after the servers are back.
pub const LONGEST_RECOVERY: Duration = Duration::from_secs(30);

/// The figures of a campaign.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    pub minutes: f64,
    pub seed: u64,
    pub brokers: usize,
    /// Distinct events.
    pub events: usize,
    /// Records, with copies and what is nobody's event.
    pub records: usize,
    pub effects: usize,
    pub charges: usize,
    /// Events that a handler published, and records of them that repeat an earlier one.
    pub published: usize,
    pub duplicates_on_wire: usize,
    pub dead_letters: usize,
    pub kills: u64,
    /// Of them, faults of a broker or the database.
    pub broker_and_database_faults: u64,
    pub faults: BTreeMap<String, u64>,
    /// What of it the proxy saw, and how many days of the dedup table were emptied.
    pub commits_cut: usize,
    pub commit_replies_lost: usize,
    pub days_emptied: usize,
    pub lost: usize,
    pub double_effects: usize,
    pub double_charges: usize,
    pub order_violations: usize,
    pub unfinished: usize,
    pub dead_for_nothing: usize,
    /// Processes that ended by themselves or did not end when asked, and the like.
    pub complaints: Vec<String>,
    pub max_recovery_s: f64,
    /// From the end of the load until everything was done.
    pub settled_s: Option<f64>,
}

/// What was seen while it ran.
pub(super) struct Observed {
    pub kills: u64,
    pub commits_cut: usize,
    pub commit_replies_lost: usize,
    pub days_emptied: usize,
    pub worst: Duration,
    pub settled: Option<Duration>,
}

impl Figures {
    pub(super) fn new(
        settings: &Settings,
        evidence: &Evidence,
        findings: &[Finding],
        observed: &Observed,
        timeline: &Timeline,
    ) -> Self {
        let tenths = |time: Duration| (time.as_secs_f64() * 10.0).round() / 10.0;
        let duplicates_on_wire = repeated(&evidence.published);
        let count = |wrong| findings.iter().filter(|finding| finding.wrong == wrong).count();
        let ids: HashSet<_> = evidence.sent.iter().filter_map(|sent| sent.event.map(|(id, _)| id)).collect();
        let faults = timeline.counts();
        let of_servers = settings.server_faults.iter().filter(|(fault, _)| fault.is_of_broker_or_database());
        Self {
            minutes: (settings.length.as_secs_f64() / 6.0).round() / 10.0,
            seed: settings.seed,
            brokers: settings.brokers,
            events: ids.len(),
            records: evidence.sent.len(),
            effects: evidence.effects.len(),
            charges: evidence.charges.len(),
            dead_letters: evidence.letters.len(),
            published: evidence.published.len() - duplicates_on_wire,
            duplicates_on_wire,
            kills: observed.kills,
            broker_and_database_faults: of_servers.filter_map(|(fault, _)| faults.get(&super::name(fault))).sum(),
            faults,
            commits_cut: observed.commits_cut,
            commit_replies_lost: observed.commit_replies_lost,
            days_emptied: observed.days_emptied,
            lost: count(Wrong::Lost),
            double_effects: count(Wrong::DoubleEffect),
            double_charges: count(Wrong::DoubleCharge),
            order_violations: count(Wrong::OutOfOrder),
            unfinished: count(Wrong::Unfinished),
            dead_for_nothing: count(Wrong::DeadForNothing),
            complaints: timeline.complaints(),
            max_recovery_s: tenths(observed.worst),
            settled_s: observed.settled.map(tenths),
        }
    }

    /// How many findings of the checker there are.
    #[must_use]
    pub fn wrong(&self) -> usize {
        self.lost
            + self.double_effects
            + self.double_charges
            + self.order_violations
            + self.unfinished
            + self.dead_for_nothing
    }

    /// Whether all promises were kept, and work was resumed within this time.
    #[must_use]
    pub fn are_right_within(&self, longest_recovery: Duration) -> bool {
        self.wrong() == 0 && self.complaints.is_empty() && self.max_recovery_s <= longest_recovery.as_secs_f64()
    }
}

pub(super) fn histories(findings: &[Finding], evidence: &Evidence, timeline: &Timeline, most: usize) -> String {
    let mut text = String::new();
    for Finding { wrong, event, what } in findings.iter().take(most) {
        let id = event.map_or_else(String::new, |id| id.to_string());
        text.push_str(&format!("{wrong:?} {id}: {what}\n"));
        let Some(event) = *event else { continue };
        for line in history(evidence, event) {
            text.push_str(&format!("    {line}\n"));
        }
        let sent = evidence.sent.iter().find(|sent| sent.event.is_some_and(|(id, _)| id == event));
        for line in sent.map(|sent| timeline.around(sent.at_millis)).unwrap_or_default() {
            text.push_str(&format!("        {line}\n"));
        }
    }
    if findings.len() > most {
        text.push_str(&format!("and {} more\n", findings.len() - most));
    }
    text
}
