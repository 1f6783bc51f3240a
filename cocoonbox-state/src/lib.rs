#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod account;
mod browse;
mod cache;
mod catalog;
mod check;
mod chunk;
mod codec;
mod crash;
mod id;
mod key;
mod manifest;
mod neighbour;
mod object;
mod pack;
mod prune;
mod restore;
mod save;
mod scan;
mod sealed;
mod serve;
mod tree;
mod vault;

pub use account::{Account, open_account, seal_account};
pub use browse::{Browser, EntryKind, LinkTarget, SavedEntry, SavedFile};
pub use cache::decode_cache;
#[cfg(any(test, feature = "testkit"))]
pub use catalog::testkit as catalog_testkit;
pub use catalog::{
    BoxSaves, Catalog, CatalogError, CommitRefusal, Keep, KeepRule, Ledger, Mark, MemoryCatalog,
    ObjectCatalog, Revision, SaveEntry, recover, update as update_ledger,
};
pub use check::{CheckReport, Damage, Depth};
pub use chunk::{BLOCK, CHUNK_MAX, GROUP, SMALL_FILE};
pub use codec::FormatError;
#[cfg(feature = "testkit")]
pub use crash::{CRASH_POINTS, arm_crash_point};
pub use id::{ChunkId, Domain, Label, NameError, ObjectKey, ObjectKind, PackId, Prefix, RootHash, SaveId};
pub use key::{BoxKeys, KeyError, PrintedKey, StateKey};
pub use manifest::{
    CHAIN_MAX, ManifestSummary, ReadError, SaveRecord, SaveStats, SegmentSummary, decode_index,
    decode_segment,
};
pub use neighbour::load_neighbours;
#[cfg(any(test, feature = "testkit"))]
pub use object::testkit as object_testkit;
pub use object::{
    ByteRange, Fetch, Fetched, FolderObjects, GrantError, GrantedFetch, GrantedUpload, Grants, HttpAnswer,
    HttpRequest, HttpSend, Listed, MemoryObjects, ObjectError, Objects, Presign, Presigned, PresignedMethod,
    PresignedUrl, PutGrant, URL_LIFETIME_MAX, Upload, UrlError, UrlSigner, VerifiedRequest,
};
#[cfg(any(test, feature = "testkit"))]
pub use object::{FaultyObjects, ObjectCall, ObjectFault};
#[cfg(feature = "s3")]
pub use object::{S3Config, S3Objects, S3Secret};
pub use pack::{PackDirectory, PackGroup, decode_directory};
pub use prune::{PruneError, PrunePlan, SWEEP_WAIT, Swept};
pub use restore::{RestoreError, RestoreOptions, Restored, Verify};
pub use save::{Neighbours, PackView, PreparedSave, PreparedWire, Progress, SaveError, SaveOptions};
pub use scan::{Excludes, OwnerMap, Root};
pub use sealed::OpenError;
pub use serve::{RestoreContext, SaveContext, hash_tree, restore, restore_paths, save};
pub use tree::TreePath;
pub use vault::{CommitError, Vault, commit, neighbours, pack_view};
