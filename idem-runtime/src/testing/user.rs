//! Who runs the server.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::TestingError;

/// The user that the server runs as. PostgreSQL refuses to be root.
#[derive(Debug, Clone, Copy)]
pub(super) enum ServerUser {
    /// Whoever started this process.
    Same,
    /// This process is root's; the server is somebody else's.
    Unprivileged { uid: u32, gid: u32 },
}

impl ServerUser {
    /// `own` is a file or directory that this process has just made.
    pub(super) fn find(own: &Path) -> Result<Self, TestingError> {
        if owner(own)? != 0 {
            return Ok(Self::Same);
        }
        let path = Path::new("/etc/passwd");
        let passwd = fs::read_to_string(path).map_err(TestingError::file("read", path))?;
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| ids(&passwd, name))
            .map(|(uid, gid)| Self::Unprivileged { uid, gid })
            .ok_or(TestingError::NoUnprivilegedUser)
    }

    /// Lets the command run as this user.
    pub(super) fn run(self, command: &mut Command) {
        if let Self::Unprivileged { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
    }

    /// Gives this user a file or directory.
    pub(super) fn give(self, path: &Path) -> Result<(), TestingError> {
        match self {
            Self::Same => Ok(()),
            Self::Unprivileged { uid, gid } => {
                chown(path, Some(uid), Some(gid)).map_err(TestingError::file("change the owner of", path))
            }
        }
    }
}

/// The user id that owns a path.
pub(super) fn owner(path: &Path) -> Result<u32, TestingError> {
    Ok(fs::metadata(path).map_err(TestingError::file("look at", path))?.uid())
}

/// User and group id of a name in the text of `/etc/passwd`. Root under another name is no use.
fn ids(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let fields: Vec<&str> = passwd
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut line| (line.next() == Some(name)).then(|| line.collect()))?;
    let (uid, gid) = (fields.get(1)?.parse().ok()?, fields.get(2)?.parse().ok()?);
    (uid != 0).then_some((uid, gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_from_the_line_of_that_name() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\npostgres2:x:7:7::/:\npostgres:x:101:104:,,,:/var:/bin/sh\ntoor:x:0:0::/:\n";
        assert_eq!(ids(passwd, "postgres"), Some((101, 104)));
        assert_eq!(ids(passwd, "toor"), None);
        assert_eq!(ids(passwd, "nobody"), None);
    }
}
