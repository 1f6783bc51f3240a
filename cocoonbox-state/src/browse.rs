//! Looking into a save without restoring it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cocoonbox_core::Timestamp;

use crate::codec::FormatError;
use crate::manifest::{Manifest, ManifestSummary, ReadError, join_parts_of, open_chain};
use crate::object::{ByteRange, Fetch};
use crate::pack::{GroupPlace, open_group};
use crate::tree::{
    ChunkTable, Content, Entry, Listing, Node, Tree, TreePath, apply, compare, is_beneath, join, parent,
};
use crate::{BoxKeys, ObjectKey, SaveId};

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// A file.
    File {
        /// Its length.
        size: u64,
    },
    /// A folder.
    Folder,
    /// A symbolic link.
    Symlink {
        /// What it names.
        target: LinkTarget,
    },
    /// A named pipe.
    Fifo,
}

/// A link's target: any bytes. It does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkTarget(Box<[u8]>);

impl LinkTarget {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for LinkTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LinkTarget({} bytes)", self.0.len())
    }
}

/// An entry of a folder in a save.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedEntry {
    /// Its path in the save.
    pub path: TreePath,
    /// What it is.
    pub kind: EntryKind,
    /// Its permissions.
    pub mode: u32,
    /// Its owner, as the guest sees it.
    pub uid: u32,
    /// Its group, as the guest sees it.
    pub gid: u32,
    /// When its content changed, to the microsecond.
    pub modified: Timestamp,
}

impl SavedEntry {
    fn of(folder: &[u8], entry: &Entry) -> Self {
        let kind = match &entry.node {
            Node::File(file) => EntryKind::File { size: file.size },
            Node::Folder | Node::Passage => EntryKind::Folder,
            Node::Symlink(target) => EntryKind::Symlink { target: LinkTarget(target.clone()) },
            Node::Fifo => EntryKind::Fifo,
        };
        let micros =
            entry.meta.seconds.saturating_mul(1_000_000).saturating_add(i64::from(entry.meta.nanos / 1000));
        Self {
            path: TreePath::of(&join(folder, &entry.name)),
            kind,
            mode: entry.meta.mode,
            uid: entry.meta.uid,
            gid: entry.meta.gid,
            modified: Timestamp::from_micros(micros),
        }
    }
}

/// A save that is open for looking in. Each call reads only what it needs: of a manifest its end and the segments that
/// hold the folder, of packs the groups that hold the bytes.
pub struct Browser {
    keys: BoxKeys,
    fetch: Arc<dyn Fetch>,
    /// The newest first.
    chain: Vec<Manifest>,
}

impl std::fmt::Debug for Browser {
    /// An index holds names of folders, which do not print.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Browser").field("save", &self.save()).finish_non_exhaustive()
    }
}

