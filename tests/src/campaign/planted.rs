//! Faults planted into a copy of the library, which the checker has to find: without them nobody would know
//! whether it can.
//!
//! The library itself has no switch for them. Each is a few replaced lines of its source; the copy is built
//! as a service of its own, and a variable of its environment says which fault is on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::checker::Wrong;
use super::schedule::{MemberFault, ServerFault};
use crate::java;

/// The variable that switches them on, by their names with commas between.
pub const VARIABLE: &str = "IDEM_TEST_PLANTED";

/// A fault of the library.
#[derive(Debug, Clone, Copy)]
pub struct Planted {
    pub name: &'static str,
    /// As what it has to be found.
    pub expected: Wrong,
    /// As what it must not be found, as something else guards against that too.
    pub never: Option<Wrong>,
    /// Others that are on with it: guards that would hide it.
    with: &'static [&'static str],
    edits: &'static [Edit],
    /// What has to go wrong around it for its harm to show.
    pub server_faults: &'static [(ServerFault, usize)],
}

/// Some lines of a file, and what replaces them. `planted!` is replaced by the question whether the fault is on.
#[derive(Debug, Clone, Copy)]
struct Edit {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

/// What goes wrong with the members meanwhile.
pub const MEMBER_FAULTS: &[(MemberFault, usize)] = &[(MemberFault::Kill, 1)];

/// All of them.
pub const ALL: [Planted; 11] = [
    Planted {
        name: "dedup-insert-in-another-transaction",
        expected: Wrong::Lost,
        never: None,
        with: &[],
        edits: &[
            Edit {
                file: "pg/dedup.rs",
                from: r#"    let statements = format!("{BEGIN}EXECUTE idem_dedup_insert ('{event_id}', '{group}')");"#,
                to: r#"    let mut statements = format!("{BEGIN}EXECUTE idem_dedup_insert ('{event_id}', '{group}')");
    if planted!() {
        statements += &format!("; COMMIT; {BEGIN}SELECT pg_current_xact_id()::text::bigint");
    }"#,
            },
            Edit {
                file: "pg/dedup.rs",
                from: "    let row = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_optional(tx).await?;",
                to: "    let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(tx).await?;
    let transaction = rows.last().map(|row| row.try_get(0)).transpose()?.map(TransactionId);
    let row = if rows.len() > usize::from(planted!()) { rows.into_iter().next() } else { None };",
            },
            Edit {
                file: "pg/dedup.rs",
                from: "transaction: TransactionId(row.try_get(0)?), horizon",
                to: "transaction: transaction.unwrap_or(TransactionId(row.try_get(0)?)), horizon",
            },
        ],
        server_faults: &[(ServerFault::ConnectionsCut, 1)],
    },
    Planted {
        name: "offsets-before-the-database",
        expected: Wrong::Lost,
        never: None,
        with: &[],
        edits: &[Edit {
            file: "lane.rs",
            from: "        lock(&self.watermark).deliver(record.offset, record.timestamp_millis)",
            to: "        let is_new = lock(&self.watermark).deliver(record.offset, record.timestamp_millis);
        if planted!() {
            lock(&self.watermark).finish(record.offset);
        }
        is_new",
        }],
        server_faults: &[(ServerFault::PostgresRestartedImmediate, 1)],
    },
    Planted {
        name: "no-check-before-commit",
        expected: Wrong::Lost,
        never: None,
        with: &[],
        edits: &[Edit {
            file: "pg/commit.rs",
            from: r#"format!("{check}{notes}{published}COMMIT")"#,
            to: r#"if planted!() { format!("{notes}{published}COMMIT") } else { format!("{check}{notes}{published}COMMIT") }"#,
        }],
        server_faults: &[(ServerFault::ConnectionsCut, 1)],
    },
    Planted {
        name: "another-key-in-another-process",
        expected: Wrong::DoubleCharge,
        never: None,
        with: &[],
        edits: &[Edit {
            file: "decide/money_key.rs",
            from: "    if operation.is_empty() && generation == 0 {",
            to: r#"    let own = format!("{group} {}", std::process::id());
    let group = if planted!() { &own } else { group };
    if operation.is_empty() && generation == 0 {"#,
        }],
        server_faults: &[(ServerFault::AnswersLost, 1)],
    },
    Planted {
        name: "progress-without-compare-and-set",
        expected: Wrong::Lost,
        never: None,
        with: &["another-server-is-not-noticed"],
        edits: &[
            Edit {
                file: "pg/progress.rs",
                from: r"            AND row.epoch = new.epoch AND row.next_offset = new.expected \
            AND extract(epoch FROM pg_postmaster_start_time())::text = new.server \",
                to: r"            AND ($9 OR row.epoch = new.epoch AND row.next_offset = new.expected \
            AND extract(epoch FROM pg_postmaster_start_time())::text = new.server) \",
            },
            Edit {
                file: "pg/progress.rs",
                from: "    .bind(writes.iter().map(event_millis).collect::<Vec<Option<i64>>>())",
                to: "    .bind(writes.iter().map(event_millis).collect::<Vec<Option<i64>>>())
    .bind(planted!())",
            },
        ],
        server_faults: &[(ServerFault::PostgresSwitchedOver, 1)],
    },
    Planted {
        name: "day-emptied-before-its-horizon-is-raised",
        expected: Wrong::DoubleEffect,
        never: None,
        with: &[],
        edits: &[
            Edit {
                file: "pg/maintenance/empty.rs",
                from: "    raise(tx, &groups, end).await?;",
                to: "    if !planted!() {
        raise(tx, &groups, end).await?;
    }",
            },
            Edit {
                file: "pg/maintenance/empty.rs",
                from: "    in_transaction(pools, BOUND, move |tx| Box::pin(async move { empty_in(tx, &name, end, processed_before).await }))
        .await",
                to: "    let emptied =
        in_transaction(pools, BOUND, move |tx| Box::pin(async move { empty_in(tx, &name, end, processed_before).await }))
            .await;
    if let Ok(Emptied::Done { groups, .. }) = &emptied
        && planted!()
    {
        let groups = groups.clone();
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        in_transaction(pools, BOUND, move |tx| Box::pin(async move { raise(tx, &groups, end).await })).await?;
    }
    emptied",
            },
        ],
        server_faults: &[(ServerFault::ProducerClockBehind, 1)],
    },
    Planted {
        name: "another-server-is-not-noticed",
        expected: Wrong::OutOfOrder,
        never: Some(Wrong::Lost),
        with: &[],
        edits: &[
            Edit {
                file: "pipeline.rs",
                from: "    if session.server() != claim.server {",
                to: "    if session.server() != claim.server && !planted!() {",
            },
            Edit {
                file: "pipeline/shared.rs",
                from: "    if session.server() != server {",
                to: "    if session.server() != server && !planted!() {",
            },
        ],
        server_faults: &[(ServerFault::PostgresFailedOver, 1), (ServerFault::PostgresSwitchedOver, 1)],
    },
    Planted {
        name: "a-key-is-sent-after-its-time",
        expected: Wrong::DoubleCharge,
        never: None,
        with: &[],
        edits: &[
            Edit {
                file: "decide/money.rs",
                from: "State::Unknown if known.unsure.is_some_and(|unsure| unsure.first >= key_ttl)",
                to: "State::Unknown if known.unsure.is_some_and(|unsure| unsure.first >= key_ttl && !planted!())",
            },
            Edit {
                file: "decide/money.rs",
                from: "        _ if known.unsure.is_some_and(|unsure| unsure.first >= key_ttl)",
                to: "        _ if known.unsure.is_some_and(|unsure| unsure.first >= key_ttl && !planted!())",
            },
        ],
        server_faults: &[(ServerFault::KeysRunOut, 1)],
    },
    Planted {
        name: "what-was-read-again-is-forgotten",
        expected: Wrong::DoubleCharge,
        never: None,
        with: &[],
        edits: &[Edit {
            file: "pg/progress.rs",
            from: "    .bind(record.iter().map(|(_, position)| position.reread_below).collect::<Vec<Option<i64>>>())",
            to: "    .bind(
        record.iter().map(|(_, position)| position.reread_below.filter(|_| !planted!())).collect::<Vec<Option<i64>>>(),
    )",
        }],
        server_faults: &[(ServerFault::KeysRunOutOverRestore, 1)],
    },
    Planted {
        name: "followers-of-a-failed-event-are-not-parked",
        expected: Wrong::OutOfOrder,
        never: None,
        with: &[],
        edits: &[Edit {
            file: "decide/parking.rs",
            from: "            Some(_) => Arrival::Behind,",
            to: "            Some(_) if planted!() => Arrival::Handle,
            Some(_) => Arrival::Behind,",
        }],
        server_faults: &[(ServerFault::ConnectionsCut, 1)],
    },
    Planted {
        name: "what-is-published-has-another-id-each-time",
        expected: Wrong::DoubleEffect,
        never: None,
        with: &[],
        edits: &[Edit {
            file: "outbox/buffer.rs",
            from: "        let Some(first) = derive(0) else {",
            to: "        let Some(first) = derive(0).filter(|_| !planted!()) else {",
        }],
        server_faults: &[(ServerFault::PostgresRestored, 1)],
    },
];

