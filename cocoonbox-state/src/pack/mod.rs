//! Packs: groups of chunks, sealed, with a directory from which their places can be told.

mod read;
mod write;

pub use read::{PackDirectory, PackGroup, decode_directory};
pub(crate) use read::{check_group, open_group, open_group_with};
pub(crate) use write::{ClosedPack, Packer};

use crate::PackId;

/// Where a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupPlace {
    pub(crate) pack: PackId,
    /// Where in the object it starts.
    pub(crate) offset: u32,
    /// How long it is there, with its tag.
    pub(crate) sealed: u32,
    /// How long it is when opened and unpacked.
    pub(crate) plain: u32,
    /// Which part of the object it is.
    pub(crate) number: u32,
}
