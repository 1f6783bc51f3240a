//! The threads of a save: read, cut, hash, look up, pack, seal.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};

use cocoonbox_core::Entropy;
use rustix::fs::OFlags;
use tokio::sync::watch;

use crate::chunk::{Compressor, GROUP, SMALL_FILE};
use crate::pack::{ClosedPack, GroupPlace, Packer, open_group};
use crate::save::{Neighbours, PackView, Progress};
use crate::scan::{ChunkSink, FileRead, Found, OwnerMap, Scan, open_beneath, read_file};
use crate::tree::{Chunk, ChunkTable};
use crate::{BoxKeys, ChunkId};

/// Chunks of large files that wait for a thread, at most.
const WAITING: usize = 4;

/// What the threads ask of the future that drives them.
#[derive(Debug)]
pub(crate) enum Request {
    /// Put this pack.
    Pack(ClosedPack),
    /// Fetch a group's sealed bytes; nothing comes back when that fails.
    Group(GroupPlace, mpsc::SyncSender<Option<bytes::Bytes>>),
}

/// Where the threads' packs and questions go.
pub(crate) type Requests = tokio::sync::mpsc::Sender<Request>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// In no pack that is there.
    Lost,
    /// In one, or about to be.
    Kept,
}

/// What is known of chunks.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) table: ChunkTable,
    standing: Vec<Standing>,
    /// A chunk that the save before names was lost and is packed again: its place there is no longer good.
    pub(crate) reclaimed: bool,
}

impl Known {
    /// Takes a table whose chunks are in packs; those whose pack is not in the view are lost.
    pub(crate) fn new(table: ChunkTable, view: Option<&PackView>) -> Self {
        let good: Vec<bool> = table
            .groups
            .iter()
            .map(|group| view.is_none_or(|view| view.packs.contains(&group.pack)))
            .collect();
        let standing =
            table
                .chunks
                .iter()
                .map(|chunk| {
                    if good.get(chunk.group as usize) == Some(&true) {
                        Standing::Kept
                    } else {
                        Standing::Lost
                    }
                })
                .collect();
        Self { table, standing, reclaimed: false }
    }

    pub(crate) fn is_kept(&self, chunk: u32) -> bool {
        self.standing[chunk as usize] == Standing::Kept
    }

    /// Returns the chunk's number, and whether the caller is the one to pack it.
    fn claim(&mut self, id: ChunkId, length: u32) -> (u32, bool) {
        if let Some(chunk) = self.table.find(&id) {
            let lost = !self.is_kept(chunk);
            self.reclaimed |= lost;
            self.standing[chunk as usize] = Standing::Kept;
            return (chunk, lost);
        }
        let chunk = self.table.add(Chunk { id, length, group: ChunkTable::NOWHERE, offset: 0 });
        self.standing.push(Standing::Kept);
        (chunk, true)
    }

    fn settle(&mut self, place: GroupPlace, chunks: &[(u32, u32)]) {
        let group = self.table.group(place);
        let mut offset = 0;
        for (chunk, length) in chunks {
            let known = &mut self.table.chunks[*chunk as usize];
            known.group = group;
            known.offset = offset;
            offset += length;
        }
    }
}

/// What all threads of a save share.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    pub(crate) keys: &'a BoxKeys,
    pub(crate) entropy: &'a dyn Entropy,
    pub(crate) owners: &'a OwnerMap,
    pub(crate) level: i32,
    pub(crate) known: Mutex<Known>,
    /// None when content is only hashed.
    pub(crate) packer: Option<Mutex<Packer>>,
    pub(crate) requests: Option<Requests>,
    pub(crate) neighbours: &'a Neighbours,
    pub(crate) view: Option<&'a PackView>,
    verified: Mutex<HashMap<GroupPlace, bool>>,
    large: Mutex<Large>,
    more: Condvar,
    next_batch: AtomicUsize,
    stop: AtomicBool,
    pub(crate) new_bytes: AtomicU64,
    pub(crate) stored: AtomicU64,
    pub(crate) attributes: AtomicU64,
    pub(crate) progress: Option<&'a watch::Sender<Progress>>,
}

#[derive(Debug, Default)]
struct Large {
    waiting: VecDeque<(u32, Vec<u8>)>,
    reading: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone() -> io::Error {
    io::Error::other("the save was given up")
}

impl<'a> Engine<'a> {
    pub(crate) fn new(
        keys: &'a BoxKeys,
        entropy: &'a dyn Entropy,
        owners: &'a OwnerMap,
        neighbours: &'a Neighbours,
        known: Known,
    ) -> Self {
        Self {
            keys,
            entropy,
            owners,
            level: 1,
            known: Mutex::new(known),
            packer: None,
            requests: None,
            neighbours,
            view: None,
            verified: Mutex::default(),
            large: Mutex::default(),
            more: Condvar::new(),
            next_batch: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            new_bytes: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            attributes: AtomicU64::new(0),
            progress: None,
        }
    }