impl Planted {
    /// The value of [`VARIABLE`] that switches it on.
    #[must_use]
    pub fn switches(&self) -> String {
        [&[self.name], self.with].concat().join(",")
    }
}

/// What the copy's library answers to `planted!`.
const SWITCH: &str = r#"
pub(crate) fn is_planted(name: &str) -> bool {
    std::env::var("IDEM_TEST_PLANTED").is_ok_and(|planted| planted.split(',').any(|one| one == name))
}
"#;

/// Copies the workspace beside the build, plants the faults there, and builds the service from it. Its
/// dependencies are those of this build.
///
/// # Panics
/// When a line to replace is not there exactly once, or the copy does not compile.
#[must_use]
pub fn build_service() -> PathBuf {
    let target = java::target_dir();
    let copy = target.join("planted-workspace");
    copy_workspace(&copy);
    let runtime = copy.join("idem-runtime/src");
    for planted in &ALL {
        for edit in planted.edits {
            let file = runtime.join(edit.file);
            let source = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            write(&file, &replaced(&source, planted.name, edit).unwrap_or_else(|wrong| panic!("{wrong}")));
        }
    }
    let lib = runtime.join("lib.rs");
    write(&lib, &(fs::read_to_string(&lib).expect("it was just copied") + SWITCH));
    // Another version, or cargo would take the one for the other in the build directory that they share.
    let version = env!("CARGO_PKG_VERSION");
    let manifest = copy.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).expect("it was just copied");
    let renamed = |text: &str, prefix: &str| {
        text.replace(&format!("\"{prefix}{version}\""), &format!("\"{prefix}{version}-planted\""))
    };
    write(&manifest, &renamed(&renamed(&text, ""), "="));
    let bins = copy.join("tests/src/bin");
    // Programs have no version in their names.
    fs::rename(bins.join("campaign_service.rs"), bins.join("planted_service.rs")).expect("the copy is ours");

    let own = std::env::current_exe().expect("a program is a file");
    let is_release = own.parent().is_some_and(|dir| dir.ends_with("release"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "tests", "--bin", "planted_service", "--target-dir"]).arg(&target);
    build.args(is_release.then_some("--release")).current_dir(&copy).stdin(Stdio::null());
    let status = build.status().unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    assert!(status.success(), "the copy with the planted faults does not compile");
    target.join(if is_release { "release" } else { "debug" }).join("planted_service")
}

