use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat, readlinkat, statat};

use super::{Excludes, FileStat, OwnerMap, attributes_at, open_beneath};
use crate::manifest::{NAMED_MAX, SaveRecord};
use crate::tree::{Entry, FileNode, Listing, Meta, Node, Stamp, Tree, TreePath, join};

const CACHE_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// Times within this span before a scan may hide a later change.
const TICK_NANOS: i128 = 50_000_000;

/// What an earlier save knew of the tree.
#[derive(Debug, Default)]
pub(crate) struct Cached {
    pub(crate) tree: Tree,
    /// When its scan began, in nanoseconds.
    pub(crate) scanned: i128,
}

/// A folder that was scanned.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) listing: Listing,
    /// Which of the roots it is in.
    pub(crate) root: usize,
    /// Entries to be read, by their place in the listing.
    pub(crate) reads: Vec<u32>,
    /// What has several names: place, device, inode.
    pub(crate) links: Vec<(u32, u64, u64)>,
}

/// What a scan goes by.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    /// The roots, open; their prefix in the save.
    pub(crate) roots: Vec<(Box<[u8]>, OwnedFd)>,
    pub(crate) excludes: &'a Excludes,
    pub(crate) owners: &'a OwnerMap,
    pub(crate) cached: Option<&'a Cached>,
    /// Whether tagged caches are left out.
    pub(crate) skip_tagged: bool,
    /// Whether files' attributes are read with their folder: when they are not opened later.
    pub(crate) file_attributes: bool,
}

#[derive(Debug, Default)]
struct Queue {
    folders: VecDeque<(usize, Vec<u8>)>,
    busy: usize,
}

