//! The page of the documentation that lists every diagnostic is what the cases say.

use std::fmt::Write as _;
use std::path::Path;

/// The folders, in the order of the page, and what they hold.
const TOPICS: &[(&str, &str)] = &[
    ("attribute", "Keys and values of the attribute, and where it stands"),
    ("rules", "Keys that demand something of one another, or of the types"),
    ("signature", "The function"),
    ("types", "Types"),
    ("event", "The derive"),
    ("renamed", "A runtime of another name"),
];

const HEAD: &str = "\
What the compiler says of each mistake with [`idempotent_handler`](macro@crate::idempotent_handler) and
[`Event`](derive@crate::Event).

One mistake is one error, at the token to change, and all mistakes of an item are told in one compile.
Most errors end in what to write instead. Errors about types are followed by more notes of the
compiler's, which are left out here.

<!-- Made from the cases in ui-tests: DIAGNOSTICS=overwrite cargo test -p ui-tests --test diagnostics -->
";

const RENAMED: &str = "
Generated code finds the runtime as `idem_runtime`. When Cargo.toml gives it another name, as in
`idem = { package = \"idem-runtime\" }`, this line at the crate's root is the way out:
`extern crate idem as idem_runtime;`.
";

#[test]
fn the_page_is_what_the_cases_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("../idem-runtime/src/diagnostics.md");
    let page = page(root);
    if std::env::var_os("DIAGNOSTICS").is_some_and(|word| word == "overwrite") {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == page, "write it again: DIAGNOSTICS=overwrite cargo test -p ui-tests --test diagnostics");
}

fn page(root: &Path) -> String {
    let mut page = HEAD.to_owned();
    for (topic, title) in TOPICS {
        let _ = writeln!(page, "\n# {title}");
        if *topic == "renamed" {
            page.push_str(RENAMED);
        }
        let mut cases: Vec<_> = std::fs::read_dir(root.join(topic))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "stderr"))
            .collect();
        cases.sort();
        for case in cases {
            let errors = errors(&std::fs::read_to_string(&case).unwrap());
            let _ = write!(page, "\n{}:\n\n```text\n{errors}```\n", sentence(&case));
        }
    }
    page
}

/// `topic_without_quotes` as "Topic without quotes".
fn sentence(case: &Path) -> String {
    let words = case.file_stem().unwrap().to_str().unwrap().replace('_', " ");
    let (first, rest) = words.split_at(1);
    first.to_uppercase() + rest
}

/// Each error with its place, and without the notes behind it.
fn errors(snapshot: &str) -> String {
    let mut text = String::new();
    let mut told = false;
    for line in snapshot.lines() {
        if line.starts_with("error") {
            told = true;
            if !text.is_empty() {
                text.push('\n');
            }
        }
        // A line of the source or under it begins with its number or a bar; notes with `=` or a word.
        let in_source = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
        let is_note = line.trim_start().starts_with("= ") || (!line.starts_with(' ') && !in_source);
        if is_note && !line.starts_with("error") && line != "..." {
            told = false;
        }
        let is_noise = line.trim_start().starts_with("-->")
            || line.trim() == "|"
            || line.contains("in this attribute macro expansion")
            || line.contains("in this derive macro expansion");
        if told && !is_noise && !line.is_empty() {
            let _ = writeln!(text, "{}", shortened(line));
        }
    }
    text
}

/// Names of 250 characters prove their case, and need not be read.
fn shortened(line: &str) -> String {
    const WIDEST: usize = 180;
    let mut short = String::new();
    let mut run = 0;
    for c in line.chars() {
        run = if short.ends_with(c) { run + 1 } else { 0 };
        if run < 4 || c == ' ' || line.len() <= WIDEST {
            short.push(c);
        }
    }
    short
}
