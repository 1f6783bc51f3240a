//! What is saved, and reading it without following anything.

mod attribute;
mod open;
mod owner;
mod read;
mod rule;
mod walk;

pub(crate) use attribute::{attributes_at, attributes_of, proc_path, set_attributes};
pub(crate) use open::{FileStat, open_beneath, stat_of};
pub use owner::OwnerMap;
pub(crate) use read::{ChunkSink, FileRead, read_file};
pub use rule::{Excludes, Root};
pub(crate) use walk::{Cached, Found, Scan, Walk, meta_of, note_unreadable};