impl Browser {
    /// Opens a save.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn open(keys: &BoxKeys, fetch: Arc<dyn Fetch>, save: &SaveId) -> Result<Self, ReadError> {
        let chain = open_chain(&*fetch, keys, save).await?;
        Ok(Self { keys: keys.clone(), fetch, chain })
    }

    /// Returns what the manifest says of the save.
    pub fn summary(&self) -> ManifestSummary {
        self.chain[0].index.summary()
    }

    fn save(&self) -> SaveId {
        self.chain[0].id
    }

    fn nowhere(&self) -> ReadError {
        ReadError::NoSuchPath { save: self.save() }
    }

    /// Finds a folder's listing in the newest manifest that has it.
    async fn listing(&self, folder: &[u8], table: &mut ChunkTable) -> Result<Listing, ReadError> {
        for manifest in &self.chain {
            let range = manifest.segments_of(folder, false);
            let parts = manifest.segments(&*self.fetch, range, table).await?;
            let mut listings = join_parts_of(parts, |path| path == folder)
                .map_err(|source| ReadError::damaged(&manifest.key)(source.into()))?;
            if let Some(listing) = listings.pop() {
                return Ok(listing);
            }
            if manifest.index.removed.iter().any(|gone| is_beneath(folder, gone)) {
                break;
            }
        }
        Err(self.nowhere())
    }

    async fn entry(&self, path: &[u8], table: &mut ChunkTable) -> Result<Entry, ReadError> {
        let Some((folder, name)) = parent(path) else {
            return Ok(self.chain[0].index.root.clone());
        };
        let listing = self.listing(folder, table).await?;
        let found = listing.entries.binary_search_by(|entry| (*entry.name).cmp(name));
        found.map(|at| listing.entries[at].clone()).map_err(|_| self.nowhere())
    }

    /// Lists a folder.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn list(&self, folder: &TreePath) -> Result<Vec<SavedEntry>, ReadError> {
        let mut table = ChunkTable::default();
        let listing = match self.listing(folder.as_bytes(), &mut table).await {
            // it may be there and something else
            Err(ReadError::NoSuchPath { .. }) => {
                self.entry(folder.as_bytes(), &mut table).await?;
                return Err(ReadError::WrongKind { save: self.save(), wanted: "folder" });
            }
            listing => listing?,
        };
        Ok(listing.entries.iter().map(|entry| SavedEntry::of(&listing.path, entry)).collect())
    }

    /// Looks at one path other than the root.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn look(&self, path: &TreePath) -> Result<SavedEntry, ReadError> {
        let (folder, _) = parent(path.as_bytes()).ok_or_else(|| self.nowhere())?;
        let entry = self.entry(path.as_bytes(), &mut ChunkTable::default()).await?;
        Ok(SavedEntry::of(folder, &entry))
    }

    /// Reads bytes of a file; a range that goes over its end is cut there.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, path: &TreePath, range: Range<u64>) -> Result<Bytes, ReadError> {
        self.file(path).await?.read(range).await
    }

    /// Opens a file, to be read part by part.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn file(&self, path: &TreePath) -> Result<SavedFile, ReadError> {
        let mut table = ChunkTable::default();
        let entry = self.entry(path.as_bytes(), &mut table).await?;
        let Node::File(file) = &entry.node else {
            return Err(ReadError::WrongKind { save: self.save(), wanted: "file" });
        };
        let (folder, _) = parent(path.as_bytes()).ok_or_else(|| self.nowhere())?;
        Ok(SavedFile {
            entry: SavedEntry::of(folder, &entry),
            keys: self.keys.clone(),
            fetch: Arc::clone(&self.fetch),
            save: self.save(),
            size: file.size,
            content: file.content.clone(),
            table,
        })
    }

    /// Reads one path and all beneath it, as a tree of its own with that one entry at its top.
    pub(crate) async fn part(&self, path: &[u8], table: &mut ChunkTable) -> Result<Tree, ReadError> {
        let entry = self.entry(path, table).await?;
        let (folder, _) = parent(path).ok_or_else(|| self.nowhere())?;
        let strip = if folder.is_empty() { 0 } else { folder.len() + 1 };
        let mut listings: Vec<Listing> = Vec::new();
        if entry.is_folder() {
            for manifest in self.chain.iter().rev() {
                let range = manifest.segments_of(path, true);
                let parts = manifest.segments(&*self.fetch, range, table).await?;
                let changed = join_parts_of(parts, |other| is_beneath(other, path))
                    .map_err(|source| ReadError::damaged(&manifest.key)(source.into()))?;
                listings = apply(listings, &manifest.index.removed, changed);
            }
        }
        for listing in &mut listings {
            listing.path = listing.path[strip..].into();
        }
        debug_assert!(listings.is_sorted_by(|one, other| compare(&one.path, &other.path).is_lt()));
        listings.insert(0, Listing { path: Box::default(), entries: vec![entry] });
        relink(&self.keys, &mut listings);
        let tree = Tree { root: Entry::default(), listings };
        crate::tree::check_shape(&tree).map_err(|_: FormatError| ReadError::Hash { save: self.save() })?;
        Ok(tree)
    }
}

/// A file of a save that is open for reading. Each read fetches only the groups that hold the bytes.
pub struct SavedFile {
    entry: SavedEntry,
    keys: BoxKeys,
    fetch: Arc<dyn Fetch>,
    save: SaveId,
    size: u64,
    content: Content,
    table: ChunkTable,
}

