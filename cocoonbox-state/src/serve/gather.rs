//! From folders to a tree whose content is known.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::thread;

use cocoonbox_core::SystemEntropy;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::worker::{Engine, Known};
use crate::browse::link_number;
use crate::chunk::{GROUP, SMALL_FILE};
use crate::manifest::{NAMED_MAX, SaveRecord};
use crate::save::{Neighbours, Progress, SaveError, SaveOptions};
use crate::scan::{
    Cached, Excludes, FileRead, Found, OwnerMap, Root, Scan, Walk, attributes_of, meta_of, note_unreadable,
};
use crate::tree::{
    ChunkTable, Entry, Listing, Node, Stamp, Tree, TreePath, compare, components, is_beneath, join, root_hash,
};
use crate::{BoxKeys, RootHash};

const BATCH_FILES: usize = 128;

/// What is gathered, and how.
#[derive(Debug)]
pub(crate) struct GatherInput<'a> {
    pub(crate) roots: &'a [Root],
    pub(crate) excludes: &'a Excludes,
    pub(crate) owners: &'a OwnerMap,
    pub(crate) skip_tagged: bool,
    pub(crate) cached: Option<&'a Cached>,
    pub(crate) threads: usize,
}

impl<'a> GatherInput<'a> {
    pub(crate) fn of(options: &'a SaveOptions, cached: Option<&'a Cached>) -> Self {
        Self {
            roots: &options.roots,
            excludes: &options.excludes,
            owners: &options.owners,
            skip_tagged: options.skip_tagged,
            cached,
            threads: options.threads,
        }
    }

    fn threads(&self) -> usize {
        match self.threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            given => given,
        }
    }
}

/// A root's prefix in the save, and its folder.
type OpenRoot = (Box<[u8]>, OwnedFd);

fn open_roots(input: &GatherInput<'_>) -> Result<Vec<OpenRoot>, SaveError> {
    let mut roots: Vec<OpenRoot> = Vec::new();
    let mut missing = io::Error::from(io::ErrorKind::NotFound);
    for root in input.roots {
        let prefix = root.prefix.as_bytes();
        if roots.iter().any(|(other, _)| is_beneath(prefix, other) || is_beneath(other, prefix)) {
            return Err(SaveError::Misuse { what: "roots lie in each other" });
        }
        match openat(CWD, &root.folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(handle) => roots.push((prefix.into(), handle)),
            Err(rustix::io::Errno::NOENT) => missing = rustix::io::Errno::NOENT.into(),
            Err(error) => return Err(SaveError::Roots { source: error.into() }),
        }
    }
    if roots.is_empty() { Err(SaveError::Roots { source: missing }) } else { Ok(roots) }
}

fn machine(source: io::Error) -> SaveError {
    SaveError::Machine { source }
}

/// Runs the same work on several threads, this one among them.
pub(super) fn on_threads<T: Send>(threads: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(&work)).collect();
        let mut results = vec![work()];
        for other in others {
            match other.join() {
                Ok(result) => results.push(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    })
}

/// Scans, reads and packs; the engine's table then holds all chunks of the tree.
pub(crate) fn gather(engine: &Engine<'_>, input: &GatherInput<'_>) -> Result<(Tree, SaveRecord), SaveError> {
    let scan = Scan {
        roots: open_roots(input)?,
        excludes: input.excludes,
        owners: input.owners,
        cached: input.cached,
        skip_tagged: input.skip_tagged,
        file_attributes: false,
    };
    let mut record = SaveRecord::default();
    let mut found = scan_all(engine, input, &scan, &mut record);
    let followers = link(engine.keys, &mut found);
    let reads: Vec<(u32, u32)> = found
        .iter()
        .enumerate()
        .flat_map(|(listing, folder)| folder.reads.iter().map(move |place| (listing as u32, *place)))
        .collect();
    announce(engine, &found, &reads);
    let batches = batches(&found, &reads);
    let threads = input.threads().min(batches.len().max(1));
    let mut results = Vec::new();
    for done in on_threads(threads, || engine.work(&scan, &found, &reads, &batches)) {
        results.extend(done.map_err(machine)?);
    }
    settle(&mut found, results, &followers, &mut record);
    record.stats.read_files = reads.len() as u64;
    record.stats.attributes += engine.attributes.load(std::sync::atomic::Ordering::Relaxed);
    record.stats.new_bytes = engine.new_bytes.load(std::sync::atomic::Ordering::Relaxed);
    let tree = plant(&scan, found, &mut record).map_err(|source| SaveError::Roots { source })?;
    count(&tree, &mut record);
    Ok((tree, record))
}

fn scan_all(
    engine: &Engine<'_>,
    input: &GatherInput<'_>,
    scan: &Scan<'_>,
    record: &mut SaveRecord,
) -> Vec<Found> {
    let walk = Walk::new(scan);
    let known = engine.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let kept: &Known = &known;
    let usable = |entry: &Entry| entry.chunks().iter().all(|chunk| kept.is_kept(*chunk));
    let mut found = Vec::new();
    for (part, noted) in on_threads(input.threads(), || walk.run(&usable)) {
        found.extend(part);
        merge(record, noted);
    }
    found.sort_unstable_by(|one, other| compare(&one.listing.path, &other.listing.path));
    found
}