    pub(crate) fn send(&self, request: Request) -> io::Result<()> {
        if let Request::Pack(pack) = &request {
            self.stored.fetch_add(pack.bytes.len() as u64, Ordering::Relaxed);
        }
        self.requests.as_ref().map_or(Ok(()), |requests| requests.blocking_send(request).map_err(|_| gone()))
    }

    fn store(
        &self,
        compressor: &mut Compressor,
        plain: &[u8],
        chunks: &[(u32, ChunkId, u32)],
    ) -> io::Result<()> {
        let Some(packer) = &self.packer else { return Ok(()) };
        let stored = compressor.pack(plain)?;
        let named: Vec<(ChunkId, u32)> = chunks.iter().map(|(_, id, length)| (*id, *length)).collect();
        let (place, closed) = locked(packer)
            .push(stored, plain.len() as u32, &named, self.entropy)
            .map_err(io::Error::other)?;
        let settled: Vec<(u32, u32)> = chunks.iter().map(|(chunk, _, length)| (*chunk, *length)).collect();
        locked(&self.known).settle(place, &settled);
        closed.map_or(Ok(()), |closed| self.send(Request::Pack(closed)))
    }

    /// Looks among other boxes' chunks, and believes none that it did not open.
    fn neighbour(&self, id: &ChunkId) -> Option<(GroupPlace, u32, u32)> {
        let table = &self.neighbours.0;
        let chunk = table.find(id)?;
        let known = table.chunks[chunk as usize];
        let place = *table.place(chunk)?;
        if !self.view.is_none_or(|view| view.packs.contains(&place.pack)) {
            return None;
        }
        let verdict = locked(&self.verified).get(&place).copied();
        let good = verdict.unwrap_or_else(|| {
            let good = self.verify(&place, table);
            locked(&self.verified).insert(place, good);
            good
        });
        good.then_some((place, known.offset, known.length))
    }

    fn verify(&self, place: &GroupPlace, table: &ChunkTable) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        if self.send(Request::Group(*place, answer)).is_err() {
            return false;
        }
        let Some(sealed) = answered.recv().ok().flatten() else { return false };
        let Ok(plain) = open_group(self.keys, place, &sealed) else { return false };
        table.chunks.iter().filter(|chunk| table.groups.get(chunk.group as usize) == Some(place)).all(
            |chunk| {
                let span = chunk.offset as usize..(chunk.offset + chunk.length) as usize;
                plain.get(span).is_some_and(|bytes| self.keys.chunk_id(bytes) == chunk.id)
            },
        )
    }

    /// Reads batches of files until none is left, and packs what others read.
    pub(crate) fn work(
        &self,
        scan: &Scan<'_>,
        found: &[Found],
        reads: &[(u32, u32)],
        batches: &[Range<usize>],
    ) -> io::Result<Vec<(u32, u32, Option<FileRead>)>> {
        let done = self.work_on(scan, found, reads, batches);
        if done.is_err() {
            self.stop.store(true, Ordering::Relaxed);
            let _held = locked(&self.large);
            self.more.notify_all();
        }
        done
    }

