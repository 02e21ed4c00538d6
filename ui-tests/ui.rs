//! Every misuse gives one error, and the supported forms compile and register.

use std::path::{Path, PathBuf};

/// Cases with more than one error on purpose, or because rustc has its own word as well.
const MORE_THAN_ONE_ERROR: &[&str] = &[
    // Several mistakes, told at once.
    "attribute/many_mistakes_at_once.stderr",
    "types/attribute_and_type_mistaken_at_once.stderr",
    "types/event_and_parameter_mistaken_at_once.stderr",
    // rustc refuses these by itself, before or beside the attribute.
    "attribute/on_an_associated_function.stderr",
    "signature/variadic.stderr",
];

const TOPICS: &[&str] = &["attribute", "rules", "signature", "event", "types"];

#[test]
fn ui() {
    // One instance: each builds the dependencies and takes a lock.
    let cases = trybuild::TestCases::new();
    cases.pass("pass/*.rs");
    for topic in TOPICS {
        cases.compile_fail(format!("{topic}/*.rs"));
    }
}

#[test]
fn one_mistake_is_one_error() {
    for snapshot in TOPICS.iter().flat_map(|topic| files(topic, "stderr")) {
        let text = std::fs::read_to_string(&snapshot).unwrap();
        let errors = text.lines().filter(|line| line.starts_with("error")).count();
        let listed = MORE_THAN_ONE_ERROR.iter().any(|name| snapshot.ends_with(name));
        assert!(errors == 1 || listed, "{}: {errors} errors", snapshot.display());
        assert!(errors > 1 || !listed, "{}: only one error, take it off the list", snapshot.display());
        let warnings = text.lines().filter(|line| line.starts_with("warning")).count();
        assert_eq!(warnings, 0, "{}: a warning beside the error", snapshot.display());
    }
}

#[test]
fn every_case_has_a_snapshot() {
    for case in TOPICS.iter().flat_map(|topic| files(topic, "rs")) {
        assert!(case.with_extension("stderr").exists(), "{}: bless it", case.display());
    }
    for snapshot in TOPICS.iter().flat_map(|topic| files(topic, "stderr")) {
        assert!(snapshot.with_extension("rs").exists(), "{}: its case is gone", snapshot.display());
    }
}

fn files(topic: &str, extension: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(topic);
    let entries = std::fs::read_dir(&folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}
