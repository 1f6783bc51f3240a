//! What a save is asked and what it answers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cocoonbox_core::{Retry, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::manifest::{ReadError, SaveRecord, SaveStats};
use crate::object::ObjectError;
use crate::scan::{Excludes, OwnerMap, Root};
use crate::tree::ChunkTable;
use crate::{Domain, Label, ObjectKey, PackId, RootHash, SaveId};

/// How far a save or restore is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// Files in all.
    pub files_total: u64,
    /// Bytes in all.
    pub bytes_total: u64,
    /// Files done, or found unchanged.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that were in no save before, or that were fetched.
    pub new_bytes: u64,
}

/// Which packs may be relied on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PackView {
    /// The domain's packs that are there and not about to go.
    pub packs: std::collections::BTreeSet<PackId>,
    /// The catalog's count of sweeps when they were listed.
    pub sweeps: u64,
}

/// Chunks of other boxes of the domain that a save may rest on once it verified them.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(pub(crate) Arc<ChunkTable>);

/// What a save is to do. Growing: made with [`new`](Self::new), changed in place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveOptions {
    /// What is saved.
    pub roots: Vec<Root>,
    /// What is left out.
    pub excludes: Excludes,
    /// Whether folders with a `CACHEDIR.TAG` are left out; they are.
    pub skip_tagged: bool,
    /// How owners here are called in the guest.
    pub owners: OwnerMap,
    /// The box's newest save, if it has one.
    pub base: Option<SaveId>,
    /// The packs that may be relied on; all that a manifest names when it is not given.
    pub view: Option<PackView>,
    /// Chunks of other boxes.
    pub neighbours: Neighbours,
    /// The scan cache: a file that may be missing or of no use.
    pub cache: Option<PathBuf>,
    /// The zstd level.
    pub level: i32,
    /// Threads that read and pack; one for each core when 0.
    pub threads: usize,
    /// How long a full pack is; 4 to 32 MiB.
    pub pack_size: usize,
    /// Writes a full manifest whatever the rule for deltas says.
    pub full: bool,
    /// Told how far it is.
    pub progress: Option<watch::Sender<Progress>>,
}

impl SaveOptions {
    /// Saves these roots with nothing left out.
    pub fn new(roots: Vec<Root>) -> Self {
        Self {
            roots,
            excludes: Excludes::none(),
            skip_tagged: true,
            owners: OwnerMap::identity(),
            base: None,
            view: None,
            neighbours: Neighbours::default(),
            cache: None,
            level: 1,
            threads: 0,
            pack_size: 16 << 20,
            full: false,
            progress: None,
        }
    }
}

/// A save whose objects are put and that is not committed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreparedSave {
    /// Its id.
    pub id: SaveId,
    /// Whose.
    pub uid: Label,
    /// Of which box.
    pub box_label: Label,
    /// In which domain.
    pub domain: Domain,
    /// What it was made against.
    pub base: Option<SaveId>,
    /// Whether its manifest rests on the base's.
    pub delta: bool,
    /// The hash over its tree.
    pub root_hash: RootHash,
    /// When it was made.
    pub created: Timestamp,
    /// What is told of it.
    pub record: SaveRecord,
    /// The packs that it put, and their lengths.
    pub packs: BTreeMap<PackId, u64>,
    /// How long its manifest is.
    pub manifest_length: u64,
    /// The catalog's count of sweeps that it saw.
    pub sweeps: u64,
}

/// A prepared save in plain numbers and texts, for the way from a guest to the edge.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PreparedWire {
    id: SaveId,
    base: Option<SaveId>,
    delta: bool,
    root_hash: RootHash,
    created_micros: i64,
    stats: SaveStats,
    packs: BTreeMap<PackId, u64>,
    manifest_length: u64,
    sweeps: u64,
}

impl PreparedSave {
    /// Takes what goes over the wire: all but the names of files, which only the manifest holds.
    pub fn to_wire(&self) -> PreparedWire {
        PreparedWire {
            id: self.id,
            base: self.base,
            delta: self.delta,
            root_hash: self.root_hash,
            created_micros: self.created.micros(),
            stats: self.record.stats,
            packs: self.packs.clone(),
            manifest_length: self.manifest_length,
            sweeps: self.sweeps,
        }
    }

    /// Reads what came over the wire; whose it is and of which box is the receiver's to say.
    pub fn from_wire(wire: PreparedWire, uid: Label, domain: Domain, box_label: Label) -> Self {
        Self {
            id: wire.id,
            uid,
            box_label,
            domain,
            base: wire.base,
            delta: wire.delta,
            root_hash: wire.root_hash,
            created: Timestamp::from_micros(wire.created_micros),
            record: SaveRecord { stats: wire.stats, ..SaveRecord::default() },
            packs: wire.packs,
            manifest_length: wire.manifest_length,
            sweeps: wire.sweeps,
        }
    }
}

/// Why a save was not made. Nothing that was saved before is touched by any of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// None of the roots is there, or one cannot be opened.
    #[error("what is to be saved cannot be opened")]
    Roots {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Two roots' prefixes lie in each other, or the options are out of range.
    #[error("the save's options do not fit: {what}")]
    Misuse {
        /// What does not fit.
        what: &'static str,
    },
    /// This machine failed: memory, threads, randomness, the packing itself.
    #[error("this machine failed during the save")]
    Machine {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The save that it is made against cannot be read.
    #[error("the save before cannot be read")]
    Base {
        /// Why.
        #[source]
        source: ReadError,
    },
    /// An object could not be put.
    #[error("{key} could not be put")]
    Put {
        /// Which.
        key: ObjectKey,
        /// Why.
        #[source]
        source: ObjectError,
    },
}

impl SaveError {
    /// Returns what a caller may do next: what was put stays put, and another try puts the rest.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Roots { .. } | Self::Misuse { .. } => Retry::Never,
            Self::Machine { .. } => Retry::Later,
            Self::Base { source } => source.retry(),
            Self::Put { source, .. } => source.retry(),
        }
    }
}