    fn work_on(
        &self,
        scan: &Scan<'_>,
        found: &[Found],
        reads: &[(u32, u32)],
        batches: &[Range<usize>],
    ) -> io::Result<Vec<(u32, u32, Option<FileRead>)>> {
        let mut hand = Hand {
            engine: self,
            compressor: Compressor::new(self.level)?,
            group: Vec::with_capacity(GROUP),
            chunks: Vec::new(),
            failed: None,
        };
        let mut results = Vec::new();
        let mut buffer = Vec::new();
        let mut open: Option<(u32, OwnedFd)> = None;
        while !self.stop.load(Ordering::Relaxed) {
            let batch = {
                let mut large = locked(&self.large);
                if let Some((chunk, bytes)) = large.waiting.pop_front() {
                    drop(large);
                    hand.pack_alone(chunk, &bytes)?;
                    continue;
                }
                match batches.get(self.next_batch.fetch_add(1, Ordering::Relaxed)) {
                    Some(batch) => {
                        large.reading += 1;
                        batch.clone()
                    }
                    None if large.reading == 0 => break,
                    None => {
                        drop(self.more.wait(large).unwrap_or_else(PoisonError::into_inner));
                        continue;
                    }
                }
            };
            let mut done = Progress::default();
            for (listing, place) in &reads[batch] {
                let folder = &found[*listing as usize];
                let entry = &folder.listing.entries[*place as usize];
                if open.as_ref().is_none_or(|open| open.0 != *listing) {
                    let (prefix, root) = &scan.roots[folder.root];
                    let path = &folder.listing.path[prefix.len()..];
                    let path = path.strip_prefix(b"/").unwrap_or(path);
                    open = open_beneath(root.as_fd(), path, OFlags::PATH | OFlags::DIRECTORY)
                        .ok()
                        .map(|folder| (*listing, folder));
                }
                let mut left_out = 0;
                let read = open.as_ref().and_then(|(_, folder)| {
                    read_file(folder.as_fd(), &entry.name, self.owners, &mut left_out, &mut buffer, &mut hand)
                        .ok()
                });
                if let Some(error) = hand.failed.take() {
                    return Err(error);
                }
                self.attributes.fetch_add(left_out, Ordering::Relaxed);
                done.files += 1;
                done.bytes += read.as_ref().map_or(0, |read| read.size);
                results.push((*listing, *place, read));
            }
            if let Some(progress) = self.progress {
                progress.send_modify(|now| {
                    now.files += done.files;
                    now.bytes += done.bytes;
                    now.new_bytes = self.new_bytes.load(Ordering::Relaxed);
                });
            }
            let mut large = locked(&self.large);
            large.reading -= 1;
            if large.reading == 0 {
                self.more.notify_all();
            }
        }
        hand.flush()?;
        Ok(results)
    }
}

/// One thread's own: its group in the making.
struct Hand<'a, 'e> {
    engine: &'a Engine<'e>,
    compressor: Compressor,
    group: Vec<u8>,
    chunks: Vec<(u32, ChunkId, u32)>,
    /// Why the save cannot go on: not the file's fault.
    failed: Option<io::Error>,
}

impl Hand<'_, '_> {
    fn flush(&mut self) -> io::Result<()> {
        if !self.chunks.is_empty() {
            self.engine.store(&mut self.compressor, &self.group, &self.chunks)?;
            self.group.clear();
            self.chunks.clear();
        }
        Ok(())
    }

    fn pack_alone(&mut self, chunk: u32, bytes: &[u8]) -> io::Result<()> {
        let id = *locked(&self.engine.known).table.id(chunk);
        self.engine.store(&mut self.compressor, bytes, &[(chunk, id, bytes.len() as u32)])
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<u32> {
        let engine = self.engine;
        let id = engine.keys.chunk_id(bytes);
        let length = bytes.len() as u32;
        if !engine.neighbours.0.chunks.is_empty() && engine.packer.is_some() {
            let known = {
                let known = locked(&engine.known);
                known.table.find(&id).is_some_and(|chunk| known.is_kept(chunk))
            };
            if !known && let Some((place, offset, length)) = engine.neighbour(&id) {
                let mut known = locked(&engine.known);
                let (chunk, ours) = known.claim(id, length);
                if ours {
                    let group = known.table.group(place);
                    known.table.chunks[chunk as usize] = Chunk { id, length, group, offset };
                }
                return Ok(chunk);
            }
        }
        let (chunk, ours) = locked(&engine.known).claim(id, length);
        if !ours {
            return Ok(chunk);
        }
        engine.new_bytes.fetch_add(u64::from(length), Ordering::Relaxed);
        if engine.packer.is_none() {
            return Ok(chunk);
        }
        if u64::from(length) > SMALL_FILE / 2 {
            {
                let mut large = locked(&engine.large);
                if large.waiting.len() < WAITING {
                    large.waiting.push_back((chunk, bytes.to_vec()));
                    engine.more.notify_one();
                    return Ok(chunk);
                }
            }
            self.engine.store(&mut self.compressor, bytes, &[(chunk, id, length)])?;
            return Ok(chunk);
        }
        if self.group.len() + bytes.len() > GROUP {
            self.flush()?;
        }
        self.group.extend_from_slice(bytes);
        self.chunks.push((chunk, id, length));
        Ok(chunk)
    }
}

impl ChunkSink for Hand<'_, '_> {
    type Error = io::Error;

    fn chunk(&mut self, bytes: &[u8]) -> Result<u32, io::Error> {
        self.take(bytes).map_err(|error| {
            self.failed = Some(error);
            gone()
        })
    }
}