fn merge(record: &mut SaveRecord, other: SaveRecord) {
    let (into, from) = (&mut record.stats, other.stats);
    into.sockets += from.sockets;
    into.devices += from.devices;
    into.attributes += from.attributes;
    into.foreign_owners += from.foreign_owners;
    into.excluded += from.excluded;
    into.unreadable += from.unreadable;
    record.unreadable.extend(other.unreadable);
    record.unreadable.truncate(NAMED_MAX);
}

type Place = (u32, u32);

/// Finds what has several names: the first is read, the others follow it.
fn link(keys: &BoxKeys, found: &mut [Found]) -> Vec<(Place, Place)> {
    let mut groups: HashMap<(u64, u64), Vec<Place>> = HashMap::new();
    for (listing, folder) in found.iter().enumerate() {
        for (place, device, inode) in &folder.links {
            groups.entry((*device, *inode)).or_default().push((listing as u32, *place));
        }
    }
    let mut followers = Vec::new();
    for names in groups.into_values().filter(|names| names.len() > 1) {
        let first = names[0];
        let folder = &found[first.0 as usize].listing;
        let path = join(&folder.path, &folder.entries[first.1 as usize].name);
        let number = link_number(keys, &path);
        for (listing, place) in &names {
            let folder = &mut found[*listing as usize];
            folder.listing.entries[*place as usize].link = number;
            if (*listing, *place) != first {
                if let Ok(at) = folder.reads.binary_search(place) {
                    folder.reads.remove(at);
                }
                followers.push((first, (*listing, *place)));
            }
        }
    }
    followers
}

fn announce(engine: &Engine<'_>, found: &[Found], reads: &[Place]) {
    let Some(progress) = engine.progress else { return };
    let size = |entry: &Entry| if let Node::File(file) = &entry.node { file.size } else { 0 };
    let mut now = Progress::default();
    for entry in found.iter().flat_map(|folder| &folder.listing.entries) {
        if matches!(entry.node, Node::File(_)) {
            now.files_total += 1;
            now.bytes_total += size(entry);
        }
    }
    let to_read: u64 =
        reads.iter().map(|read| size(&found[read.0 as usize].listing.entries[read.1 as usize])).sum();
    now.files = now.files_total - reads.len() as u64;
    now.bytes = now.bytes_total - to_read;
    progress.send_replace(now);
}