/// A file's text with the fault in it.
fn replaced(source: &str, name: &str, edit: &Edit) -> Result<String, String> {
    match source.matches(edit.from).count() {
        1 => Ok(source.replacen(edit.from, &edit.to.replace("planted!()", &format!("crate::is_planted({name:?})")), 1)),
        times => Err(format!("{}: the lines that {name} replaces are there {times} times:\n{}", edit.file, edit.from)),
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Everything but the build and the history. What is as it was keeps its time, so that little is built anew.
fn copy_workspace(copy: &Path) {
    drop(fs::remove_dir_all(copy));
    fs::create_dir_all(copy).expect("the build directory is ours");
    for entry in fs::read_dir(workspace()).expect("the workspace is there") {
        let entry = entry.expect("the workspace is there");
        if entry.file_name() == "target" || entry.file_name() == ".git" {
            continue;
        }
        let copied = Command::new("cp").arg("-a").arg(entry.path()).arg(copy).status();
        assert!(copied.is_ok_and(|status| status.success()), "cannot copy {}", entry.path().display());
    }
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_with_another_one_is_there() {
        for with in ALL.iter().flat_map(|planted| planted.with) {
            assert!(ALL.iter().any(|planted| planted.name == *with), "{with}");
        }
    }

    #[test]
    fn the_lines_that_planted_faults_replace_are_in_the_library_once() {
        for planted in &ALL {
            for edit in planted.edits {
                let source = fs::read_to_string(workspace().join("idem-runtime/src").join(edit.file)).unwrap();
                replaced(&source, planted.name, edit).unwrap();
            }
        }
    }
}