impl std::fmt::Debug for SavedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedFile")
            .field("save", &self.save)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl SavedFile {
    /// Returns what the save says of it.
    pub const fn entry(&self) -> &SavedEntry {
        &self.entry
    }

    /// Reads bytes; a range that goes over the end is cut there.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes, ReadError> {
        let table = &self.table;
        let range = range.start.min(self.size)..range.end.min(self.size);
        // holes are zeros
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        let mut open: Option<(GroupPlace, Vec<u8>)> = None;
        for (chunk, start) in spans(&self.content, table) {
            let length = u64::from(table.length(chunk));
            let from = start.max(range.start);
            let to = (start + length).min(range.end);
            if from >= to {
                continue;
            }
            let nowhere = || ReadError::NoSuchPath { save: self.save };
            let place = *table.place(chunk).ok_or_else(nowhere)?;
            let group = match open.take().filter(|open| open.0 == place) {
                Some((_, group)) => group,
                None => fetch_group(&*self.fetch, &self.keys, &place).await?,
            };
            let offset = u64::from(table.chunks[chunk as usize].offset);
            let content = &group[offset as usize..(offset + length) as usize];
            if self.keys.chunk_id(content) != *table.id(chunk) {
                return Err(damaged_pack(&self.keys, &place));
            }
            bytes[(from - range.start) as usize..(to - range.start) as usize]
                .copy_from_slice(&content[(from - start) as usize..(to - start) as usize]);
            open = Some((place, group));
        }
        Ok(bytes.into())
    }
}

/// Numbers what has several names anew: in a part of a tree there may be fewer, and another one is the first.
fn relink(keys: &BoxKeys, listings: &mut [Listing]) {
    let mut names: HashMap<u64, (u32, u64)> = HashMap::new();
    for listing in listings.iter() {
        for entry in &listing.entries {
            if entry.link != 0 {
                let number = || link_number(keys, &join(&listing.path, &entry.name));
                names.entry(entry.link).or_insert_with(|| (0, number())).0 += 1;
            }
        }
    }
    for entry in listings.iter_mut().flat_map(|listing| &mut listing.entries) {
        entry.link = names.get(&entry.link).map_or(0, |(count, number)| if *count > 1 { *number } else { 0 });
    }
}

/// Returns the number that all names of one file, symlink or pipe have: it follows from the first of them.
pub(crate) fn link_number(keys: &BoxKeys, first: &[u8]) -> u64 {
    let hash = keys.tree_hasher().update(first).finalize();
    hash.as_bytes().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes)) | 1
}

/// Returns each chunk of a file and where in the file it starts.
pub(crate) fn spans(content: &Content, table: &ChunkTable) -> Vec<(u32, u64)> {
    match content {
        Content::Empty => Vec::new(),
        Content::One(chunk) => vec![(*chunk, 0)],
        Content::Many(many) => {
            let mut extents = many.extents.iter();
            let (mut at, mut end) = (0, 0);
            many.chunks
                .iter()
                .map(|chunk| {
                    if at == end
                        && let Some((start, length)) = extents.next()
                    {
                        (at, end) = (*start, start + length);
                    }
                    let start = at;
                    at += u64::from(table.length(*chunk));
                    (*chunk, start)
                })
                .collect()
        }
    }
}

pub(crate) fn damaged_pack(keys: &BoxKeys, place: &GroupPlace) -> ReadError {
    let key = ObjectKey::pack(keys.uid(), keys.domain(), &place.pack);
    ReadError::damaged(&key)(FormatError::new("a chunk").into())
}

async fn fetch_group(fetch: &dyn Fetch, keys: &BoxKeys, place: &GroupPlace) -> Result<Vec<u8>, ReadError> {
    let key = ObjectKey::pack(keys.uid(), keys.domain(), &place.pack);
    let span = u64::from(place.offset)..u64::from(place.offset) + u64::from(place.sealed);
    let fetched = fetch
        .get(&key, ByteRange::Span(span))
        .await
        .map_err(|source| ReadError::Object { key: key.clone(), source })?;
    open_group(keys, place, &fetched.bytes).map_err(ReadError::damaged(&key))
}
