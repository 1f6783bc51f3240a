//! Removing a tree that a hostile guest filled: no link is followed, depth costs no stack and no descriptors.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, openat, renameat, unlinkat};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes `path` and everything below it; what is not there is removed.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match clear(path) {
        Ok(()) => std::fs::remove_dir(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes everything below the directory `path`.
pub(crate) fn clear(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let top = open_writable(CWD, &name)?;
    let mut moved = 0_u64;
    loop {
        let entries = entries(top.as_fd())?;
        if entries.is_empty() {
            return Ok(());
        }
        for (name, _) in entries {
            // whatever lies deeper comes up to the top, so that the way down is never longer than one step
            match unlinkat(&top, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => flatten(top.as_fd(), &name, &mut moved)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Empties the directory `name` of `top`, its subdirectories moved up into `top`, and removes it.
fn flatten(top: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> io::Result<()> {
    let directory = open_writable(top, name)?;
    loop {
        let entries = entries(directory.as_fd())?;
        if entries.is_empty() {
            break;
        }
        for (entry, kind) in entries {
            let result = if kind == FileType::Directory {
                Err(Errno::ISDIR)
            } else {
                unlinkat(&directory, &entry, AtFlags::empty())
            };
            match result {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => raise(directory.as_fd(), &entry, top, moved)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
    unlinkat(top, name, AtFlags::REMOVEDIR).map_err(Into::into)
}

/// Moves the directory `entry` up into `top` under a name that is free there.
fn raise(directory: BorrowedFd<'_>, entry: &CStr, top: BorrowedFd<'_>, moved: &mut u64) -> io::Result<()> {
    // moving a directory rewrites its `..`, which asks for write permission on it
    drop(open_writable(directory, entry)?);
    loop {
        *moved += 1;
        let target = CString::new(format!(".removed-{moved}")).map_err(io::Error::other)?;
        match renameat(directory, entry, top, &target) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens a directory, giving its owner back the right to read it where that was given away.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    match openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => open_writable(parent, name),
        other => other.map_err(Into::into),
    }
}

/// Opens a directory, taking its permission bits back where its owner gave them away.
fn open_writable(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let open = || openat(parent, name, DIRECTORY, Mode::empty());
    let directory = match open() {
        Err(Errno::ACCESS) => {
            let handle =
                openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            if FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode) != FileType::Directory {
                return Err(Errno::NOTDIR.into());
            }
            // by descriptor, so that what is looked at is what is changed
            chmodat(CWD, descriptor_path(&handle).as_str(), Mode::RWXU, AtFlags::empty())?;
            open()?
        }
        other => other?,
    };
    if !Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode).contains(Mode::RWXU) {
        rustix::fs::fchmod(&directory, Mode::RWXU)?;
    }
    Ok(directory)
}

/// The path of an open descriptor in this process.
pub(crate) fn descriptor_path(descriptor: &OwnedFd) -> String {
    use std::os::fd::AsRawFd as _;
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
        // a directory of millions is taken in parts
        if found.len() >= 4096 {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn links_are_removed_and_what_they_lead_to_stays() -> io::Result<()> {
        let outside = tempfile::tempdir()?;
        fs::write(outside.path().join("kept"), b"kept")?;
        let inside = tempfile::tempdir()?;
        let tree = inside.path().join("tree");
        fs::create_dir_all(tree.join("a/b"))?;
        symlink(outside.path(), tree.join("a/link"))?;
        symlink(outside.path().join("kept"), tree.join("a/b/link"))?;
        fs::write(tree.join(".removed-1"), b"in the way")?;
        fs::create_dir_all(tree.join(".removed-2/x"))?;
        remove(&tree)?;
        assert!(!tree.exists());
        assert_eq!(fs::read(outside.path().join("kept"))?, b"kept");
        remove(&tree)
    }

    #[test]
    fn a_very_deep_and_locked_tree_is_removed() -> io::Result<()> {
        let inside = tempfile::tempdir()?;
        let tree = inside.path().join("tree");
        fs::create_dir(&tree)?;
        let mut at = openat(CWD, &tree, DIRECTORY, Mode::empty())?;
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU)?;
            at = openat(&at, "d", DIRECTORY, Mode::empty())?;
        }
        fs::create_dir(tree.join("locked"))?;
        fs::create_dir(tree.join("locked/within"))?;
        fs::set_permissions(tree.join("locked/within"), fs::Permissions::from_mode(0o0))?;
        fs::set_permissions(tree.join("locked"), fs::Permissions::from_mode(0o0))?;
        remove(&tree)?;
        assert!(!tree.exists());
        Ok(())
    }
}
