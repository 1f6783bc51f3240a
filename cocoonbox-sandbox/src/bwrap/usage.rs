//! What a directory holds, with a hostile guest in it: no link is followed, depth and width are bounded.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::tree;

/// How deep the way down is kept open; what lies deeper is looked at later, from where it begins.
const MAX_DEPTH: usize = 500;
/// How many directories may wait for that.
const MAX_LATER: usize = 64;
/// Descriptors of one process that are looked through for removed files.
const MAX_DESCRIPTORS: usize = 100_000;

/// Bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    pub(super) bytes: u64,
    pub(super) files: u64,
}

impl Usage {
    /// Whether this is within `most`.
    pub(super) const fn fits(&self, most: &Self) -> bool {
        self.bytes <= most.bytes && self.files <= most.files
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Used(Usage),
    /// More directories are nested deeper than anybody has reason to.
    TooDeep,
}

/// Adds up what is below `directory`, and stops adding at `most` files.
pub(super) fn measure(directory: &Path, most: u64) -> io::Result<Found> {
    let name = CString::new(directory.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let mut used = Usage::default();
    // a file under several names counts once
    let mut linked = HashSet::new();
    let mut open = Vec::new();
    let mut later = vec![tree::open_directory(CWD, &name)?];
    while used.files <= most {
        let Some(current) = open.last_mut() else {
            let Some(directory) = later.pop() else { break };
            open.push(Dir::new(directory)?);
            continue;
        };
        let Some(entry) = current.read() else {
            open.pop();
            continue;
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let at = current.fd()?;
        // it may be gone by now
        let Ok(stat) = statat(at, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory || stat.st_nlink < 2 || linked.insert((stat.st_dev, stat.st_ino)) {
            used.files += 1;
            used.bytes = used.bytes.saturating_add(stat.st_blocks.max(0) as u64 * 512);
        }
        if is_directory {
            // what its owner took the rights from is opened all the same, or it would be a place to hide things in
            match tree::open_directory(at, name) {
                Ok(below) if open.len() < MAX_DEPTH => open.push(Dir::new(below)?),
                Ok(below) if later.len() < MAX_LATER => later.push(below),
                Ok(_) => return Ok(Found::TooDeep),
                // gone, or another user's
                Err(_) => {}
            }
        }
    }
    Ok(Found::Used(used))
}

/// Adds up the files of the file system `device` that processes have open and that have no name any more.
pub(super) fn removed(processes: &[i32], device: u64) -> u64 {
    let mut seen = HashSet::new();
    let mut bytes = 0_u64;
    for pid in processes {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in descriptors.flatten().take(MAX_DESCRIPTORS) {
            let Ok(found) = fs::metadata(descriptor.path()) else { continue };
            if found.is_file() && found.nlink() == 0 && found.dev() == device && seen.insert(found.ino()) {
                bytes = bytes.saturating_add(found.blocks() * 512);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_counts_once_and_a_link_for_itself() -> io::Result<()> {
        let outside = tempfile::tempdir()?;
        fs::write(outside.path().join("large"), vec![1; 1 << 20])?;
        let directory = tempfile::tempdir()?;
        let below = directory.path().join("a/b");
        fs::create_dir_all(&below)?;
        fs::write(below.join("one"), vec![1; 256 * 1024])?;
        fs::hard_link(below.join("one"), directory.path().join("two"))?;
        symlink(outside.path(), directory.path().join("link"))?;
        File::create(directory.path().join("sparse"))?.set_len(1 << 40)?;
        let Found::Used(used) = measure(directory.path(), 1000)? else { panic!("it is not deep") };
        assert_eq!(used.files, 5);
        assert!((256 * 1024..512 * 1024).contains(&used.bytes), "{used:?}");
        // no rights are no place to hide in
        fs::set_permissions(&below, fs::Permissions::from_mode(0o000))?;
        assert_eq!(measure(directory.path(), 1000)?, Found::Used(used));
        let Found::Used(some) = measure(directory.path(), 2)? else { panic!("it is not deep") };
        assert_eq!(some.files, 3);
        Ok(())
    }

    fn chain(from: impl std::os::fd::AsFd, length: usize) -> io::Result<std::os::fd::OwnedFd> {
        let mut at = from.as_fd().try_clone_to_owned()?;
        for _ in 0..length {
            rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU)?;
            at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty())?;
        }
        Ok(at)
    }

    #[test]
    fn what_is_nested_deep_is_counted_and_what_is_so_many_times_is_found_out() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let top = File::open(directory.path())?;
        let deep = chain(&top, 3 * MAX_DEPTH)?;
        let files = |found| if let Found::Used(used) = found { used.files } else { 0 };
        assert_eq!(files(measure(directory.path(), 10_000)?), 3 * MAX_DEPTH as u64);
        for nth in 0..MAX_DEPTH {
            rustix::fs::mkdirat(&deep, format!("{nth}"), rustix::fs::Mode::RWXU)?;
        }
        assert_eq!(files(measure(directory.path(), 10_000)?), 4 * MAX_DEPTH as u64);
        tree::clear(directory.path())?;

        let deep = chain(&top, MAX_DEPTH - 1)?;
        for nth in 0..=MAX_LATER {
            rustix::fs::mkdirat(&deep, format!("{nth}"), rustix::fs::Mode::RWXU)?;
        }
        assert_eq!(measure(directory.path(), 10_000)?, Found::TooDeep);
        tree::clear(directory.path())
    }

    #[test]
    fn a_removed_file_counts_as_long_as_it_is_open() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("file");
        let mut file = File::create(&path)?;
        file.write_all(&vec![1; 1 << 20])?;
        file.sync_all()?;
        let own = [i32::try_from(std::process::id()).unwrap_or_default()];
        let device = fs::metadata(directory.path())?.dev();
        let before = removed(&own, device);
        fs::remove_file(&path)?;
        assert!(removed(&own, device) >= before + (1 << 20));
        Ok(())
    }
}
