use std::ops::Range;

use cocoonbox_core::Retry;

use super::index::Index;
use super::segment::{Part, read_segment};
use crate::chunk::unpack;
use crate::codec::{FormatError, Reader};
use crate::object::{ByteRange, Fetch, ObjectError};
use crate::sealed::{OpenError, Sealer, TRAILER_LENGTH};
use crate::tree::{ChunkTable, Listing, Tree, apply, compare, is_beneath, root_hash};
use crate::{BoxKeys, ObjectKey, RootHash, SaveId};

/// Why a save could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The store did not give an object.
    #[error("{key} could not be had")]
    Object {
        /// Which.
        key: ObjectKey,
        /// Why.
        #[source]
        source: ObjectError,
    },
    /// An object is not what was put there.
    #[error("{key} is damaged")]
    Damaged {
        /// Which.
        key: ObjectKey,
        /// Why.
        #[source]
        source: OpenError,
    },
    /// The store cannot be listed.
    #[error("the store cannot be listed")]
    Listing {
        /// Why.
        #[source]
        source: ObjectError,
    },
    /// The listings do not give the root hash that the manifest names.
    #[error("save {save} does not give its root hash")]
    Hash {
        /// Which.
        save: SaveId,
    },
    /// There is no such path in the save.
    #[error("save {save} has no such path")]
    NoSuchPath {
        /// Which.
        save: SaveId,
    },
    /// The path is not what the call is for.
    #[error("the path in save {save} is no {wanted}")]
    WrongKind {
        /// Which.
        save: SaveId,
        /// What was asked for.
        wanted: &'static str,
    },
}

impl ReadError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Object { source, .. } | Self::Listing { source } => source.retry(),
            Self::Damaged { .. } | Self::Hash { .. } | Self::NoSuchPath { .. } | Self::WrongKind { .. } => {
                Retry::Never
            }
        }
    }

    pub(crate) fn damaged(key: &ObjectKey) -> impl Fn(OpenError) -> Self {
        move |source| Self::Damaged { key: key.clone(), source }
    }
}

/// How much of an object's end is read at once.
const TAIL: u64 = 128 << 10;

/// One manifest whose index is read.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) id: SaveId,
    pub(crate) key: ObjectKey,
    pub(crate) index: Index,
    pub(crate) length: u64,
    sealer: Sealer,
}

impl Manifest {
    /// Reads the end of a manifest.
    pub(crate) async fn open(fetch: &dyn Fetch, keys: &BoxKeys, id: &SaveId) -> Result<Self, ReadError> {
        let key = ObjectKey::save(keys.uid(), keys.box_label(), id);
        let object = |source| ReadError::Object { key: key.clone(), source };
        let damaged = ReadError::damaged(&key);
        let short = || damaged(FormatError::new("a manifest").into());
        let sealer = Sealer::save(keys, id);
        let tail = fetch.get(&key, ByteRange::Tail(TAIL)).await.map_err(object)?;
        let (length, bytes) = (tail.length, tail.bytes);
        let trailer = bytes.len().checked_sub(TRAILER_LENGTH).ok_or_else(short)?;
        let span = sealer.open_trailer(&bytes[trailer..], length).map_err(&damaged)?;
        let start = length - bytes.len() as u64;
        let sealed = if span.start >= start {
            bytes.slice((span.start - start) as usize..(span.end - start) as usize)
        } else {
            fetch.get(&key, ByteRange::Span(span)).await.map_err(object)?.bytes
        };
        let plain = sealer.open_directory(&sealed).map_err(|source| damaged(source.into()))?;
        let index = decode_stored_index(&plain).map_err(|source| damaged(source.into()))?;
        let key = key.clone();
        Ok(Self { id: *id, index, length, sealer, key })
    }

    /// Reads some segments, neighbours in one go.
    pub(crate) async fn segments(
        &self,
        fetch: &dyn Fetch,
        range: Range<usize>,
        table: &mut ChunkTable,
    ) -> Result<Vec<Part>, ReadError> {
        let damaged = ReadError::damaged(&self.key);
        let wrong = || damaged(FormatError::new("a manifest's index").into());
        let mut parts = Vec::new();
        let mut next = range.start;
        while next < range.end {
            let start = self.index.segments[next].offset;
            let (from, mut end) = (next, start);
            while next < range.end && end - start < 8 << 20 {
                let segment = &self.index.segments[next];
                if segment.offset != end {
                    return Err(wrong());
                }
                end = segment
                    .offset
                    .checked_add(u64::from(segment.sealed))
                    .filter(|end| *end <= self.length)
                    .ok_or_else(wrong)?;
                next += 1;
            }
            let bytes = fetch
                .get(&self.key, ByteRange::Span(start..end))
                .await
                .map_err(|source| ReadError::Object { key: self.key.clone(), source })?
                .bytes;
            for (number, segment) in self.index.segments.iter().enumerate().take(next).skip(from) {
                let at = (segment.offset - start) as usize;
                let sealed = bytes.get(at..at + segment.sealed as usize).ok_or_else(wrong)?;
                let read = || -> Result<Vec<Part>, OpenError> {
                    let stored = self.sealer.open(number as u32, sealed)?;
                    Ok(read_segment(&unpack(stored, segment.plain as usize)?, table, false)?)
                };
                parts.extend(({ read })().map_err(&damaged)?);
            }
        }
        Ok(parts)
    }

