//! `cargo check` of a crate of handlers, with and without the attribute.

use std::error::Error;
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
pub fn run(args: &Args) -> Result<Value, Box<dyn Error>> {
    let with = Crate::write("with", args.handlers, true)?;
    let without = Crate::write("without", args.handlers, false)?;
    eprintln!("building the dependencies");
    with.check()?;
    without.check()?;
    let (mut with_times, mut without_times) = (Vec::new(), Vec::new());
    // In turn, so that whatever else the machine does falls on both.
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        with_times.push(with.check()?);
        without_times.push(without.check()?);
    }
    let (with, without) = (Times::of(with_times), Times::of(without_times));
    let per_handler = (with.median - without.median) / f64::from(args.handlers);

    println!("cargo check of {} handlers, {} rounds, milliseconds\n", args.handlers, args.rounds);
    println!("{:<24}{:>10}{:>10}{:>10}", "", "least", "median", "most");
    for (name, times) in [("with the attribute", &with), ("without", &without)] {
        println!("{name:<24}{:>10.0}{:>10.0}{:>10.0}", times.least, times.median, times.most);
    }
    println!("{:<24}{:>10}{per_handler:>10.2}", "per handler", "");
    Ok(json!({
        "scenario": "compile",
        "handlers": args.handlers,
        "rounds": args.rounds,
        "with_ms": with.median,
        "without_ms": without.median,
        "per_handler_ms": per_handler,
    }))
}

/// In milliseconds.
struct Times {
    least: f64,
    median: f64,
    most: f64,
}

impl Times {
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
    fn check(&self) -> Result<Duration, Box<dyn Error>> {
        let source = fs::File::options().write(true).open(self.folder.join("src/lib.rs"))?;
        source.set_modified(std::time::SystemTime::now())?;
        let started = Instant::now();
        let output = Command::new(env!("CARGO"))
            .args(["check", "--offline", "--quiet", "--target-dir"])
            .arg(&self.target)
            .current_dir(&self.folder)
            .env("CARGO_INCREMENTAL", "0")
            .stdin(Stdio::null())
            .output()?;
        let took = started.elapsed();
        if output.status.success() {
            Ok(took)
        } else {
            Err(format!("the generated crate does not compile:\n{}", String::from_utf8_lossy(&output.stderr)).into())
        }
    }
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