/// A scan under way, shared by the threads that do it.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    scan: &'a Scan<'a>,
    cached: HashMap<&'a [u8], &'a Listing>,
    queue: Mutex<Queue>,
    more: Condvar,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(scan: &'a Scan<'a>) -> Self {
        let mut cached = HashMap::new();
        if let Some(known) = scan.cached {
            cached.extend(known.tree.listings.iter().map(|listing| (&*listing.path, listing)));
        }
        let folders = (0..scan.roots.len()).map(|root| (root, scan.roots[root].0.to_vec())).collect();
        Self { scan, cached, queue: Mutex::new(Queue { folders, busy: 0 }), more: Condvar::new() }
    }

    /// Scans folders until none is left; several threads may do so at once.
    pub(crate) fn run(&self, usable: &dyn Fn(&Entry) -> bool) -> (Vec<Found>, SaveRecord) {
        let mut found = Vec::new();
        let mut record = SaveRecord::default();
        loop {
            let next = {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                loop {
                    // the newest first: the queue stays as short as the tree is deep
                    if let Some(next) = queue.folders.pop_back() {
                        queue.busy += 1;
                        break Some(next);
                    }
                    if queue.busy == 0 {
                        break None;
                    }
                    queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let Some((root, path)) = next else { break };
            let mut below = Vec::new();
            match self.folder(root, &path, usable, &mut below, &mut record) {
                Ok(Some(folder)) => found.push(folder),
                Ok(None) => record.stats.excluded += 1,
                Err(_) => note_unreadable(&mut record, &path),
            }
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.busy -= 1;
            queue.folders.extend(below.into_iter().map(|path| (root, path)));
            if queue.busy == 0 || !queue.folders.is_empty() {
                self.more.notify_all();
            }
        }
        (found, record)
    }

    /// Scans one folder; nothing when it is a tagged cache.
    fn folder(
        &self,
        root: usize,
        path: &[u8],
        usable: &dyn Fn(&Entry) -> bool,
        below: &mut Vec<Vec<u8>>,
        record: &mut SaveRecord,
    ) -> io::Result<Option<Found>> {
        let (prefix, handle) = &self.scan.roots[root];
        let inside = path[prefix.len()..].strip_prefix(b"/").unwrap_or(&path[prefix.len()..]);
        let folder = open_beneath(handle.as_fd(), inside, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut stream = Dir::read_from(&folder)?;
        while let Some(entry) = stream.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.into());
            }
        }
        drop(stream);
        names.sort_unstable();
        if self.scan.skip_tagged
            && !inside.is_empty()
            && names.binary_search_by(|name| (**name).cmp(b"CACHEDIR.TAG")).is_ok()
            && is_tagged(&folder)
        {
            return Ok(None);
        }
        let cached = self.cached.get(path).copied();
        let mut found = Found { root, ..Found::default() };
        found.listing.path = path.into();
        found.listing.entries.reserve_exact(names.len());
        let mut full = Vec::new();
        for name in names {
            let looked_at = !self.scan.excludes.is_empty();
            if looked_at {
                full = join(path, &name);
                if self.scan.excludes.has(&full) {
                    record.stats.excluded += 1;
                    continue;
                }
            }
            let stat = match statat(&folder, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(rustix::io::Errno::NOENT) => continue,
                Err(_) => {
                    note_unreadable(record, &join(path, &name));
                    continue;
                }
            };
            if let Err(_error) = self.entry(&folder, name.clone(), &stat, cached, usable, &mut found, record)
            {
                note_unreadable(record, &join(path, &name));
                continue;
            }
            if found.listing.entries.last().is_some_and(|entry| entry.name == name && entry.is_folder()) {
                below.push(if looked_at { std::mem::take(&mut full) } else { join(path, &name) });
            }
        }
        Ok(Some(found))
    }

    #[expect(clippy::too_many_arguments, reason = "one entry in its folder")]
    fn entry(
        &self,
        folder: &OwnedFd,
        name: Box<[u8]>,
        stat: &Stat,
        cached: Option<&Listing>,
        usable: &dyn Fn(&Entry) -> bool,
        found: &mut Found,
        record: &mut SaveRecord,
    ) -> io::Result<()> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        match kind {
            FileType::Socket => record.stats.sockets += 1,
            FileType::BlockDevice | FileType::CharacterDevice => record.stats.devices += 1,
            _ => {}
        }
        let known = cached.and_then(|listing| {
            let at = listing.entries.binary_search_by(|entry| entry.name.cmp(&name)).ok()?;
            Some(&listing.entries[at]).filter(|entry| self.is_same(entry, stat, kind))
        });
        let mut entry = Entry { meta: self.meta(stat, record), name, ..Entry::default() };
        let file_stat = FileStat::from(stat);
        entry.stamp =
            Stamp { inode: file_stat.inode, seconds: file_stat.changed.0, nanos: file_stat.changed.1 };
        let place = found.listing.entries.len() as u32;
        let attributes = |entry: &Entry, record: &mut SaveRecord| match known {
            Some(known) => Ok(known.attributes.clone()),
            None => {
                attributes_at(folder.as_fd(), &entry.name, self.scan.owners, &mut record.stats.attributes)
            }
        };
        match kind {
            FileType::RegularFile => {
                if let Some(known) = known.filter(|known| usable(known)) {
                    entry.attributes.clone_from(&known.attributes);
                    entry.node = known.node.clone();
                } else {
                    if self.scan.file_attributes {
                        entry.attributes = attributes(&entry, record)?;
                    }
                    entry.node = Node::File(FileNode { size: file_stat.size, ..FileNode::default() });
                    found.reads.push(place);
                }
            }
            FileType::Directory => {
                entry.attributes = attributes(&entry, record)?;
                entry.node = Node::Folder;
            }
            FileType::Symlink => {
                let target = readlinkat(folder, &*entry.name, Vec::new())?;
                entry.node = Node::Symlink(target.to_bytes().into());
            }
            FileType::Fifo => {
                entry.attributes = attributes(&entry, record)?;
                entry.node = Node::Fifo;
            }
            _ => return Ok(()),
        }
        if stat.st_nlink > 1 && kind != FileType::Directory {
            found.links.push((place, stat.st_dev, stat.st_ino));
        }
        found.listing.entries.push(entry);
        Ok(())
    }

    fn meta(&self, stat: &Stat, record: &mut SaveRecord) -> Meta {
        meta_of(stat, self.scan.owners, &mut record.stats.foreign_owners)
    }

    /// Holds when the entry is sure to be what it was.
    fn is_same(&self, entry: &Entry, stat: &Stat, kind: FileType) -> bool {
        let now = FileStat::from(stat);
        let scanned = self.scan.cached.map_or(i128::MIN, |cached| cached.scanned);
        let nanos = |(seconds, nanos): (i64, u32)| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let kinds = match &entry.node {
            Node::File(file) => kind == FileType::RegularFile && file.size == now.size,
            Node::Folder => kind == FileType::Directory,
            Node::Fifo => kind == FileType::Fifo,
            Node::Symlink(_) | Node::Passage => false,
        };
        kinds
            && entry.stamp == Stamp { inode: now.inode, seconds: now.changed.0, nanos: now.changed.1 }
            && (entry.meta.seconds, entry.meta.nanos) == now.modified
            && nanos(now.changed).max(nanos(now.modified)) < scanned - TICK_NANOS
    }
}

/// Returns what the guest sees of a file.
pub(crate) fn meta_of(stat: &Stat, owners: &OwnerMap, foreign: &mut u64) -> Meta {
    let ((uid, known), (gid, group_known)) = (owners.to_guest(stat.st_uid), owners.to_guest(stat.st_gid));
    if !known || !group_known {
        *foreign += 1;
    }
    let (seconds, nanos) = FileStat::from(stat).modified;
    Meta { mode: stat.st_mode & 0o7777, uid, gid, seconds, nanos }
}

fn is_tagged(folder: &OwnedFd) -> bool {
    let read = || -> io::Result<bool> {
        let file = open_beneath(folder.as_fd(), b"CACHEDIR.TAG", OFlags::RDONLY | OFlags::NONBLOCK)?;
        let mut start = [0; CACHE_TAG.len()];
        let length = rustix::io::read(&file, &mut start)?;
        Ok(start[..length] == *CACHE_TAG)
    };
    read().unwrap_or(false)
}

pub(crate) fn note_unreadable(record: &mut SaveRecord, path: &[u8]) {
    record.stats.unreadable += 1;
    if record.unreadable.len() < NAMED_MAX {
        record.unreadable.push(TreePath::of(path));
    }
}
