//! The port over which the engine has boxes saved and restored.

use std::fmt;

use async_trait::async_trait;
use cocoonbox_core::backend::BoxedDuplex;
use cocoonbox_core::machine::Bytes;
use cocoonbox_core::{BoxId, Retry, Timestamp, UserId, WakeId};
use tokio::sync::watch;

mod memory;

pub use memory::MemoryKeeper;

/// A running box, and a stream to its agent.
pub struct Guest {
    /// Whose it is.
    pub owner: UserId,
    /// Which.
    pub box_id: BoxId,
    /// Whether an outside agent made it: then nothing of it is shared with the owner's other boxes.
    pub agent: bool,
    /// The wake that it runs in.
    pub wake_id: WakeId,
    /// A connection to its agent, on which nothing was said yet.
    pub stream: BoxedDuplex,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest")
            .field("box_id", &self.box_id)
            .field("wake_id", &self.wake_id)
            .finish_non_exhaustive()
    }
}

/// Why a box is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaveReason {
    /// The person asked for it.
    Asked,
    /// The box goes to sleep.
    Sleep,
    /// A restore follows, which replaces what is saved here.
    Restore,
    /// The box moves to another image.
    Upgrade,
}

/// A save that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a row of the list of saves")]
pub struct SaveInfo {
    /// Its id.
    pub id: String,
    /// When it was made.
    pub at: Timestamp,
    /// Files in it.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that came to the store with it, sealed.
    pub new_bytes: u64,
    /// The hash over its tree, in hex.
    pub root_hash: String,
    /// Why it is kept whatever its age, in a word; empty when it is not.
    pub kept: String,
    /// Files that changed while they were read, and are perhaps neither the one nor the other.
    pub inconsistent: u64,
    /// Sockets, devices and the like, that no save holds.
    pub skipped: u64,
}

/// How far a save or restore is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "counts")]
pub struct Moved {
    /// Bytes done, or found unchanged, and in all.
    pub bytes: Bytes,
    /// Files of them.
    pub files: u64,
    /// Files in all.
    pub files_total: u64,
    /// Bytes that were in no save before, or that were fetched.
    pub new_bytes: u64,
}

/// What came of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "three counts")]
pub struct RestoreInfo {
    /// Files restored.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that came from the store for it: less where one that was broken off is gone on with.
    pub fetched: u64,
}

/// A file or folder of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a row of a listing")]
pub struct SavedEntryInfo {
    /// Its name.
    pub name: Vec<u8>,
    /// `file`, `directory`, `symlink` or `fifo`.
    pub kind: &'static str,
    /// Its length.
    pub bytes: u64,
    /// Its mode bits.
    pub mode: u32,
    /// When it was last changed.
    pub modified_at: Timestamp,
}

/// Why a box was not saved or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// There is no such save, or no such path in it.
    #[error("the box has no {what}")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// The request breaks a rule.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The rule.
        reason: String,
    },
    /// The agent in the box did not do it, or does not answer.
    #[error("the box did not do it: {reason}")]
    Guest {
        /// In its words.
        reason: String,
    },
    /// The state store cannot be reached or has no room.
    #[error("the state store cannot be used: {reason}")]
    Store {
        /// In words.
        reason: String,
    },
    /// What is stored is damaged.
    #[error("what was saved is damaged: {reason}")]
    Damaged {
        /// In words.
        reason: String,
    },
    /// What is there already forbids it.
    #[error("{reason}")]
    Held {
        /// What is there, and what to do.
        reason: String,
    },
    /// Another save of the box came first.
    #[error("another save of the box came first: try again")]
    Raced,
}

impl KeeperError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::NotFound { .. } | Self::Invalid { .. } | Self::Damaged { .. } | Self::Held { .. } => {
                Retry::Never
            }
            Self::Guest { .. } | Self::Store { .. } | Self::Raced => Retry::Later,
        }
    }
}

/// A file of a save that is open for reading.
#[async_trait]
pub trait SavedFileReader: fmt::Debug + Send + Sync + 'static {
    /// Returns what the save says of it.
    fn entry(&self) -> &SavedEntryInfo;
    /// Reads at most `most` bytes from `offset`; none at its end.
    async fn read(&self, offset: u64, most: u64) -> Result<Vec<u8>, KeeperError>;
}

/// Keeps boxes' state: home and workspace.
///
/// # Behavior
/// - A save counts when [`save`](Self::save) answers it, and is then listed. One that fails leaves the saves before as
///   they were.
/// - What [`stage`](Self::stage) brought into the box takes its place at the box's next start, whole or not at all. One
///   that is broken off is gone on with by the next of the same save.
/// - `progress` is told how far it is; who does not read it holds nothing up.
/// - Dropping a future gives the work up; what was done so far is found again or cleared away later.
#[async_trait]
pub trait StateKeeper: fmt::Debug + Send + Sync + 'static {
    /// Saves a running box.
    async fn save(
        &self,
        guest: Guest,
        reason: SaveReason,
        progress: watch::Sender<Moved>,
    ) -> Result<SaveInfo, KeeperError>;
    /// Brings a save into a running box, proven, beside what it has; `save` is an id, or empty for the one that holds
    /// what the box had last: what was restored since its newest save, else the newest that no restore made of what it
    /// replaced.
    async fn stage(
        &self,
        guest: Guest,
        save: &str,
        progress: watch::Sender<Moved>,
    ) -> Result<RestoreInfo, KeeperError>;
    /// Puts files and folders of a save in the place of what a running box has.
    async fn restore_files(
        &self,
        guest: Guest,
        save: &str,
        paths: &[Vec<u8>],
        progress: watch::Sender<Moved>,
    ) -> Result<RestoreInfo, KeeperError>;
    /// Lists a box's saves, the newest first.
    async fn saves(&self, owner: &UserId, box_id: &BoxId) -> Result<Vec<SaveInfo>, KeeperError>;
    /// Lists a folder of a save by its name in the box; the root is empty.
    async fn browse(
        &self,
        owner: &UserId,
        box_id: &BoxId,
        save: &str,
        folder: &[u8],
    ) -> Result<Vec<SavedEntryInfo>, KeeperError>;
    /// Opens a file of a save by its name in the box.
    async fn open(
        &self,
        owner: &UserId,
        box_id: &BoxId,
        save: &str,
        file: &[u8],
    ) -> Result<Box<dyn SavedFileReader>, KeeperError>;
    /// Forgets a box that is deleted, with its saves.
    async fn forget(&self, owner: &UserId, box_id: &BoxId) -> Result<(), KeeperError>;
}
