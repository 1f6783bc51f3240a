//! The port over which a user's saves as a whole are looked after.

use std::fmt;

use async_trait::async_trait;
use cocoonbox_core::machine::Bytes;
use cocoonbox_core::{BoxId, Timestamp, UserId};
use tokio::sync::watch;

use crate::KeeperError;

cocoonbox_core::secret! {
    /// A user's name in the state store and the key to it, in print.
    pub struct PrintedStateKey;
}

/// An object that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a row of a report")]
pub struct DamageInfo {
    /// Its name in the store.
    pub object: String,
    /// It is not there at all.
    pub missing: bool,
    /// Files whose content is lost, by their absolute names in the box; none when the whole save is.
    pub paths: Vec<Vec<u8>>,
}

/// What a check of a save found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a report")]
pub struct CheckInfo {
    /// Which save.
    pub save: String,
    /// Parts of packs that were read.
    pub parts: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What is damaged.
    pub damages: Vec<DamageInfo>,
}

/// What a prune does, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a report")]
pub struct PruneInfo {
    /// Saves that the keep rule does not hold: box and save.
    pub forget: Vec<(String, String)>,
    /// Packs that no save needs.
    pub packs: u64,
    /// Manifests that do not count.
    pub manifests: u64,
    /// Bytes of the packs.
    pub bytes: u64,
    /// When what is marked is deleted; none when nothing is marked.
    pub sweep_at: Option<Timestamp>,
    /// Objects that were deleted just now, of an earlier mark.
    pub deleted: u64,
}

/// A box of another server whose saves were found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a row of a list")]
pub struct RecoveredInfo {
    /// Which box.
    pub box_id: BoxId,
    /// How many saves it has.
    pub saves: u64,
    /// When the newest was made.
    pub newest: Timestamp,
}

/// Looks after a user's saves as a whole.
///
/// # Behavior
/// - Nothing that a save which counts needs is ever deleted, whoever saves meanwhile.
/// - What [`prune`](Self::prune) marks is deleted by a later call once the mark is old enough, and not before.
/// - [`import_key`](Self::import_key) changes nothing unless it succeeds.
#[async_trait]
pub trait StateCare: fmt::Debug + Send + Sync + 'static {
    /// Reads a save and names what is damaged; `save` is an id, or empty for the newest, and one of `sample` parts is
    /// read. `progress` is told bytes read and in all.
    async fn check(
        &self,
        owner: &UserId,
        box_id: &BoxId,
        save: &str,
        sample: u32,
        progress: watch::Sender<Bytes>,
    ) -> Result<CheckInfo, KeeperError>;
    /// Says what a prune would do, and changes nothing.
    async fn plan_prune(&self, owner: &UserId) -> Result<PruneInfo, KeeperError>;
    /// Deletes what was marked long enough ago; where nothing is marked, marks what no save needs.
    async fn prune(&self, owner: &UserId) -> Result<PruneInfo, KeeperError>;
    /// Returns the users that have saves.
    async fn owners(&self) -> Result<Vec<UserId>, KeeperError>;
    /// Prints the key to a user's saves.
    async fn export_key(&self, owner: &UserId) -> Result<PrintedStateKey, KeeperError>;
    /// Takes the key of another server over the same store in, and finds the saves by it.
    async fn import_key(&self, owner: &UserId, printed: &str) -> Result<Vec<RecoveredInfo>, KeeperError>;
}
