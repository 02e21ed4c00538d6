//! Events per second, from samples of what is counted.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::telemetry::GroupStats;

/// Between two samples.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Five minutes of them.
const KEPT: usize = 61;

/// Settled events, calls and their time, at one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    events: u64,
    calls: u64,
    took: Duration,
}

/// A group's handler.
type Of = (Arc<str>, &'static str);

#[derive(Default)]
pub(super) struct Rates {
    samples: Mutex<HashMap<Of, VecDeque<Sample>>>,
}

/// How a handler did lately.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Recent {
    /// Events per second, one number for each sample, the last one last.
    pub per_second: Vec<f64>,
    /// What a call took, over the last minute. None: there was none.
    pub mean_call: Option<Duration>,
}

impl Rates {
    pub(super) fn sample(&self, groups: &[Arc<GroupStats>]) {
        let at = Instant::now();
        let mut all = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        for group in groups {
            for handler in &group.handlers {
                let (calls, took) = handler.calls();
                let samples = all.entry((Arc::clone(&group.name), handler.name)).or_default();
                samples.push_back(Sample { at, events: handler.outcomes().iter().sum(), calls, took });
                if samples.len() > KEPT {
                    samples.pop_front();
                }
            }
        }
    }

    pub(super) fn recent(&self, group: &Arc<str>, handler: &'static str) -> Recent {
        let all = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(Arc::clone(group), handler)).map_or_else(Recent::default, recent)
    }
}

fn recent(samples: &VecDeque<Sample>) -> Recent {
    let per_second = samples.iter().zip(samples.iter().skip(1)).map(|(from, to)| {
        let seconds = to.at.duration_since(from.at).as_secs_f64();
        if seconds > 0.0 { (to.events - from.events) as f64 / seconds } else { 0.0 }
    });
    let minute = usize::try_from(60 / EVERY.as_secs()).unwrap_or(1);
    let last = samples.back().zip(samples.iter().rev().take(minute + 1).next_back());
    let mean_call = last.and_then(|(to, from)| {
        let calls = u32::try_from(to.calls - from.calls).ok().filter(|calls| *calls > 0)?;
        Some((to.took - from.took) / calls)
    });
    Recent { per_second: per_second.collect(), mean_call }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_and_calls_are_those_of_the_last_minute() {
        let start = Instant::now();
        let sample = |n: u32, events, calls, millis| Sample {
            at: start + EVERY * n,
            events,
            calls,
            took: Duration::from_millis(millis),
        };
        let samples = VecDeque::from([sample(0, 10, 10, 500), sample(1, 20, 20, 700), sample(2, 20, 20, 700)]);
        assert_eq!(recent(&samples).per_second, [2.0, 0.0]);
        assert_eq!(recent(&samples).mean_call, Some(Duration::from_millis(20)));
        let many: VecDeque<_> = (0..20).map(|n| sample(n, 0, u64::from(n.min(1)), u64::from(n.min(1)) * 9)).collect();
        assert_eq!(recent(&many).mean_call, None, "the only call is longer ago");
        assert_eq!(recent(&VecDeque::new()), Recent::default());
    }
}
