//! Copying a data directory.

use std::fs;
use std::path::Path;

use super::TestingError;
use super::user::ServerUser;

/// Copies a directory with everything in it, modes and owner included. The target must not exist.
pub(super) fn copy_tree(from: &Path, to: &Path, user: ServerUser) -> Result<(), TestingError> {
    let read = |path: &Path| TestingError::file("read", path);
    let write = |path: &Path| TestingError::file("write", path);
    fs::create_dir_all(to).map_err(write(to))?;
    for entry in fs::read_dir(from).map_err(read(from))? {
        let entry = entry.map_err(read(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().map_err(read(&source))?.is_dir() {
            copy_tree(&source, &target, user)?;
        } else {
            fs::copy(&source, &target).map_err(write(&target))?;
            user.give(&target)?;
        }
    }
    let mode = fs::metadata(from).map_err(read(from))?.permissions();
    fs::set_permissions(to, mode).map_err(write(to))?;
    user.give(to)
}
