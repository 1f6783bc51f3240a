//! The future that drives a restore: it fetches what the threads open, unpack and write.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cocoonbox_core::{Clock, Entropy};
use futures::{StreamExt, stream};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, openat, renameat_with, statat, unlinkat};
use tokio::sync::{mpsc, watch};

use super::gather::{on_threads, survey};
use super::{blocking, retried};
use crate::browse::{Browser, damaged_pack, spans};
use crate::cache::{self, CacheFile};
use crate::chunk::Unpacker;
use crate::crash::crash_point;
use crate::manifest::{ReadError, load_chain};
use crate::object::{ByteRange, Fetch, ObjectError};
use crate::pack::open_group_with;
use crate::restore::{
    FileWriter, GroupTask, Plan, RestoreError, RestoreOptions, Restored, Verify, finish_folder,
    finish_folders, link_names, make_entries,
};
use crate::save::Progress;
use crate::scan::{Cached, ChunkSink, OwnerMap, Root, open_beneath, read_file};
use crate::tree::{ChunkTable, Listing, Node, Tree, TreePath, components, join, parent, root_hash};
use crate::{BoxKeys, ObjectKey, SaveId, hash_tree};

/// How many bytes are fetched at once, about, and how many fetches are under way.
const RUN: u64 = 4 << 20;
const FETCHES: usize = 4;
/// Groups that are put in the order of their packs, so that neighbours are fetched in one go.
const WINDOW: usize = 64;

/// What a restore stands on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RestoreContext {
    /// Reads the save.
    pub fetch: Arc<dyn Fetch>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Spreads retries.
    pub entropy: Arc<dyn Entropy>,
}

impl RestoreContext {
    /// Puts it together.
    pub fn new(fetch: Arc<dyn Fetch>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { fetch, clock, entropy }
    }
}

/// Reads through a store that fails now and then.
#[derive(Debug)]
struct Patient {
    inner: Arc<dyn Fetch>,
    entropy: Arc<dyn Entropy>,
}

#[async_trait::async_trait]
impl Fetch for Patient {
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<crate::object::Fetched, ObjectError> {
        retried(&*self.entropy, |_| self.inner.get(key, range.clone())).await
    }
}

/// What the threads share.
#[derive(Debug)]
struct Shared {
    keys: BoxKeys,
    tree: Tree,
    table: ChunkTable,
    owners: OwnerMap,
    target: OwnedFd,
    plan: Plan,
    /// Files that were there already and are right.
    there: Vec<AtomicBool>,
    bytes: AtomicU64,
    files: AtomicU64,
}

#[derive(Debug)]
struct Job {
    tasks: Vec<usize>,
    bytes: Bytes,
    start: u64,
}

enum Failure {
    Io(io::Error),
    Read(ReadError),
}

impl From<Failure> for RestoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Io(error) => Self::of(error),
            Failure::Read(error) => Self::Read(error),
        }
    }
}

/// Takes a file's chunks only to compare them.
struct Compare<'a> {
    shared: &'a Shared,
    wanted: std::vec::IntoIter<(u32, u64)>,
}

