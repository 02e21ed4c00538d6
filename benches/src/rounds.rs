//! Interleaved rounds: whatever else the machine does falls on all contenders alike.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::Failed;
use crate::contender::Contender;
use crate::servers::Servers;

/// A contender's name in the results, and how many events it gets: a slow one gets fewer.
pub struct Entry {
    pub name: &'static str,
    pub contender: Result<Contender, Failed>,
    pub events: u64,
}

/// Events per second by name, sorted.
pub struct Results(BTreeMap<&'static str, Vec<f64>>);

/// Lets all run in turn. One that can't run is said on stderr and left out.
pub async fn interleaved(servers: &Servers, topic: &str, rounds: u32, entries: &[Entry]) -> Result<Results, Failed> {
    let mut results: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for entry in entries {
        if let Err(why) = &entry.contender {
            eprintln!("{} can't run: {why}", entry.name);
        }
    }
    for round in 1..=rounds {
        for Entry { name, contender, events } in entries {
            let Ok(contender) = contender else { continue };
            let eps = contender.run(servers, topic, *events).await?;
            eprintln!("round {round} of {rounds}: {name} {eps:.0} events/s");
            results.entry(*name).or_default().push(eps);
        }
    }
    Ok(Results::of(results))
}

/// The middle one; not a number where there is none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Results {
    /// Figures by name; names without any are left out.
    pub fn of(figures: impl IntoIterator<Item = (&'static str, Vec<f64>)>) -> Self {
        let sorted = figures.into_iter().filter(|(_, figures)| !figures.is_empty()).map(|(name, mut figures)| {
            figures.sort_by(f64::total_cmp);
            (name, figures)
        });
        Self(sorted.collect())
    }

    pub fn median(&self, name: &str) -> Option<f64> {
        let figures = self.0.get(name)?;
        figures.get(figures.len() / 2).copied()
    }

    /// Least and most.
    pub fn spread(&self, name: &str) -> Option<[f64; 2]> {
        let figures = self.0.get(name)?;
        Some([*figures.first()?, *figures.last()?])
    }

    /// The median of one over that of another.
    pub fn ratio(&self, name: &str, to: &str) -> Option<f64> {
        Some(self.median(name)? / self.median(to)?)
    }

    /// A table on stdout.
    pub fn print(&self, ours: &str) {
        println!("{:<16}{:>12}{:>12}{:>12}{:>12}", "events/s", "least", "median", "most", "ours / it");
        for (name, figures) in &self.0 {
            let (least, most) = (figures[0], figures[figures.len() - 1]);
            let median = self.median(name).unwrap_or_default();
            let ratio = self.ratio(ours, name).unwrap_or_default();
            println!("{name:<16}{least:>12.0}{median:>12.0}{most:>12.0}{ratio:>12.2}");
        }
    }

    /// The line that a scenario ends with. What did not run is null.
    pub fn json(&self, scenario: &str, ours: &str, rounds: u32) -> Value {
        let mut line = json!({ "scenario": scenario, "eps": self.median(ours) });
        for name in ["go", "python", "rust_naive", "rust_batched", "pgbench_commit", "pgbench_batch"] {
            line[format!("{name}_eps")] = self.median(name).into();
        }
        for name in ["go", "python", "pgbench_commit", "pgbench_batch", "rust_batched"] {
            line[format!("vs_{name}")] = self.ratio(ours, name).into();
        }
        line["runs"] = rounds.into();
        line["spread"] = json!(self.spread(ours));
        line
    }
}
