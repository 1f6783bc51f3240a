use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown, ftruncate,
    futimens, linkat, mkdirat, mknodat, openat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::plan::Link;
use crate::scan::{OwnerMap, open_beneath, proc_path, set_attributes};
use crate::tree::{Content, Entry, Meta, Node, Tree};

/// A file to be written: where it stands in the tree, and how many pieces are still to come.
#[derive(Debug)]
pub(crate) struct FileTask {
    pub(crate) listing: u32,
    pub(crate) place: u32,
    pub(crate) pieces: u32,
    left: AtomicU32,
}

impl FileTask {
    pub(crate) const fn new(listing: u32, place: u32, pieces: u32) -> Self {
        Self { listing, place, pieces, left: AtomicU32::new(pieces) }
    }
}

/// The user that an owner outside the mapping was saved as.
const OVERFLOW: u32 = 65534;

fn owner(owners: &OwnerMap, there: u32) -> io::Result<u32> {
    owners
        .to_host(there)
        .or(Some(OVERFLOW).filter(|_| there == OVERFLOW))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an owner is outside the mapping"))
}

fn times(meta: &Meta) -> Timestamps {
    let time = Timespec { tv_sec: meta.seconds, tv_nsec: meta.nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// One thread's hand that writes beneath the target.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    target: BorrowedFd<'a>,
    tree: &'a Tree,
    owners: &'a OwnerMap,
    us: (u32, u32),
    open: Option<(u32, OwnedFd)>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(target: BorrowedFd<'a>, tree: &'a Tree, owners: &'a OwnerMap) -> Self {
        let us = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { target, tree, owners, us, open: None }
    }

    fn folder(&mut self, listing: u32) -> io::Result<BorrowedFd<'_>> {
        if self.open.as_ref().is_none_or(|open| open.0 != listing) {
            let path = &self.tree.listings[listing as usize].path;
            let folder = open_beneath(self.target, path, OFlags::PATH | OFlags::DIRECTORY)?;
            self.open = Some((listing, folder));
        }
        self.open.as_ref().map(|open| open.1.as_fd()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn entry(&self, task: &FileTask) -> &'a Entry {
        &self.tree.listings[task.listing as usize].entries[task.place as usize]
    }

    /// Writes one piece of a file; the last one finishes it. Returns whether it did.
    pub(crate) fn piece(&mut self, task: &FileTask, at: u64, bytes: &[u8]) -> io::Result<bool> {
        let entry = self.entry(task);
        let whole = task.pieces == 1;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = if whole { flags | OFlags::EXCL } else { flags };
        let (us, owners) = (self.us, self.owners);
        let folder = self.folder(task.listing)?;
        let file = openat(folder, &*entry.name, flags, Mode::RUSR | Mode::WUSR)?;
        let mut written = 0;
        while written < bytes.len() {
            match rustix::io::pwrite(&file, &bytes[written..], at + written as u64) {
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let last = task.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            finish(folder, &file, entry, owners, us)?;
        }
        Ok(last)
    }

    /// Makes a file that has no pieces.
    pub(crate) fn empty(&mut self, task: &FileTask) -> io::Result<()> {
        let entry = self.entry(task);
        let (us, owners) = (self.us, self.owners);
        let folder = self.folder(task.listing)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(folder, &*entry.name, flags, Mode::RUSR | Mode::WUSR)?;
        finish(folder, &file, entry, owners, us)
    }
}

fn finish(
    folder: BorrowedFd<'_>,
    file: &OwnedFd,
    entry: &Entry,
    owners: &OwnerMap,
    us: (u32, u32),
) -> io::Result<()> {
    if let Node::File(node) = &entry.node
        && matches!(node.content, Content::Many(_))
    {
        // a hole at the end has no piece
        ftruncate(file, node.size)?;
    }
    let (uid, gid) = (owner(owners, entry.meta.uid)?, owner(owners, entry.meta.gid)?);
    if (uid, gid) != us {
        fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    // after the owner, whose change takes the set-id bits away; before an access list, which is part of the mode
    if entry.meta.mode != 0o600 {
        fchmod(file, Mode::from_raw_mode(entry.meta.mode))?;
    }
    set_attributes(folder, &entry.name, owners, &entry.attributes)?;
    Ok(futimens(file, &times(&entry.meta))?)
}

/// Makes all folders, symlinks and pipes, each name for itself; a folder that is there from a restore that broke off
/// stays.
pub(crate) fn make_folders(target: BorrowedFd<'_>, tree: &Tree, owners: &OwnerMap) -> io::Result<()> {
    for listing in &tree.listings {
        let folder = open_beneath(target, &listing.path, OFlags::PATH | OFlags::DIRECTORY)?;
        let set = |entry: &Entry, kind: FileType| -> io::Result<()> {
            let (uid, gid) = (owner(owners, entry.meta.uid)?, owner(owners, entry.meta.gid)?);
            chownat(
                &folder,
                &*entry.name,
                Some(Uid::from_raw(uid)),
                Some(Gid::from_raw(gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .or_else(|error| if error == Errno::PERM { Ok(()) } else { Err(error) })?;
            if kind == FileType::Fifo {
                let path = proc_path(folder.as_fd(), &entry.name)?;
                rustix::fs::chmod(path.as_c_str(), Mode::from_raw_mode(entry.meta.mode))?;
                set_attributes(folder.as_fd(), &entry.name, owners, &entry.attributes)?;
            }
            Ok(utimensat(&folder, &*entry.name, &times(&entry.meta), AtFlags::SYMLINK_NOFOLLOW)?)
        };
        for entry in &listing.entries {
            match &entry.node {
                Node::Folder | Node::Passage => {
                    let mode = if matches!(entry.node, Node::Passage) { 0o755 } else { 0o700 };
                    match mkdirat(&folder, &*entry.name, Mode::from_raw_mode(mode)) {
                        Ok(()) => {}
                        Err(Errno::EXIST) if is(&folder, &entry.name, FileType::Directory) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Node::Symlink(link) => {
                    remove(&folder, &entry.name)?;
                    symlinkat(&**link, &folder, &*entry.name)?;
                    set(entry, FileType::Symlink)?;
                }
                Node::Fifo => {
                    remove(&folder, &entry.name)?;
                    mknodat(&folder, &*entry.name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                    set(entry, FileType::Fifo)?;
                }
                Node::File(_) => {}
            }
        }
    }
    Ok(())
}

fn is(folder: &OwnedFd, name: &[u8], kind: FileType) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
}

fn remove(folder: &OwnedFd, name: &[u8]) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Gives what is made its other names.
pub(crate) fn link_names(target: BorrowedFd<'_>, tree: &Tree, links: &[Link]) -> io::Result<()> {
    let open = |listing: u32| {
        open_beneath(target, &tree.listings[listing as usize].path, OFlags::PATH | OFlags::DIRECTORY)
    };
    for link in links {
        let (from, to) = (open(link.made.0)?, open(link.name.0)?);
        let name = |at: (u32, u32)| &tree.listings[at.0 as usize].entries[at.1 as usize].name;
        let (old, new) = (name(link.made), name(link.name));
        remove(&to, new)?;
        // without following: a symlink itself is what gets another name
        linkat(&from, &**old, &to, &**new, AtFlags::empty())?;
    }
    Ok(())
}

/// Gives folders their owners, modes, attributes and times, the deepest first.
pub(crate) fn finish_folders(target: BorrowedFd<'_>, tree: &Tree, owners: &OwnerMap) -> io::Result<()> {
    let set = |folder: &OwnedFd, entry: &Entry| -> io::Result<()> {
        let (uid, gid) = (owner(owners, entry.meta.uid)?, owner(owners, entry.meta.gid)?);
        fchown(folder, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .or_else(|error| if error == Errno::PERM { Ok(()) } else { Err(error) })?;
        fchmod(folder, Mode::from_raw_mode(entry.meta.mode))?;
        set_attributes(folder.as_fd(), b".", owners, &entry.attributes)?;
        Ok(futimens(folder, &times(&entry.meta))?)
    };
    for listing in tree.listings.iter().rev() {
        for entry in listing.entries.iter().filter(|entry| matches!(entry.node, Node::Folder)) {
            let path = crate::tree::join(&listing.path, &entry.name);
            set(&open_beneath(target, &path, OFlags::RDONLY | OFlags::DIRECTORY)?, entry)?;
        }
    }
    if matches!(tree.root.node, Node::Folder) {
        set(&open_beneath(target, b"", OFlags::RDONLY | OFlags::DIRECTORY)?, &tree.root)?;
    }
    Ok(())
}