impl ChunkSink for Compare<'_> {
    type Error = io::Error;
    fn chunk(&mut self, bytes: &[u8]) -> Result<u32, io::Error> {
        match self.wanted.next() {
            Some((chunk, _)) if *self.shared.table.id(chunk) == self.shared.keys.chunk_id(bytes) => Ok(chunk),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Shared {
    /// Looks at what a restore that broke off left: files that are right stay, others go.
    fn resume(&self) -> io::Result<()> {
        let next = AtomicU64::new(0);
        let results = on_threads(2, || -> io::Result<()> {
            let mut buffer = Vec::new();
            let mut open: Option<(u32, OwnedFd)> = None;
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed) as usize;
                let Some(task) = self.plan.files.get(index) else { return Ok(()) };
                let listing = &self.tree.listings[task.listing as usize];
                let entry = &listing.entries[task.place as usize];
                if open.as_ref().is_none_or(|open| open.0 != task.listing) {
                    let folder =
                        open_beneath(self.target.as_fd(), &listing.path, OFlags::PATH | OFlags::DIRECTORY)?;
                    open = Some((task.listing, folder));
                }
                let Some((_, folder)) = &open else { continue };
                let Ok(stat) = statat(folder, &*entry.name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                let Node::File(file) = &entry.node else { continue };
                let finished = stat.st_size as u64 == file.size
                    && (stat.st_mtime, stat.st_mtime_nsec as u32) == (entry.meta.seconds, entry.meta.nanos);
                let right = finished && {
                    let mut sink =
                        Compare { shared: self, wanted: spans(&file.content, &self.table).into_iter() };
                    let read =
                        read_file(folder.as_fd(), &entry.name, &self.owners, &mut 0, &mut buffer, &mut sink);
                    read.is_ok_and(|read| read.content == file.content && read.attributes == entry.attributes)
                        && sink.wanted.next().is_none()
                };
                if right {
                    self.there[index].store(true, Ordering::Relaxed);
                } else {
                    unlinkat(folder, &*entry.name, AtFlags::empty())?;
                }
            }
        });
        results.into_iter().collect()
    }

    fn empty_files(&self, threads: usize) -> io::Result<()> {
        let empty: Vec<_> = self
            .plan
            .files
            .iter()
            .zip(&self.there)
            .filter(|(task, there)| task.pieces == 0 && !there.load(Ordering::Relaxed))
            .map(|(task, _)| task)
            .collect();
        self.files.fetch_add(empty.len() as u64, Ordering::Relaxed);
        in_shares(&empty, threads, |share| {
            let mut writer = FileWriter::new(self.target.as_fd(), &self.tree, &self.owners);
            share.iter().try_for_each(|task| writer.empty(task))
        })
    }

    fn work(
        &self,
        jobs: &Mutex<mpsc::Receiver<Job>>,
        progress: Option<&watch::Sender<Progress>>,
    ) -> Result<(), Failure> {
        let mut unpacker = Unpacker::new().map_err(Failure::Io)?;
        let mut writer = FileWriter::new(self.target.as_fd(), &self.tree, &self.owners);
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
            let Some(job) = job else { return Ok(()) };
            for task in &job.tasks {
                self.group(&mut writer, &mut unpacker, &self.plan.groups[*task], &job, progress)?;
                crash_point("restore: after a group was written");
            }
        }
    }

    fn group(
        &self,
        writer: &mut FileWriter<'_>,
        unpacker: &mut Unpacker,
        task: &GroupTask,
        job: &Job,
        progress: Option<&watch::Sender<Progress>>,
    ) -> Result<(), Failure> {
        let place = self.table.groups[task.group as usize];
        let key = ObjectKey::pack(self.keys.uid(), self.keys.domain(), &place.pack);
        let at = (u64::from(place.offset) - job.start) as usize;
        let sealed = job.bytes.get(at..at + place.sealed as usize).ok_or_else(|| {
            Failure::Read(ReadError::Object { key: key.clone(), source: ObjectError::OutOfRange })
        })?;
        let plain = open_group_with(unpacker, &self.keys, &place, sealed)
            .map_err(|source| Failure::Read(ReadError::damaged(&key)(source)))?;
        let mut checked = u32::MAX;
        let mut done = Progress { new_bytes: sealed.len() as u64, ..Progress::default() };
        for one in &task.uses {
            if self.there[one.file as usize].load(Ordering::Relaxed) {
                continue;
            }
            let chunk = &self.table.chunks[one.chunk as usize];
            let content = &plain[chunk.offset as usize..(chunk.offset + chunk.length) as usize];
            if checked != one.chunk {
                if self.keys.chunk_id(content) != chunk.id {
                    return Err(Failure::Read(damaged_pack(&self.keys, &place)));
                }
                checked = one.chunk;
            }
            crash_point("restore: before a file is written");
            let last =
                writer.piece(&self.plan.files[one.file as usize], one.at, content).map_err(Failure::Io)?;
            done.files += u64::from(last);
            done.bytes += content.len() as u64;
        }
        self.files.fetch_add(done.files, Ordering::Relaxed);
        self.bytes.fetch_add(done.bytes, Ordering::Relaxed);
        if let Some(progress) = progress {
            progress.send_modify(|now| {
                now.files += done.files;
                now.bytes += done.bytes;
                now.new_bytes += done.new_bytes;
            });
        }
        Ok(())
    }
}

