//! A saved tree in memory: listings of folders, and the table of chunks that their files rest on.

mod diff;
mod entry;
mod hash;
mod path;
mod table;

pub(crate) use diff::{apply, changes};
pub(crate) use entry::{Attribute, Content, Entry, FileNode, ManyChunks, Meta, Node, Stamp};
pub(crate) use hash::{check_shape, root_hash};
pub use path::TreePath;
pub(crate) use path::{compare, components, is_beneath, join, parent};
pub(crate) use table::{Chunk, ChunkTable};

/// A folder and what is in it, sorted by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    pub(crate) path: Box<[u8]>,
    pub(crate) entries: Vec<Entry>,
}

/// All folders of a save, sorted by path, the root first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// The root itself: a folder, or a passage to the folders that are saved.
    pub(crate) root: Entry,
    pub(crate) listings: Vec<Listing>,
}

impl Tree {
    pub(crate) fn find(&self, path: &[u8]) -> Option<usize> {
        self.listings.binary_search_by(|listing| compare(&listing.path, path)).ok()
    }
}
