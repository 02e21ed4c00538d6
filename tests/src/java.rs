//! Kafka's Java programs, fetched once by Maven into the target directory.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const KAFKA: &str = "4.3.1";

const POM: &str = r"<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>idem</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>VERSION</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>VERSION</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
";

/// Arguments before a main class: a small heap, quick start, warnings only.
///
/// # Panics
/// When Java or Maven is missing, or Maven fails.
#[must_use]
pub fn arguments() -> Vec<OsString> {
    let mut class_path = libraries().into_os_string();
    class_path.push("/*");
    let options = [
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
    ];
    options.into_iter().map(OsString::from).chain([class_path]).collect()
}

/// Runs one of Kafka's tools to its end and returns what it printed.
///
/// # Panics
/// When it fails.
#[must_use]
pub fn run(class: &str, args: &[&str]) -> String {
    run_with_input(class, args, "")
}

/// The same with something to read on its standard input.
///
/// # Panics
/// When it fails.
#[must_use]
pub fn run_with_input(class: &str, args: &[&str], input: &str) -> String {
    let mut file = tempfile::tempfile().expect("a writable temporary directory");
    file.write_all(input.as_bytes()).and_then(|()| file.rewind()).expect("a file of our own is writable");
    let mut java = Command::new("java");
    java.args(arguments()).arg(class).args(args).stdin(file);
    let output = output(&mut java, "java", "default-jre-headless");
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{class} {} failed:\n{printed}", args.join(" "));
    printed
}

/// The directory with Kafka's jars.
fn libraries() -> PathBuf {
    let harness = target_dir().join("harness");
    let kafka = harness.join(format!("kafka-{KAFKA}"));
    let libraries = kafka.join("libs");
    if libraries.is_dir() {
        return libraries;
    }
    fs::create_dir_all(&harness).unwrap_or_else(|error| panic!("cannot create {}: {error}", harness.display()));
    // Test binaries run at the same time: one fetches, the others wait for its lock.
    let lock = File::create(harness.join("lock")).and_then(|file| file.lock().map(|()| file));
    let lock = lock.unwrap_or_else(|error| panic!("cannot lock {}: {error}", harness.display()));
    if !libraries.is_dir() {
        fetch(&harness, &kafka);
    }
    drop(lock);
    libraries
}

/// Fetches the jars beside their place and moves them there when all have arrived.
fn fetch(harness: &Path, kafka: &Path) {
    let _ = output(Command::new("java").arg("-version").stdin(Stdio::null()), "java", "default-jre-headless");
    let scratch = tempfile::tempdir_in(harness).expect("the harness directory was just written to");
    fs::write(scratch.path().join("pom.xml"), POM.replace("VERSION", KAFKA))
        .expect("a directory of our own is writable");
    let mut maven = Command::new("mvn");
    maven.current_dir(scratch.path());
    maven.args(["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]).stdin(Stdio::null());
    let fetched = output(&mut maven, "mvn", "maven");
    assert!(
        fetched.status.success(),
        "Maven could not fetch Apache Kafka {KAFKA}:\n{}",
        String::from_utf8_lossy(&fetched.stdout)
    );
    fs::rename(scratch.path(), kafka).expect("the lock is ours");
}

/// Runs a program to its end; one that is missing is named with its package.
fn output(command: &mut Command, program: &str, package: &str) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => panic!(
            "tests against real Kafka need `{program}`, which is not on PATH: on Debian, apt-get install {package}"
        ),
        Err(error) => panic!("cannot run {program}: {error}"),
    }
}

/// Cargo's target directory, wherever it was told to be: cargo marks it.
pub(crate) fn target_dir() -> PathBuf {
    let program = std::env::current_exe().expect("a test binary is a file");
    let marked = program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    marked.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), Path::to_owned)
}
