//! Manifests: listings in sealed segments, and an index by which few of them need be read.

mod index;
mod read;
mod segment;
mod write;

pub(crate) use index::{Index, NAMED_MAX};
pub use index::{ManifestSummary, decode_index};
pub use index::{SaveRecord, SaveStats};
pub use read::ReadError;
pub(crate) use read::{Manifest, join_parts_of, load_chain, open_chain};
pub(crate) use segment::{SegmentBuilder, read_segment};
pub use segment::{SegmentSummary, decode_segment};
pub(crate) use write::{ManifestPlan, write_manifest};

/// The most deltas between a save and the full manifest that it rests on.
pub const CHAIN_MAX: u32 = 16;