    /// Returns which segments may hold a folder's listing, or those of all folders below it, too.
    pub(crate) fn segments_of(&self, folder: &[u8], below: bool) -> Range<usize> {
        let segments = &self.index.segments;
        // the last that starts before the folder may still hold its beginning
        let first =
            segments.partition_point(|segment| compare(&segment.path, folder).is_lt()).saturating_sub(1);
        let end = segments.partition_point(|segment| {
            compare(&segment.path, folder).is_le() || (below && is_beneath(&segment.path, folder))
        });
        first..end
    }

    /// Reads all listings.
    pub(crate) async fn listings(
        &self,
        fetch: &dyn Fetch,
        table: &mut ChunkTable,
    ) -> Result<Vec<Listing>, ReadError> {
        let parts = self.segments(fetch, 0..self.index.segments.len(), table).await?;
        join_parts(parts).map_err(|source| ReadError::damaged(&self.key)(source.into()))
    }
}

pub(crate) fn decode_stored_index(directory: &[u8]) -> Result<Index, FormatError> {
    let mut reader = Reader::new(directory, "a manifest's index");
    let length = reader.up_to(64 << 20)? as usize;
    let stored = reader.bytes(directory.len())?.to_vec();
    reader.padding()?;
    Index::decode(&unpack(stored, length)?)
}

/// Joins parts to the whole listings of the folders that `wanted` holds for; others may be cut off at both ends.
pub(crate) fn join_parts_of(
    parts: Vec<Part>,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<Vec<Listing>, FormatError> {
    join_parts(parts.into_iter().filter(|part| wanted(&part.listing.path)).collect())
}

/// Joins parts to whole listings.
pub(crate) fn join_parts(parts: Vec<Part>) -> Result<Vec<Listing>, FormatError> {
    let wrong = FormatError::new("a manifest's listing");
    let mut listings: Vec<Listing> = Vec::new();
    let mut open = false;
    for part in parts {
        match (part.first, open) {
            (true, false) => listings.push(part.listing),
            (false, true) => {
                let last = listings.last_mut().filter(|last| last.path == part.listing.path).ok_or(wrong)?;
                last.entries.extend(part.listing.entries);
            }
            _ => return Err(wrong),
        }
        open = !part.last;
    }
    if open { Err(wrong) } else { Ok(listings) }
}

/// Reads the ends of a save's manifest and of those that it rests on, the newest first.
pub(crate) async fn open_chain(
    fetch: &dyn Fetch,
    keys: &BoxKeys,
    id: &SaveId,
) -> Result<Vec<Manifest>, ReadError> {
    let newest = Manifest::open(fetch, keys, id).await?;
    let ring = ReadError::damaged(&newest.key)(FormatError::new("a chain of manifests").into());
    let mut next = newest.index.base;
    let mut chain = vec![newest];
    while let Some((base, depth)) = next {
        let manifest = Manifest::open(fetch, keys, &base).await?;
        next = manifest.index.base;
        // depths go down by one to zero: no chain is a ring
        if next.map_or(0, |next| next.1) + 1 != depth {
            return Err(ring);
        }
        chain.push(manifest);
    }
    Ok(chain)
}

/// Reads a save whole: its manifest and those that it rests on. The root hash is checked.
pub(crate) async fn load_chain(
    fetch: &dyn Fetch,
    keys: &BoxKeys,
    id: &SaveId,
    table: &mut ChunkTable,
) -> Result<(Manifest, Tree, u64), ReadError> {
    let mut chain = open_chain(fetch, keys, id).await?;
    let newest = chain.remove(0);
    let mut listings = Vec::new();
    let mut delta_bytes = 0;
    let mut full_bytes = 0;
    for manifest in chain.iter().rev().chain([&newest]) {
        let changed = manifest.listings(fetch, table).await?;
        if manifest.index.base.is_none() {
            full_bytes = manifest.length;
            listings = changed;
        } else {
            delta_bytes += manifest.length;
            listings = apply(listings, &manifest.index.removed, changed);
        }
    }
    let tree = Tree { root: newest.index.root.clone(), listings };
    let hash: RootHash =
        root_hash(keys, &tree, table).map_err(|source| ReadError::damaged(&newest.key)(source.into()))?;
    if hash != newest.index.root_hash {
        return Err(ReadError::Hash { save: *id });
    }
    // a third of the full one is when the next save is written whole again
    let room = (full_bytes / 3).saturating_sub(delta_bytes);
    Ok((newest, tree, room))
}
