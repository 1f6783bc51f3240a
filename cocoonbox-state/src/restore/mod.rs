//! Putting a save back: what is written, in which order, beneath which folder.

mod error;
mod file;
mod plan;

pub use error::RestoreError;
pub(crate) use file::{
    FileTask, Writer as FileWriter, finish_folder, finish_folders, link_names, make_entries,
};
pub(crate) use plan::{GroupTask, Plan};

use std::path::PathBuf;

use tokio::sync::watch;

use crate::save::Progress;
use crate::scan::OwnerMap;
use crate::{RootHash, SaveId};

/// How a restore is proven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verify {
    /// Every chunk's id is checked before it is written; then everything but content is read back from the disk and the
    /// root hash is computed over it.
    #[default]
    Written,
    /// Content is read back from the disk, too.
    ReadBack,
}

/// How a restore is done.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// How owners here are called in the guest.
    pub owners: OwnerMap,
    /// Where to write the scan cache for the next save.
    pub cache: Option<PathBuf>,
    /// How it is proven.
    pub verify: Verify,
    /// Threads that open, unpack and write; one for each core when 0.
    pub threads: usize,
    /// Told how far it is.
    pub progress: Option<watch::Sender<Progress>>,
}

/// A restore that is done and proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Which save.
    pub save: SaveId,
    /// The root hash, as read back; none when only paths were restored.
    pub root_hash: Option<RootHash>,
    /// Files written.
    pub files: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Files that were there already from a restore that broke off, read and found right.
    pub resumed: u64,
    /// Bytes fetched.
    pub fetched: u64,
}
