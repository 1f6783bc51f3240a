//! The scan cache: what the last save knew of each file, on this machine alone.

use std::fs;
use std::io;
use std::path::Path;

use crate::codec::{FormatError, Reader, Writer};
use crate::manifest::{SegmentBuilder, read_segment};
use crate::scan::Cached;
use crate::tree::{ChunkTable, Entry, Listing, Tree};
use crate::{BoxKeys, SaveId};

const MAGIC: &[u8; 8] = b"CBXSCAN1";
const CHECK: usize = 32;
const FILE_MAX: u64 = 4 << 30;

/// A cache that was read.
#[derive(Debug, Default)]
pub(crate) struct CacheFile {
    pub(crate) save: SaveId,
    /// How many deltas there are down to the full manifest, and how many bytes the next ones may have together.
    pub(crate) chain: u32,
    pub(crate) room: u64,
    pub(crate) cached: Cached,
}

pub(crate) fn encode(keys: &BoxKeys, file: &CacheFile, table: &ChunkTable) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.raw(MAGIC);
    writer.bytes(keys.box_label().as_str().as_bytes());
    writer.raw(file.save.as_bytes());
    writer.number(u64::from(file.chain));
    writer.number(file.room);
    writer.raw(&file.cached.scanned.to_le_bytes());
    file.cached.tree.root.write(&mut writer, |_| 0, true);
    let mut segments = Vec::new();
    let mut builder = SegmentBuilder::new(table, true);
    for listing in &file.cached.tree.listings {
        let mut from = 0;
        loop {
            from += builder.push(listing, from);
            if builder.is_full() {
                segments.push(std::mem::replace(&mut builder, SegmentBuilder::new(table, true)).finish());
            }
            if from >= listing.entries.len() {
                break;
            }
        }
    }
    if !builder.is_empty() {
        segments.push(builder.finish());
    }
    writer.number(segments.len() as u64);
    for segment in segments {
        writer.bytes(&segment);
    }
    let check = keys.tree_hasher().update(&writer.0).finalize();
    writer.raw(check.as_bytes());
    writer.0
}

pub(crate) fn decode(keys: &BoxKeys, bytes: &[u8], table: &mut ChunkTable) -> Result<CacheFile, FormatError> {
    let wrong = FormatError::new("a scan cache");
    let (body, check) = bytes.split_last_chunk::<CHECK>().ok_or(wrong)?;
    // a cache of another box or domain, or a damaged one
    if keys.tree_hasher().update(body).finalize() != *check {
        return Err(wrong);
    }
    decode_body(keys.box_label().as_str(), body, table)
}

fn decode_body(label: &str, body: &[u8], table: &mut ChunkTable) -> Result<CacheFile, FormatError> {
    let mut reader = Reader::new(body, "a scan cache");
    let wrong = reader.error();
    if reader.array()? != *MAGIC || reader.bytes(64)? != label.as_bytes() {
        return Err(wrong);
    }
    let save = SaveId::from_bytes(reader.array()?);
    let chain = reader.up_to(64)? as u32;
    let room = reader.number()?;
    let scanned = i128::from_le_bytes(reader.array()?);
    let root = Entry::read(&mut reader, true, |_| None, true)?;
    let mut listings: Vec<Listing> = Vec::new();
    for _ in 0..reader.count(6)? {
        for part in read_segment(reader.bytes(32 << 20)?, table, true)? {
            match listings.last_mut().filter(|last| last.path == part.listing.path) {
                Some(last) => last.entries.extend(part.listing.entries),
                None => listings.push(part.listing),
            }
        }
    }
    reader.end()?;
    let cached = Cached { tree: Tree { root, listings }, scanned };
    crate::tree::check_shape(&cached.tree)?;
    Ok(CacheFile { save, chain, room, cached })
}

/// Reads a scan cache's body, without its checksum, and says how many folders it holds.
///
/// # Errors
/// Bytes that break the format.
pub fn decode_cache(box_label: &str, body: &[u8]) -> Result<usize, FormatError> {
    decode_body(box_label, body, &mut ChunkTable::default()).map(|file| file.cached.tree.listings.len())
}

pub(crate) fn load(keys: &BoxKeys, path: &Path, table: &mut ChunkTable) -> Option<CacheFile> {
    if fs::metadata(path).ok()?.len() > FILE_MAX {
        return None;
    }
    decode(keys, &fs::read(path).ok()?, table).ok()
}

pub(crate) fn store(keys: &BoxKeys, path: &Path, file: &CacheFile, table: &ChunkTable) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let bytes = encode(keys, file, table);
    fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path))
}
