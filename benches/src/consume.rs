//! The library as a process of its own, which says how long its events took.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::sync::oneshot;

use crate::Failed;

#[derive(ClapArgs)]
pub struct Args {
    group: String,
    /// Events after which it ends.
    count: u64,
}

/// Runs until so many events of the group are settled, or a signal asks for the end. Prints `duplicates` and how
/// many of them were processed before, and `done` and the seconds from the first to the last.
pub async fn run(args: Args) -> Result<(), Failed> {
    let events = Events::default();
    metrics::set_global_recorder(events.clone()).map_err(|error| error.to_string())?;
    let (end, ended) = oneshot::channel();
    // A thread of its own: it must not wait for a worker that is busy.
    std::thread::spawn(move || {
        let wait_for = |count| {
            while events.settled() < count {
                std::thread::sleep(Duration::from_millis(1));
            }
            Instant::now()
        };
        let first = wait_for(args.count.min(1));
        let last = wait_for(args.count);
        println!("duplicates {}", events.duplicates.load(Ordering::Relaxed));
        println!("done {}", last.duration_since(first).as_secs_f64());
        let _ = end.send(());
    });
    let run = idem_runtime::builder().groups([args.group]).shutdown_when(async {
        let _ = ended.await;
    });
    Ok(run.run().await?)
}

/// Counts `idem_events_total` and nothing else.
#[derive(Clone, Default)]
struct Events {
    duplicates: Arc<AtomicU64>,
    others: Arc<AtomicU64>,
}

impl Events {
    fn settled(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed)
    }
}

impl Recorder for Events {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "idem_events_total" => {
                let is_duplicate = key.labels().any(|label| (label.key(), label.value()) == ("outcome", "duplicate"));
                Counter::from_arc(Arc::clone(if is_duplicate { &self.duplicates } else { &self.others }))
            }
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
