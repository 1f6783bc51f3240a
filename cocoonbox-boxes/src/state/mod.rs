//! Boxes' state in a state store: sealed by the guest, committed here.

#[cfg(feature = "sql")]
mod catalog;
mod door;
mod grant;
mod keeper;
mod serve;

use std::fmt;

use async_trait::async_trait;
use cocoonbox_core::UserId;
use cocoonbox_state::StateKey;

#[cfg(feature = "sql")]
pub use catalog::{MIGRATIONS, STATEMENTS, SqlCatalog};
pub use door::{DOOR_PATH, StateDoor};
pub use keeper::SealedKeeper;

use crate::KeeperError;

/// Who holds users' state keys.
///
/// # Behavior
/// - A user has one key, made when it is first asked for, and the same from then on.
#[async_trait]
pub trait StateKeys: fmt::Debug + Send + Sync + 'static {
    /// Returns a user's key.
    async fn of(&self, owner: &UserId) -> Result<StateKey, KeeperError>;
}