/// Cuts the list of reads into what a thread takes at once: about a group's worth, or one large file.
fn batches(found: &[Found], reads: &[Place]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, (listing, place)) in reads.iter().enumerate() {
        let entry = &found[*listing as usize].listing.entries[*place as usize];
        let size = if let Node::File(file) = &entry.node { file.size } else { 0 };
        let full = bytes + size > GROUP as u64 || index - start >= BATCH_FILES || size > SMALL_FILE;
        if full && index > start {
            batches.push(start..index);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < reads.len() {
        batches.push(start..reads.len());
    }
    batches
}

/// Puts what was read into the listings; what could not be read is taken out and named.
fn settle(
    found: &mut [Found],
    results: Vec<(u32, u32, Option<FileRead>)>,
    followers: &[(Place, Place)],
    record: &mut SaveRecord,
) {
    let mut gone: Vec<Place> = Vec::new();
    for (listing, place, read) in results {
        let folder = &mut found[listing as usize].listing;
        let entry = &mut folder.entries[place as usize];
        let Some(read) = read else {
            gone.push((listing, place));
            continue;
        };
        if read.inconsistent {
            record.stats.inconsistent += 1;
            if record.inconsistent.len() < NAMED_MAX {
                record.inconsistent.push(TreePath::of(&join(&folder.path, &entry.name)));
            }
        }
        let stat = crate::scan::FileStat::from(&read.stat);
        entry.meta.mode = read.stat.st_mode & 0o7777;
        (entry.meta.seconds, entry.meta.nanos) = stat.modified;
        entry.attributes = read.attributes;
        entry.stamp = if read.inconsistent {
            Stamp::default()
        } else {
            Stamp { inode: stat.inode, seconds: stat.changed.0, nanos: stat.changed.1 }
        };
        if let Node::File(file) = &mut entry.node {
            file.size = read.size;
            file.content = read.content;
        }
    }
    for ((listing, place), follower) in followers {
        if gone.contains(&(*listing, *place)) {
            gone.push(*follower);
            continue;
        }
        let leader = found[*listing as usize].listing.entries[*place as usize].clone();
        let entry = &mut found[follower.0 as usize].listing.entries[follower.1 as usize];
        *entry = Entry { name: std::mem::take(&mut entry.name), ..leader };
    }
    // from the end, so that places before stay what they are
    gone.sort_unstable();
    gone.dedup();
    for (listing, place) in gone.into_iter().rev() {
        let folder = &mut found[listing as usize].listing;
        let entry = folder.entries.remove(place as usize);
        note_unreadable(record, &join(&folder.path, &entry.name));
    }
}

/// Puts the roots' folders under passages and takes out folders that were not listed.
fn plant(scan: &Scan<'_>, found: Vec<Found>, record: &mut SaveRecord) -> io::Result<Tree> {
    let mut listings: Vec<Listing> = found.into_iter().map(|folder| folder.listing).collect();
    let mut tree = Tree::default();
    for (prefix, handle) in &scan.roots {
        let stat = crate::scan::stat_of(handle)?;
        let mut left_out = 0;
        let mut entry = Entry {
            meta: meta_of(&stat, scan.owners, &mut record.stats.foreign_owners),
            attributes: attributes_of(handle, scan.owners, &mut left_out)?,
            node: Node::Folder,
            ..Entry::default()
        };
        record.stats.attributes += left_out;
        let names: Vec<&[u8]> = components(prefix).collect();
        let Some((last, way)) = names.split_last() else {
            tree.root = entry;
            continue;
        };
        let mut path = Vec::new();
        for name in way {
            passage(&mut listings, &path, Entry { name: (*name).into(), ..Entry::default() });
            path = join(&path, name);
        }
        entry.name = (*last).into();
        passage(&mut listings, &path, entry);
    }
    // a folder whose listing failed, or that is a tagged cache, is not there
    let listed: std::collections::HashSet<Box<[u8]>> =
        listings.iter().map(|listing| listing.path.clone()).collect();
    for listing in &mut listings {
        let path = &listing.path;
        listing.entries.retain(|entry| !entry.is_folder() || listed.contains(&*join(path, &entry.name)));
    }
    tree.listings = listings;
    Ok(tree)
}

fn passage(listings: &mut Vec<Listing>, folder: &[u8], entry: Entry) {
    let at = match listings.binary_search_by(|listing| compare(&listing.path, folder)) {
        Ok(at) => at,
        Err(at) => {
            listings.insert(at, Listing { path: folder.into(), entries: Vec::new() });
            at
        }
    };
    let entries = &mut listings[at].entries;
    if let Err(place) = entries.binary_search_by(|known| known.name.cmp(&entry.name)) {
        entries.insert(place, entry);
    }
}

fn count(tree: &Tree, record: &mut SaveRecord) {
    let stats = &mut record.stats;
    for entry in tree.listings.iter().flat_map(|listing| &listing.entries) {
        match &entry.node {
            Node::File(file) => {
                stats.files += 1;
                stats.bytes += file.size;
            }
            Node::Folder => stats.folders += 1,
            Node::Symlink(_) => stats.symlinks += 1,
            Node::Fifo => stats.fifos += 1,
            Node::Passage => {}
        }
    }
}

/// Returns the hash over folders as a save of them would have it: all files are read.
///
/// # Errors
/// As a save's.
pub async fn hash_tree(keys: &BoxKeys, options: &SaveOptions) -> Result<RootHash, SaveError> {
    let (keys, options) = (keys.clone(), options.clone());
    let hashed = super::blocking(move || {
        let (entropy, neighbours) = (SystemEntropy, Neighbours::default());
        let engine = Engine::new(&keys, &entropy, &options.owners, &neighbours, Known::default());
        Ok(gather(&engine, &GatherInput::of(&options, None)).and_then(|(tree, _)| {
            let known = engine.known.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            let table: ChunkTable = known.table;
            root_hash(&keys, &tree, &table).map_err(|error| machine(io::Error::other(error)))
        }))
    });
    hashed.await.map_err(machine)?
}

/// Scans what a restore wrote, and takes the content of files from the tree that it wrote: their chunks' ids were
/// checked when they were written. Everything else is what the disk says.
pub(super) fn survey(
    keys: &BoxKeys,
    owners: &OwnerMap,
    roots: &[Root],
    written: &Tree,
    threads: usize,
) -> Result<Tree, SaveError> {
    let excludes = Excludes::none();
    let input = GatherInput { roots, excludes: &excludes, owners, skip_tagged: false, cached: None, threads };
    let scan = Scan {
        roots: open_roots(&input)?,
        excludes: &excludes,
        owners,
        cached: None,
        skip_tagged: false,
        file_attributes: true,
    };
    let walk = Walk::new(&scan);
    let mut record = SaveRecord::default();
    let mut found = Vec::new();
    for (part, noted) in on_threads(input.threads(), || walk.run(&|_| false)) {
        found.extend(part);
        merge(&mut record, noted);
    }
    found.sort_unstable_by(|one, other| compare(&one.listing.path, &other.listing.path));
    link(keys, &mut found);
    for folder in &mut found {
        let Some(at) = written.find(&folder.listing.path) else { continue };
        let mut known = written.listings[at].entries.iter().peekable();
        for entry in &mut folder.listing.entries {
            while known.next_if(|other| other.name < entry.name).is_some() {}
            if let (Node::File(file), Some(Entry { node: Node::File(other), .. })) =
                (&mut entry.node, known.next_if(|other| other.name == entry.name).as_ref())
                && file.size == other.size
            {
                file.content = other.content.clone();
            }
        }
    }
    plant(&scan, found, &mut record).map_err(|source| SaveError::Roots { source })
}
