//! How many events per second, beside what others make of the same on the same servers.

use serde_json::{Value, json};

use crate::contender::{self, Contender};
use crate::handlers::ORDERS;
use crate::peers::Loop;
use crate::pgbench::Script;
use crate::rounds::{Entry, Results, interleaved, median};
use crate::servers::Servers;
use crate::{Failed, Options};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Own,
    Shared,
    Batch,
}

const PARTITIONS: i32 = 4;
/// Bytes of an event.
const BYTES: usize = 0;
/// What the loops of one transaction per event get.
const FEW: u64 = 6_000;

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Shared => "shared",
            Self::Batch => "batch",
        }
    }

    fn events(self, options: &Options) -> u64 {
        options.events.unwrap_or(match self {
            Self::Own => 40_000,
            Self::Shared => 150_000,
            Self::Batch => 500_000,
        })
    }

    pub fn ours(self) -> Contender {
        match self {
            Self::Own => Contender::Idem { group: "bench-own", pool: 64 },
            Self::Shared => Contender::Idem { group: "bench-shared", pool: 16 },
            Self::Batch => Contender::Idem { group: "bench-batch", pool: 16 },
        }
    }
}

/// One way against everybody.
pub async fn run(way: Way, options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[]).await?;
    let events = way.events(options);
    servers.topic(ORDERS, PARTITIONS, usize::try_from(events.max(FEW))? * 11 / 10, BYTES).await?;
    let batched = if way == Way::Batch { Loop::BatchedSet } else { Loop::Batched };
    let many = if way == Way::Batch { Script::Set } else { Script::Many };
    let entries = [
        Entry { name: "idem", contender: Ok(way.ours()), events },
        Entry { name: "go", contender: contender::go().await, events: FEW.min(events) },
        Entry { name: "python", contender: contender::python().await, events: (FEW / 2).min(events) },
        Entry { name: "rust_naive", contender: Ok(Contender::Rust(Loop::Naive)), events: FEW.min(events) },
        Entry { name: "rust_batched", contender: Ok(Contender::Rust(batched)), events },
        Entry { name: "pgbench_commit", contender: best(&servers, Script::One, &[8, 16, 32, 64]).await, events: 0 },
        Entry { name: "pgbench_batch", contender: best(&servers, many, &[1, 2, 4]).await, events: 0 },
    ];
    let results = interleaved(&servers, ORDERS, options.rounds, &entries).await?;
    results.print("idem");
    Ok(results.json(way.name(), "idem", options.rounds))
}

/// pgbench with as many clients as serve it best.
async fn best(servers: &Servers, script: Script, clients: &[u32]) -> Result<Contender, Failed> {
    let mut best = (0.0, 1);
    for &clients in clients {
        let database = servers.database().await?;
        let flat = Contender::Pgbench(script, clients).run_on(servers, &database, ORDERS, 0).await;
        servers.drop(database).await?;
        let eps = flat?;
        eprintln!("pgbench, {clients} clients: {eps:.0} events/s");
        if eps > best.0 {
            best = (eps, clients);
        }
    }
    Ok(Contender::Pgbench(script, best.1))
}

/// Four lanes that update the same thousand rows: sharing a transaction must not be slower than not
/// to.
pub async fn contended(options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[]).await?;
    let events = options.events.unwrap_or(30_000);
    servers.topic(ORDERS, PARTITIONS, usize::try_from(events)? * 11 / 10, BYTES).await?;
    let entries = [
        Entry { name: "idem", contender: Ok(Contender::Idem { group: "bench-shared-hot", pool: 16 }), events },
        Entry { name: "own", contender: Ok(Contender::Idem { group: "bench-own-hot", pool: 16 }), events },
    ];
    let results = interleaved(&servers, ORDERS, options.rounds, &entries).await?;
    results.print("idem");
    let mut line = results.json("contended", "idem", options.rounds);
    line["own_eps"] = results.median("own").into();
    line["vs_own"] = results.ratio("idem", "own").into();
    Ok(line)
}

/// The same events once more, after an operator's reset of the offsets.
pub async fn replay(options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[]).await?;
    let events = options.events.unwrap_or(500_000);
    servers.topic(ORDERS, PARTITIONS, usize::try_from(events)?, BYTES).await?;
    let (ours, group) = (Way::Batch.ours(), "bench-batch");
    let (go, few) = (contender::go().await, FEW.min(events));
    let mut figures = Vec::new();
    let mut of_go = Vec::new();
    for round in 1..=options.rounds {
        let database = servers.database().await?;
        ours.run_on(&servers, &database, ORDERS, events).await?;
        // Its offsets are deleted with the group; those of the database would be honoured.
        servers.kafka.reset_offsets(group, ORDERS, &["--to-earliest"]).await;
        let eps = ours.run_on(&servers, &database, ORDERS, events).await?;
        servers.drop(database).await?;
        eprintln!("round {round} of {}: replay {eps:.0} events/s", options.rounds);
        figures.push(eps);
        match &go {
            Ok(go) => of_go.push(go.run(&servers, ORDERS, few).await?),
            Err(why) => eprintln!("go can't run: {why}"),
        }
    }
    let results = Results::of([("idem", figures), ("go", of_go)]);
    results.print("idem");
    Ok(results.json("replay", "idem", options.rounds))
}

/// Events per second against the number of lanes.
pub async fn lanes(options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[]).await?;
    let events = options.events.unwrap_or(100_000);
    let all = [
        (1, "bench.lanes-1", "bench-lanes-1"),
        (2, "bench.lanes-2", "bench-lanes-2"),
        (4, "bench.lanes-4", "bench-lanes-4"),
        (8, "bench.lanes-8", "bench-lanes-8"),
    ];
    for (partitions, topic, _) in all {
        servers.topic(topic, partitions, usize::try_from(events)? * 11 / 10, BYTES).await?;
    }
    let mut figures = vec![Vec::new(); all.len()];
    for _ in 0..options.rounds {
        for (figures, (_, topic, group)) in figures.iter_mut().zip(all) {
            figures.push(Contender::Idem { group, pool: 16 }.run(&servers, topic, events).await?);
        }
    }
    let mut line = json!({ "scenario": "lanes", "runs": options.rounds, "eps": {} });
    println!("{:<8}{:>12}", "lanes", "events/s");
    for (figures, (partitions, ..)) in figures.into_iter().zip(all) {
        let median = median(figures);
        println!("{partitions:<8}{median:>12.0}");
        line["eps"][partitions.to_string()] = median.into();
    }
    Ok(line)
}

/// Events per second of the shared way against the events that wait.
pub async fn backlog(options: &Options) -> Result<Value, Failed> {
    let servers = Servers::start(&[]).await?;
    let backlogs = [1_000, 5_000, 20_000, 100_000, 400_000];
    servers.topic(ORDERS, PARTITIONS, 440_000, BYTES).await?;
    let mut line = json!({ "scenario": "backlog", "runs": options.rounds, "eps": {} });
    println!("{:<10}{:>12}", "backlog", "events/s");
    for backlog in backlogs {
        let mut figures = Vec::new();
        for _ in 0..options.rounds {
            figures.push(Way::Shared.ours().run(&servers, ORDERS, backlog).await?);
        }
        let median = median(figures);
        println!("{backlog:<10}{median:>12.0}");
        line["eps"][backlog.to_string()] = median.into();
    }
    Ok(line)
}
