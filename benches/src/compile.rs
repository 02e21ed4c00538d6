//! `cargo check` of a crate of handlers, with and without the attribute.

use crate::Failed;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

use clap::Args as ClapArgs;
use serde_json::{Value, json};

#[derive(ClapArgs)]
pub struct Args {
    /// Handlers in the crate.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    handlers: u32,
    /// Checks of each variant.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Measures, prints a table, and returns the same as JSON.
pub fn run(args: &Args) -> Result<Value, Failed> {
    let with = Crate::write("with", args.handlers, true)?;
    let without = Crate::write("without", args.handlers, false)?;
    eprintln!("building the dependencies");
    with.check()?;
    without.check()?;
    let (mut with_costs, mut without_costs) = (Vec::new(), Vec::new());
    // In turn, so that whatever else the machine does falls on both.
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        with_costs.push(with.check()?);
        without_costs.push(without.check()?);
    }
    let spread = |costs: &[Cost], of: fn(&Cost) -> Duration| Spread::of(costs.iter().map(of).collect());
    let per_handler = |with: &Spread, without: &Spread| (with.median - without.median) / f64::from(args.handlers);

    println!("cargo check of {} handlers, {} rounds, milliseconds\n", args.handlers, args.rounds);
    println!("{:<30}{:>10}{:>10}{:>10}", "", "least", "median", "most");
    let mut line = json!({ "scenario": "compile", "handlers": args.handlers, "rounds": args.rounds });
    for (what, of) in [("cpu", (|cost| cost.cpu) as fn(&Cost) -> Duration), ("wall", |cost| cost.wall)] {
        let (with, without) = (spread(&with_costs, of), spread(&without_costs, of));
        for (name, spread) in [("with the attribute", &with), ("without", &without)] {
            let name = format!("{name}, {what}");
            println!("{name:<30}{:>10.0}{:>10.0}{:>10.0}", spread.least, spread.median, spread.most);
        }
        let each = per_handler(&with, &without);
        println!("{:<30}{:>10}{each:>10.2}", format!("per handler, {what}"), "");
        line[format!("with_{what}_ms")] = with.median.into();
        line[format!("without_{what}_ms")] = without.median.into();
        line[format!("per_handler_{what}_ms")] = each.into();
    }
    Ok(line)
}

/// What one check took. CPU time is the better measure: a busy machine changes it less.
struct Cost {
    wall: Duration,
    /// Zero where the system does not tell it.
    cpu: Duration,
}

/// In milliseconds.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    /// Of at least one check.
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let millis = |at: usize| times[at].as_secs_f64() * 1_000.0;
        Self { least: millis(0), median: millis(times.len() / 2), most: millis(times.len() - 1) }
    }
}

/// A generated crate, in a workspace of its own.
struct Crate {
    folder: PathBuf,
    target: PathBuf,
}

impl Crate {
    fn write(name: &str, handlers: u32, with_attribute: bool) -> io::Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let target = workspace.join("target/benches");
        let folder = target.join("compile").join(name);
        fs::create_dir_all(folder.join("src"))?;
        // The lock file keeps the dependencies those of the workspace, without a registry.
        fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock"))?;
        let runtime = workspace.join("idem-runtime");
        fs::write(folder.join("Cargo.toml"), manifest(name, &runtime))?;
        fs::write(folder.join("src/lib.rs"), source(handlers, with_attribute))?;
        Ok(Self { folder, target })
    }

    /// One check of the crate alone: its source has changed, as far as cargo can see.
    fn check(&self) -> Result<Cost, Failed> {
        let source = fs::File::options().write(true).open(self.folder.join("src/lib.rs"))?;
        source.set_modified(std::time::SystemTime::now())?;
        let (started, cpu_before) = (Instant::now(), cpu_of_children());
        let output = Command::new(env!("CARGO"))
            .args(["check", "--offline", "--quiet", "--target-dir"])
            .arg(&self.target)
            .current_dir(&self.folder)
            .env("CARGO_INCREMENTAL", "0")
            .stdin(Stdio::null())
            .output()?;
        let cost = Cost { wall: started.elapsed(), cpu: cpu_of_children() - cpu_before };
        if output.status.success() {
            Ok(cost)
        } else {
            Err(format!("the generated crate does not compile:\n{}", String::from_utf8_lossy(&output.stderr)).into())
        }
    }
}

/// CPU time of all processes that this one has waited for, and of theirs.
fn cpu_of_children() -> Duration {
    let read = || {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // proc(5): fields 16 and 17, in ticks of 10 ms; field 3 is the first behind the name.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks = fields.split_whitespace().skip(13).take(2).map(str::parse::<u64>);
        ticks.sum::<Result<u64, _>>().ok()
    };
    Duration::from_millis(10 * read().unwrap_or(0))
}

fn manifest(name: &str, runtime: &Path) -> String {
    format!(
        r#"[package]
name = "handlers-{name}"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
idem-runtime = {{ path = {runtime:?} }}
serde = {{ version = "1", features = ["derive"] }}
"#
    )
}

fn source(handlers: u32, with_attribute: bool) -> String {
    let mut text = String::from("#![allow(dead_code)]\n\nuse idem_runtime::prelude::*;\n");
    for at in 0..handlers {
        let attribute = match with_attribute {
            true => {
                format!("#[idempotent_handler(topic = \"orders-{at}\", group = \"billing\", retry = [\"1s\", \"1m\"])]")
            }
            false => String::new(),
        };
        // Writing to a String can't fail.
        let _ = write!(
            text,
            "
#[derive(serde::Deserialize, Event)]
struct Order{at} {{
    event_id: EventId,
    order_id: i64,
}}

{attribute}
async fn on_order_{at}(tx: &mut Tx<'_>, event: Order{at}, from: Delivery) -> HandlerResult {{
    let _tx: &mut Tx<'_> = tx;
    if event.order_id == from.offset {{
        return Err(HandlerError::permanent(\"unknown\"));
    }}
    Ok(())
}}
"
        );
    }
    text
}