/// How many folders or files a thread takes at once.
const SHARE: usize = 64;

/// Works on shares of a list on several threads.
fn in_shares<T: Sync>(
    list: &[T],
    threads: usize,
    work: impl Fn(&[T]) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let shares: Vec<&[T]> = list.chunks(SHARE).collect();
    let next = AtomicUsize::new(0);
    let take = || loop {
        let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(()) };
        work(share)?;
    };
    on_threads(threads.min(shares.len()).max(1), take).into_iter().collect()
}

/// Works on all folders, those of one depth at the same time: the root first, or last.
fn by_depth(
    tree: &Tree,
    threads: usize,
    deepest_first: bool,
    work: impl Fn(&Listing) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let mut levels: Vec<Vec<&Listing>> = Vec::new();
    for listing in &tree.listings {
        let depth = components(&listing.path).count();
        levels.resize_with(levels.len().max(depth + 1), Vec::new);
        levels[depth].push(listing);
    }
    if deepest_first {
        levels.reverse();
    }
    levels.iter().try_for_each(|level| {
        in_shares(level, threads, |share| share.iter().try_for_each(|listing| work(listing)))
    })
}

fn prepare(
    keys: BoxKeys,
    tree: Tree,
    table: ChunkTable,
    target: &Path,
    owners: OwnerMap,
    threads: usize,
) -> Result<Shared, RestoreError> {
    let plan = Plan::new(&tree, &table);
    let there = plan.files.iter().map(|_| AtomicBool::new(false)).collect();
    fs::create_dir_all(target).map_err(RestoreError::of)?;
    let fresh = fs::read_dir(target).map_err(RestoreError::of)?.next().is_none();
    let open = openat(CWD, target, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let target = open.map_err(|error| RestoreError::of(error.into()))?;
    let shared = Shared {
        keys,
        tree,
        table,
        owners,
        target,
        plan,
        there,
        bytes: AtomicU64::new(0),
        files: AtomicU64::new(0),
    };
    let disk = rustix::fs::fstatvfs(&shared.target).map_err(|error| RestoreError::of(error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if fresh && shared.plan.bytes > free {
        return Err(RestoreError::NoSpace { needed: shared.plan.bytes, free });
    }
    let (at, owners) = (shared.target.as_fd(), &shared.owners);
    by_depth(&shared.tree, threads, false, |listing| make_entries(at, listing, owners))
        .map_err(RestoreError::of)?;
    if !fresh {
        shared.resume().map_err(RestoreError::of)?;
    }
    shared.empty_files(threads).map_err(RestoreError::of)?;
    Ok(shared)
}

/// Groups in the order in which they are fetched, neighbours together: the pack, its span, the tasks.
fn runs(shared: &Shared) -> Vec<(crate::PackId, std::ops::Range<u64>, Vec<usize>)> {
    let wanted = |task: &GroupTask| {
        task.uses.iter().any(|one| !shared.there[one.file as usize].load(Ordering::Relaxed))
    };
    let place = |task: usize| shared.table.groups[shared.plan.groups[task].group as usize];
    let mut order: Vec<usize> =
        (0..shared.plan.groups.len()).filter(|task| wanted(&shared.plan.groups[*task])).collect();
    for window in order.chunks_mut(WINDOW) {
        window.sort_by_key(|task| (place(*task).pack, place(*task).offset));
    }
    let mut runs: Vec<(crate::PackId, std::ops::Range<u64>, Vec<usize>)> = Vec::new();
    for task in order {
        let place = place(task);
        let span = u64::from(place.offset)..u64::from(place.offset) + u64::from(place.sealed);
        match runs.last_mut() {
            Some((pack, run, tasks))
                if *pack == place.pack && run.end == span.start && span.end - run.start <= RUN =>
            {
                run.end = span.end;
                tasks.push(task);
            }
            _ => runs.push((place.pack, span, vec![task])),
        }
    }
    runs
}

async fn write_tree(
    keys: &BoxKeys,
    tree: Tree,
    table: ChunkTable,
    target: &Path,
    options: &RestoreOptions,
    fetch: &dyn Fetch,
) -> Result<(Arc<Shared>, u64), RestoreError> {
    let (keys, target, owners) = (keys.clone(), target.to_owned(), options.owners.clone());
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        given => given,
    };
    let prepared = blocking(move || Ok(prepare(keys, tree, table, &target, owners, threads)));
    let shared = Arc::new(prepared.await.map_err(RestoreError::of)??);
    if let Some(progress) = &options.progress {
        let files = shared.plan.files.len() as u64 + shared.plan.linked_files;
        progress.send_replace(Progress {
            files_total: files,
            bytes_total: shared.plan.bytes,
            ..Progress::default()
        });
    }
    let runs = runs(&shared);
    let fetched: u64 = runs.iter().map(|run| run.1.end - run.1.start).sum();
    let (jobs, receiver) = mpsc::channel(FETCHES);
    let receiver = Arc::new(Mutex::new(receiver));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (shared, receiver, progress) =
                (Arc::clone(&shared), Arc::clone(&receiver), options.progress.clone());
            tokio::task::spawn_blocking(move || {
                let done = shared.work(&receiver, progress.as_ref());
                if done.is_err() {
                    // nobody is to wait for room in a channel that is not read
                    receiver.lock().unwrap_or_else(PoisonError::into_inner).close();
                }
                done
            })
        })
        .collect();
    drop(receiver);
    let mut failure = None;
    let mut fetches = stream::iter(runs)
        .map(|(pack, span, tasks)| {
            let key = ObjectKey::pack(shared.keys.uid(), shared.keys.domain(), &pack);
            async move {
                let start = span.start;
                match fetch.get(&key, ByteRange::Span(span)).await {
                    Ok(fetched) => Ok(Job { tasks, bytes: fetched.bytes, start }),
                    Err(source) => Err(ReadError::Object { key, source }),
                }
            }
        })
        .buffered(FETCHES);
    while let Some(job) = fetches.next().await {
        match job {
            Ok(job) => {
                if jobs.send(job).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    drop(fetches);
    drop(jobs);
    // all of them end before this does: nothing is written after an error was told
    let mut first = Ok(());
    for worker in workers {
        let done = match worker.await {
            Ok(done) => done.map_err(RestoreError::from),
            Err(error) => Err(RestoreError::of(io::Error::other(error))),
        };
        first = first.and(done);
    }
    first?;
    if let Some(error) = failure {
        return Err(error.into());
    }
    let finished = Arc::clone(&shared);
    blocking(move || {
        crash_point("restore: before folders are finished");
        let target = finished.target.as_fd();
        link_names(target, &finished.tree, &finished.plan.links)?;
        let (tree, owners) = (&finished.tree, &finished.owners);
        by_depth(tree, threads, true, |listing| finish_folders(target, listing, owners))?;
        if matches!(tree.root.node, Node::Folder) {
            finish_folder(target, b"", &tree.root, owners)?;
        }
        Ok(())
    })
    .await
    .map_err(RestoreError::of)?;
    Ok((shared, fetched))
}

/// Returns the roots that a tree was saved from, as folders beneath `base`.
fn roots_of(tree: &Tree, base: &Path) -> Vec<Root> {
    use std::os::unix::ffi::OsStrExt;
    if matches!(tree.root.node, Node::Folder) {
        return vec![Root::whole(base)];
    }
    let mut roots: Vec<Root> = Vec::new();
    for listing in &tree.listings {
        let inside = roots.iter().any(|root| crate::tree::is_beneath(&listing.path, root.prefix.as_bytes()));
        if inside {
            continue;
        }
        for entry in listing.entries.iter().filter(|entry| matches!(entry.node, Node::Folder)) {
            let path = join(&listing.path, &entry.name);
            let folder: PathBuf = components(&path)
                .fold(base.to_owned(), |at, name| at.join(std::ffi::OsStr::from_bytes(name)));
            roots.push(Root::new(TreePath::of(&path), &folder));
        }
    }
    roots
}

/// Restores a whole save into `target`, a folder that is new or that a restore of the same save left half done.
///
/// What the save calls `home/user` becomes `target/home/user`. It is done when all is read back and gives the save's
/// root hash.
///
/// # Errors
/// See [`RestoreError`].
pub async fn restore(
    keys: &BoxKeys,
    save: &SaveId,
    target: &Path,
    options: &RestoreOptions,
    context: &RestoreContext,
) -> Result<Restored, RestoreError> {
    let fetch = Patient { inner: Arc::clone(&context.fetch), entropy: Arc::clone(&context.entropy) };
    let mut table = ChunkTable::default();
    let (manifest, tree, room) = load_chain(&fetch, keys, save, &mut table).await?;
    let (shared, fetched) = write_tree(keys, tree, table, target, options, &fetch).await?;
    let wanted = manifest.index.root_hash;
    let (at, checked, threads) = (target.to_owned(), Arc::clone(&shared), options.threads);
    let now = context.clock.now();
    let cache_at = options.cache.clone();
    let file = (*save, manifest.index.base.map_or(0, |base| base.1), room);
    let differing = blocking(move || {
        let roots = roots_of(&checked.tree, &at);
        if roots.is_empty() {
            return Ok(None);
        }
        let found = survey(&checked.keys, &checked.owners, &roots, &checked.tree, threads)
            .map_err(io::Error::other)?;
        let hash = root_hash(&checked.keys, &found, &checked.table).map_err(io::Error::other)?;
        if hash != wanted {
            return Ok(Some(difference(&checked.tree, &found)));
        }
        if let Some(path) = cache_at {
            let cached = Cached { tree: found, scanned: i128::from(now.micros()) * 1000 };
            let file = CacheFile { save: file.0, chain: file.1, room: file.2, cached };
            // without it the next save reads more
            let _ = cache::store(&checked.keys, &path, &file, &checked.table);
        }
        Ok(None)
    });
    if let Some(entries) = differing.await.map_err(RestoreError::of)? {
        return Err(RestoreError::Differs { save: *save, entries });
    }
    if options.verify == Verify::ReadBack {
        let mut all = crate::SaveOptions::new(roots_of(&shared.tree, target));
        all.owners = options.owners.clone();
        all.skip_tagged = false;
        let hash = hash_tree(keys, &all).await.map_err(|error| RestoreError::of(io::Error::other(error)))?;
        if hash != wanted {
            return Err(RestoreError::Differs { save: *save, entries: 0 });
        }
    }
    crash_point("restore: before it is declared done");
    Ok(restored(save, Some(wanted), &shared, fetched))
}

fn restored(save: &SaveId, root_hash: Option<crate::RootHash>, shared: &Shared, fetched: u64) -> Restored {
    Restored {
        save: *save,
        root_hash,
        files: shared.files.load(Ordering::Relaxed) + shared.plan.linked_files,
        bytes: shared.bytes.load(Ordering::Relaxed),
        resumed: shared.there.iter().filter(|there| there.load(Ordering::Relaxed)).count() as u64,
        fetched,
    }
}

/// Counts entries that are not the same in both.
fn difference(wanted: &Tree, found: &Tree) -> u64 {
    let mut count = 0;
    for listing in &wanted.listings {
        match found.find(&listing.path) {
            Some(at) => {
                let other = &found.listings[at].entries;
                let same = listing.entries.iter().filter(|entry| other.contains(entry)).count();
                count += (listing.entries.len().max(other.len()) - same) as u64;
            }
            None => count += 1,
        }
    }
    count
}

/// Puts chosen paths of a save back into a folder that is in use: each is restored beside its place, checked, and then
/// takes the place of what is there in one step. What was there is removed.
///
/// # Errors
/// See [`RestoreError`]. Paths before the one that failed are restored, others are as they were.
pub async fn restore_paths(
    keys: &BoxKeys,
    save: &SaveId,
    paths: &[TreePath],
    target: &Path,
    options: &RestoreOptions,
    context: &RestoreContext,
) -> Result<Vec<Restored>, RestoreError> {
    use std::os::unix::ffi::OsStrExt;
    let fetch: Arc<dyn Fetch> =
        Arc::new(Patient { inner: Arc::clone(&context.fetch), entropy: Arc::clone(&context.entropy) });
    let browser = Browser::open(keys, Arc::clone(&fetch), save).await?;
    let mut all = Vec::new();
    for path in paths {
        let (folder, name) = parent(path.as_bytes())
            .ok_or(ReadError::WrongKind { save: *save, wanted: "path beneath the root" })?;
        let mut table = ChunkTable::default();
        let tree = browser.part(path.as_bytes(), &mut table).await?;
        let (base, folder, name) = (target.to_owned(), folder.to_owned(), name.to_owned());
        let staging_name = format!(".cocoonbox-restore-{save}");
        // the folder is made name by name, and no link in it is followed
        let (place, staging) = {
            let (folder, staging_name) = (folder.clone(), staging_name.clone());
            blocking(move || {
                let place = make_way(&base, &folder)?;
                let at = format!("/proc/self/fd/{}/{staging_name}", std::os::fd::AsRawFd::as_raw_fd(&place));
                Ok((place, PathBuf::from(at)))
            })
            .await
            .map_err(RestoreError::of)?
        };
        let (shared, fetched) = write_tree(keys, tree, table, &staging, options, &*fetch).await?;
        let (checked, threads, staged) = (Arc::clone(&shared), options.threads, staging.clone());
        let differs = blocking(move || {
            let roots = roots_of(&checked.tree, &staged);
            if !roots.is_empty() {
                let found = survey(&checked.keys, &checked.owners, &roots, &checked.tree, threads)
                    .map_err(io::Error::other)?;
                if found
                    .listings
                    .iter()
                    .zip(&checked.tree.listings)
                    .any(|(one, other)| one.entries != other.entries)
                {
                    return Ok(Some(difference(&checked.tree, &found)));
                }
            }
            let open =
                open_beneath(place.as_fd(), staging_name.as_bytes(), OFlags::PATH | OFlags::DIRECTORY)?;
            let name = std::ffi::OsStr::from_bytes(&name);
            match renameat_with(&open, name, &place, name, RenameFlags::NOREPLACE) {
                Err(rustix::io::Errno::EXIST) => {
                    renameat_with(&open, name, &place, name, RenameFlags::EXCHANGE)?;
                }
                done => done?,
            }
            fs::remove_dir_all(&staged)?;
            Ok(None)
        });
        if let Some(entries) = differs.await.map_err(RestoreError::of)? {
            return Err(RestoreError::Differs { save: *save, entries });
        }
        all.push(restored(save, None, &shared, fetched));
    }
    Ok(all)
}

fn make_way(base: &Path, folder: &[u8]) -> io::Result<OwnedFd> {
    fs::create_dir_all(base)?;
    let mut at = openat(CWD, base, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for name in components(folder) {
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = open_beneath(at.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    }
    Ok(at)
}
