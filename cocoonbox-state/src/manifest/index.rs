use cocoonbox_core::Timestamp;
use serde::{Deserialize, Serialize};

use super::segment::{PATH_MAX, SEGMENT_MAX};
use crate::codec::{FormatError, Reader, Writer};
use crate::pack::check_group;
use crate::tree::{Entry, TreePath};
use crate::{RootHash, SaveId};

/// How many paths of a kind a record names; the rest are counted.
pub(crate) const NAMED_MAX: usize = 1000;
const INDEX_MAX: u32 = 64 << 20;
/// All segments of a manifest together, unpacked.
const PLAIN_MAX: u64 = 2 << 30;
const VERSION: u8 = 1;

/// Counts of what a save holds and of what it left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct SaveStats {
    /// Files, each name of one counted.
    pub files: u64,
    /// Folders.
    pub folders: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Bytes of the files, each name of one counted.
    pub bytes: u64,
    /// Bytes that were in no save before.
    pub new_bytes: u64,
    /// Bytes that were put, packs alone.
    pub stored_bytes: u64,
    /// Files that were opened and read.
    pub read_files: u64,
    /// Sockets left out.
    pub sockets: u64,
    /// Device nodes left out.
    pub devices: u64,
    /// `security.*` and other attributes left out, and entries of access lists.
    pub attributes: u64,
    /// Entries whose owner is outside the mapping; they are kept as the overflow user's.
    pub foreign_owners: u64,
    /// Folders and files left out because they were excluded.
    pub excluded: u64,
    /// Entries that could not be read and are left out.
    pub unreadable: u64,
    /// Files that changed each time they were read; what is saved may be of two moments.
    pub inconsistent: u64,
}

impl SaveStats {
    fn numbers(&mut self) -> [&mut u64; 15] {
        [
            &mut self.files,
            &mut self.folders,
            &mut self.symlinks,
            &mut self.fifos,
            &mut self.bytes,
            &mut self.new_bytes,
            &mut self.stored_bytes,
            &mut self.read_files,
            &mut self.sockets,
            &mut self.devices,
            &mut self.attributes,
            &mut self.foreign_owners,
            &mut self.excluded,
            &mut self.unreadable,
            &mut self.inconsistent,
        ]
    }
}

/// What is told of a save.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaveRecord {
    /// Counts.
    pub stats: SaveStats,
    /// Files that stayed inconsistent, 1000 at most.
    pub inconsistent: Vec<TreePath>,
    /// What could not be read, 1000 at most.
    pub unreadable: Vec<TreePath>,
}

/// Where a segment is, and where in the tree it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPlace {
    pub(crate) path: Box<[u8]>,
    pub(crate) name: Box<[u8]>,
    pub(crate) offset: u64,
    pub(crate) sealed: u32,
    pub(crate) plain: u32,
}

/// What a manifest ends with.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) root_hash: RootHash,
    pub(crate) created: Timestamp,
    /// The save that a delta rests on, and how many deltas there are down to the full one.
    pub(crate) base: Option<(SaveId, u32)>,
    pub(crate) root: Entry,
    pub(crate) record: SaveRecord,
    pub(crate) removed: Vec<Box<[u8]>>,
    pub(crate) segments: Vec<SegmentPlace>,
}

impl Index {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.byte(VERSION);
        writer.raw(self.root_hash.as_bytes());
        writer.signed(self.created.micros());
        writer.number(u64::from(self.base.map_or(0, |base| base.1)));
        if let Some((base, _)) = &self.base {
            writer.raw(base.as_bytes());
        }
        self.root.write(&mut writer, |_| 0, false);
        let mut stats = self.record.stats;
        for number in stats.numbers() {
            writer.number(*number);
        }
        for paths in [&self.record.inconsistent, &self.record.unreadable] {
            writer.number(paths.len() as u64);
            for path in paths {
                writer.bytes(path.as_bytes());
            }
        }
        writer.number(self.removed.len() as u64);
        for path in &self.removed {
            writer.bytes(path);
        }
        writer.number(self.segments.len() as u64);
        for segment in &self.segments {
            writer.bytes(&segment.path);
            writer.bytes(&segment.name);
            writer.number(segment.offset);
            writer.number(u64::from(segment.sealed));
            writer.number(u64::from(segment.plain));
        }
        writer.0
    }

    pub(crate) fn decode(plain: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(plain, "a manifest's index");
        let wrong = reader.error();
        if plain.len() > INDEX_MAX as usize || reader.byte()? != VERSION {
            return Err(wrong);
        }
        let root_hash = RootHash::from_bytes(reader.array()?);
        let created = Timestamp::from_micros(reader.signed()?);
        let chain = reader.up_to(u64::from(super::CHAIN_MAX))? as u32;
        let base = if chain == 0 { None } else { Some((SaveId::from_bytes(reader.array()?), chain)) };
        let root = Entry::read(&mut reader, true, |_| None, false)?;
        if !root.is_folder() {
            return Err(wrong);
        }
        let mut record = SaveRecord::default();
        for number in record.stats.numbers() {
            *number = reader.number()?;
        }
        for paths in [&mut record.inconsistent, &mut record.unreadable] {
            for _ in 0..reader.up_to(NAMED_MAX as u64)? {
                paths.push(TreePath::parse(reader.bytes(PATH_MAX)?).map_err(|_| wrong)?);
            }
        }
        let mut removed: Vec<Box<[u8]>> = Vec::new();
        for _ in 0..reader.count(2)? {
            let path = TreePath::parse(reader.bytes(PATH_MAX)?).map_err(|_| wrong)?;
            if removed.last().is_some_and(|last| crate::tree::compare(last, path.as_bytes()).is_ge()) {
                return Err(wrong);
            }
            removed.push(path.as_bytes().into());
        }
        let mut segments: Vec<SegmentPlace> = Vec::new();
        let mut total = 0_u64;
        for _ in 0..reader.count(5)? {
            let path = TreePath::parse(reader.bytes(PATH_MAX)?).map_err(|_| wrong)?;
            let name = reader.bytes(255)?.into();
            let (offset, sealed, plain) = (reader.number()?, reader.small()?, reader.small()?);
            total += u64::from(plain);
            if plain > SEGMENT_MAX
                || total > PLAIN_MAX
                || check_group(sealed, plain.min(1)).is_err() && sealed > plain + 16
            {
                return Err(wrong);
            }
            segments.push(SegmentPlace { path: path.as_bytes().into(), name, offset, sealed, plain });
        }
        reader.end()?;
        if base.is_none() && !removed.is_empty() {
            return Err(wrong);
        }
        Ok(Self { root_hash, created, base, root, record, removed, segments })
    }
}

/// What a manifest's index says, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestSummary {
    /// The hash over the whole tree.
    pub root_hash: RootHash,
    /// When it was saved.
    pub created: Timestamp,
    /// The save that it is a delta to.
    pub base: Option<SaveId>,
    /// What is told of it.
    pub record: SaveRecord,
}

/// Reads a manifest's index once it is opened and unpacked.
///
/// # Errors
/// Bytes that break the format.
pub fn decode_index(plain: &[u8]) -> Result<ManifestSummary, FormatError> {
    Index::decode(plain).map(|index| index.summary())
}

impl Index {
    pub(crate) fn summary(&self) -> ManifestSummary {
        ManifestSummary {
            root_hash: self.root_hash,
            created: self.created,
            base: self.base.map(|base| base.0),
            record: self.record.clone(),
        }
    }
}
