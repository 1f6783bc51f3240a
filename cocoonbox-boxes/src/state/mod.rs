//! Boxes' state in a state store: sealed by the guest, committed here.

mod care;
#[cfg(feature = "sql")]
mod catalog;
mod door;
mod grant;
mod keeper;
mod serve;

use std::fmt;

use async_trait::async_trait;
use cocoonbox_core::UserId;
use cocoonbox_state::Account;

#[cfg(feature = "sql")]
pub use catalog::{MIGRATIONS, STATEMENTS, SqlCatalog};
pub use door::{DOOR_PATH, StateDoor};
pub use keeper::SealedKeeper;
pub use serve::look_after;

use crate::KeeperError;

/// Who holds users' accounts in the state store: a name and a key each.
///
/// # Behavior
/// - A user has one account, made when it is first asked for, and the same from then on until it is replaced.
/// - [`replace`](Self::replace) is one step and durable.
#[async_trait]
pub trait StateKeys: fmt::Debug + Send + Sync + 'static {
    /// Returns a user's account.
    async fn of(&self, owner: &UserId) -> Result<Account, KeeperError>;
    /// Gives a user another account; [`KeeperError::Held`] when its name in the store is, or may become, another user's.
    async fn replace(&self, owner: &UserId, account: &Account) -> Result<(), KeeperError>;
    /// Returns all users that have one.
    async fn owners(&self) -> Result<Vec<UserId>, KeeperError>;
}
