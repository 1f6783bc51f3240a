use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown, fstat,
    ftruncate, futimens, linkat, mkdirat, mknodat, openat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::plan::Link;
use crate::scan::{OwnerMap, open_beneath, proc_path, set_attributes};
use crate::tree::{Content, Entry, Listing, Meta, Node, Tree, join};

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
        let (owners, mode) = (self.owners, self.mode(task, entry)?);
        let folder = self.folder(task.listing)?;
        let file = openat(folder, &*entry.name, flags, mode)?;
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
            finish(folder, &file, entry, owners)?;
        }
        Ok(last)
    }

    /// Makes a file that has no pieces.
    pub(crate) fn empty(&mut self, task: &FileTask) -> io::Result<()> {
        let entry = self.entry(task);
        let (owners, mode) = (self.owners, self.mode(task, entry)?);
        let folder = self.folder(task.listing)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(folder, &*entry.name, flags, mode)?;
        finish(folder, &file, entry, owners)
    }

    /// The mode to make a file with: its own where that lets nobody in who is not let in later, and nothing opens it
    /// again. What the umask takes away is given back at the end.
    fn mode(&self, task: &FileTask, entry: &Entry) -> io::Result<Mode> {
        let meta = &entry.meta;
        let ours = (owner(self.owners, meta.uid)?, owner(self.owners, meta.gid)?) == self.us;
        // an access list may let in fewer than its mask, which stands where the mode says group
        if ours && task.pieces <= 1 && entry.attributes.is_empty() {
            Ok(Mode::from_raw_mode(meta.mode & 0o777))
        } else {
            Ok(Mode::RUSR | Mode::WUSR)
        }
    }
}

fn finish(folder: BorrowedFd<'_>, file: &OwnedFd, entry: &Entry, owners: &OwnerMap) -> io::Result<()> {
    if let Node::File(node) = &entry.node
        && matches!(node.content, Content::Many(_))
    {
        // a hole at the end has no piece
        ftruncate(file, node.size)?;
    }
    let (uid, gid) = (owner(owners, entry.meta.uid)?, owner(owners, entry.meta.gid)?);
    // looking is cheaper than a change that the file system writes down, and most files are made as they are to be
    let made = fstat(file)?;
    let foreign = (uid, gid) != (made.st_uid, made.st_gid);
    if foreign {
        fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    // after the owner, whose change takes the set-id bits away; before an access list, which is part of the mode
    if foreign || made.st_mode & 0o7777 != entry.meta.mode {
        fchmod(file, Mode::from_raw_mode(entry.meta.mode))?;
    }
    set_attributes(folder, &entry.name, owners, &entry.attributes)?;
    Ok(futimens(file, &times(&entry.meta))?)
}

/// Makes a folder's folders, symlinks and pipes, each name for itself; a folder that is there from a restore that broke
/// off stays. The folder itself is made with its parent's.
pub(crate) fn make_entries(target: BorrowedFd<'_>, listing: &Listing, owners: &OwnerMap) -> io::Result<()> {
    if listing.entries.iter().all(|entry| matches!(entry.node, Node::File(_))) {
        return Ok(());
    }
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

/// Gives a folder's folders their owners, modes, attributes and times; what is below them has its own.
pub(crate) fn finish_folders(target: BorrowedFd<'_>, listing: &Listing, owners: &OwnerMap) -> io::Result<()> {
    for entry in listing.entries.iter().filter(|entry| matches!(entry.node, Node::Folder)) {
        finish_folder(target, &join(&listing.path, &entry.name), entry, owners)?;
    }
    Ok(())
}

/// Gives one folder its owner, mode, attributes and times.
pub(crate) fn finish_folder(
    target: BorrowedFd<'_>,
    path: &[u8],
    entry: &Entry,
    owners: &OwnerMap,
) -> io::Result<()> {
    let folder = open_beneath(target, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let (uid, gid) = (owner(owners, entry.meta.uid)?, owner(owners, entry.meta.gid)?);
    fchown(&folder, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
        .or_else(|error| if error == Errno::PERM { Ok(()) } else { Err(error) })?;
    fchmod(&folder, Mode::from_raw_mode(entry.meta.mode))?;
    set_attributes(folder.as_fd(), b".", owners, &entry.attributes)?;
    Ok(futimens(&folder, &times(&entry.meta))?)
}
