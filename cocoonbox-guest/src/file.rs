//! Single files and directories: what the guest channel does to them, blocking.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use cocoonbox_core::{Entropy as _, SystemEntropy};
use cocoonbox_wire::silkd::{FileEntry, FileInfo, FileKind};

/// How many bytes of a file one message carries.
pub(crate) const CHUNK: usize = 256 * 1024;

/// How many names one message carries.
pub(crate) const BATCH: usize = 4096;

/// Opens a regular file for reading; anything else would block or never end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// Reads up to [`CHUNK`] bytes; fewer only at the end.
pub(crate) fn read_chunk(file: &mut File) -> io::Result<Vec<u8>> {
    let mut chunk = Vec::new();
    file.take(CHUNK as u64).read_to_end(&mut chunk)?;
    Ok(chunk)
}

/// A file in the making: seen under its name when it is whole, gone when it is dropped before.
#[derive(Debug)]
pub(crate) struct Replacement {
    file: File,
    temporary: Option<PathBuf>,
    target: PathBuf,
    mode: u32,
}

impl Replacement {
    /// Begins to replace `path`, through a last symbolic link; `mode` is what it had, or 0644, when absent.
    pub(crate) fn begin(path: &Path, mode: Option<u32>) -> io::Result<Self> {
        let target = match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => fs::canonicalize(path)?,
            _ => path.to_owned(),
        };
        let old = match fs::metadata(&target) {
            Ok(found) if found.is_file() => Some(found.mode()),
            Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
            Err(_) => None,
        };
        let directory =
            target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if target.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no file name"));
        }
        let temporary = directory.join(temporary_name()?);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let mode = mode.or(old).unwrap_or(0o644) & 0o777;
        Ok(Self { file, temporary: Some(temporary), target, mode })
    }

    pub(crate) fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all(data)
    }

    /// Puts the file in place.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        self.file.set_permissions(fs::Permissions::from_mode(self.mode))?;
        if let Some(temporary) = self.temporary.take()
            && let Err(error) = fs::rename(&temporary, &self.target)
        {
            self.temporary = Some(temporary);
            return Err(error);
        }
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Returns a name that nothing in the directory has.
pub(crate) fn temporary_name() -> io::Result<OsString> {
    let mut random = [0; 8];
    SystemEntropy.fill(&mut random).map_err(io::Error::other)?;
    Ok(format!(".cocoonbox-{:016x}", u64::from_le_bytes(random)).into())
}

/// Tells what a path is; a last symbolic link is not followed.
pub(crate) fn stat(path: &Path) -> io::Result<FileInfo> {
    fs::symlink_metadata(path).map(|found| info(&found))
}

fn info(found: &fs::Metadata) -> FileInfo {
    let kind = match found.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Dir,
        kind if kind.is_symlink() => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let modified = found.modified().ok().map_or(0, |time| match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    });
    FileInfo { kind, size: found.size(), mode: found.mode() & 0o7777, mtime_epoch_secs: modified }
}

/// Reads the next names of a directory; fewer than [`BATCH`] only at the end. What vanishes meanwhile is left out.
pub(crate) fn list_batch(directory: &mut fs::ReadDir) -> io::Result<Vec<FileEntry>> {
    let mut entries = Vec::new();
    for entry in directory.by_ref() {
        let entry = entry?;
        if let Ok(found) = entry.metadata() {
            entries.push(FileEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                info: info(&found),
            });
            if entries.len() == BATCH {
                break;
            }
        }
    }
    Ok(entries)
}

/// Makes a directory, with those above it when `parents`.
pub(crate) fn make_directory(path: &Path, parents: bool) -> io::Result<()> {
    if parents { fs::create_dir_all(path) } else { fs::create_dir(path) }
}

/// Removes a path; a directory that is not empty only when `recursive`.
pub(crate) fn remove(path: &Path, recursive: bool) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        fs::remove_file(path)
    } else if recursive {
        fs::remove_dir_all(path)
    } else {
        fs::remove_dir(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

    #[test]
    fn a_replacement_is_seen_whole_or_not_at_all() -> Result {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("f");
        fs::write(&path, "old")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750))?;
        let mut dropped = Replacement::begin(&path, None)?;
        dropped.write(b"half")?;
        drop(dropped);
        assert_eq!(fs::read(&path)?, b"old");
        assert_eq!(fs::read_dir(dir.path())?.count(), 1);
        let mut whole = Replacement::begin(&path, None)?;
        whole.write(b"new")?;
        assert_eq!(fs::read(&path)?, b"old");
        whole.commit()?;
        assert_eq!((fs::read(&path)?, stat(&path)?.mode), (b"new".to_vec(), 0o750));
        std::os::unix::fs::symlink(&path, dir.path().join("link"))?;
        Replacement::begin(&dir.path().join("link"), Some(0o600))?.commit()?;
        assert_eq!((stat(&path)?.size, stat(&path)?.mode), (0, 0o600));
        Ok(())
    }

    #[test]
    fn only_regular_files_are_read_or_replaced() -> Result {
        let dir = tempfile::tempdir()?;
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;
        for path in [dir.path(), &fifo, Path::new("/dev/zero")] {
            assert!(open(path).is_err(), "{}", path.display());
            assert!(Replacement::begin(path, None).is_err(), "{}", path.display());
        }
        assert!(Replacement::begin(&dir.path().join("no/such"), None).is_err());
        assert_eq!(
            open(&dir.path().join("none")).map_err(|error| error.kind()).err(),
            Some(io::ErrorKind::NotFound)
        );
        Ok(())
    }

    #[test]
    fn a_directory_is_listed_in_batches() -> Result {
        let dir = tempfile::tempdir()?;
        for number in 0..BATCH + 3 {
            File::create(dir.path().join(number.to_string()))?;
        }
        let mut reader = fs::read_dir(dir.path())?;
        assert_eq!([list_batch(&mut reader)?.len(), list_batch(&mut reader)?.len()], [BATCH, 3]);
        assert!(remove(dir.path(), false).is_err());
        remove(dir.path(), true)?;
        assert!(stat(dir.path()).is_err());
        Ok(())
    }
}
