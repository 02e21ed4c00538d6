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

/// Runs until so many events of the group are settled, and prints `done` and the seconds from the
/// first to the last.
pub async fn run(args: Args) -> Result<(), Failed> {
    let settled = Arc::new(AtomicU64::new(0));
    metrics::set_global_recorder(Events(Arc::clone(&settled))).map_err(|error| error.to_string())?;
    let (end, ended) = oneshot::channel();
    // A thread of its own: it must not wait for a worker that is busy.
    std::thread::spawn(move || {
        let wait_for = |count| {
            while settled.load(Ordering::Relaxed) < count {
                std::thread::sleep(Duration::from_millis(1));
            }
            Instant::now()
        };
        let first = wait_for(1);
        let last = wait_for(args.count);
        println!("done {}", last.duration_since(first).as_secs_f64());
        let _ = end.send(());
    });
    let run = idem_runtime::builder().groups([args.group]).shutdown_when(async {
        let _ = ended.await;
    });
    Ok(run.run().await?)
}

/// Counts `idem_events_total` and nothing else.
struct Events(Arc<AtomicU64>);

impl Recorder for Events {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "idem_events_total" => Counter::from_arc(Arc::clone(&self.0)),
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
