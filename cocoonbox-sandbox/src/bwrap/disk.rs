//! Small durable file work: whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// Makes a directory with exactly `mode`, whatever the umask; it may exist.
pub(crate) fn directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a directory that belongs to `owner`, where there is one; true when it is new.
pub(crate) fn owned_directory(path: &Path, mode: u32, owner: Option<u32>) -> io::Result<bool> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            give(path, owner)?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives `path` to `owner`, where there is one.
pub(crate) fn give(path: &Path, owner: Option<u32>) -> io::Result<()> {
    owner.map_or(Ok(()), |owner| chown(path, Some(owner), Some(owner)))
}

/// Replaces the file `name` in `directory` as one step that survives power loss.
pub(crate) fn replace(directory: &Path, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
    prepare(directory, name, bytes, mode, Durable::Yes)?;
    put(directory, name)?;
    sync(directory)
}

/// Whether what is written is to survive power loss, or the end of this process alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durable {
    Yes,
    No,
}

/// Writes what the file `name` will hold beside it; [`put`] brings it there.
pub(super) fn prepare(
    directory: &Path,
    name: &str,
    bytes: &[u8],
    mode: u32,
    durable: Durable,
) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}.new"));
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        if durable == Durable::Yes { file.sync_all() } else { Ok(()) }
    })();
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Brings what [`prepare`] wrote into its place. The directory is still to be written through.
pub(super) fn put(directory: &Path, name: &str) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}.new"));
    fs::rename(&temporary, directory.join(name)).inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Gives a file that all may read another content in its place: a box sees the file itself, not its directory, so that
/// one put in its stead would not be seen.
pub(super) fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)
}

/// Writes a directory's entries through to the disk.
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Reads a file of at most `most` bytes; a longer one is an error.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {most} bytes")));
    }
    Ok(bytes)
}

/// Opens a lock file and takes its lock; nothing when somebody else holds it.
pub(crate) fn lock(path: &Path) -> io::Result<Option<File>> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_whole_and_leaves_no_other() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        replace(directory.path(), "a", b"one", 0o600)?;
        replace(directory.path(), "a", b"two", 0o644)?;
        assert_eq!(read(&directory.path().join("a"), 3)?, b"two");
        assert!(read(&directory.path().join("a"), 2).is_err());
        assert_eq!(fs::read_dir(directory.path())?.count(), 1);
        assert_eq!(fs::metadata(directory.path().join("a"))?.permissions().mode() & 0o777, 0o644);
        Ok(())
    }

    #[test]
    fn a_lock_is_held_by_one() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("lock");
        let held = lock(&path)?;
        assert!(held.is_some());
        assert!(lock(&path)?.is_none());
        drop(held);
        assert!(lock(&path)?.is_some());
        Ok(())
    }
}
