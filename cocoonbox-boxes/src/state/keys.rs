//! Who holds users' accounts in the state store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cocoonbox_core::{Entropy, UserId};
use cocoonbox_state::{Account, Label, StateKey};

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

/// Keys in this process's memory, for tests.
#[derive(Debug)]
pub struct MemoryStateKeys {
    accounts: Mutex<BTreeMap<UserId, Account>>,
    entropy: Arc<dyn Entropy>,
}

impl MemoryStateKeys {
    /// Makes one that holds none; keys are drawn from `entropy`.
    pub fn new(entropy: Arc<dyn Entropy>) -> Self {
        Self { accounts: Mutex::default(), entropy }
    }

    fn accounts(&self) -> MutexGuard<'_, BTreeMap<UserId, Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl StateKeys for MemoryStateKeys {
    async fn of(&self, owner: &UserId) -> Result<Account, KeeperError> {
        let drawn = StateKey::generate(self.entropy.as_ref());
        let key = drawn.map_err(|error| KeeperError::Store { reason: error.to_string() })?;
        let new = || Account { uid: Label::from(owner), key };
        Ok(self.accounts().entry(owner.clone()).or_insert_with(new).clone())
    }

    async fn replace(&self, owner: &UserId, account: &Account) -> Result<(), KeeperError> {
        let mut accounts = self.accounts();
        let own = Label::from(owner);
        let others = || accounts.iter().filter(|(user, _)| *user != owner);
        let taken = others().any(|(user, held)| held.uid == account.uid || Label::from(user) == account.uid);
        if taken && account.uid != own {
            let reason = "that name in the store is another user's on this server".to_owned();
            return Err(KeeperError::Held { reason });
        }
        accounts.insert(owner.clone(), account.clone());
        Ok(())
    }

    async fn owners(&self) -> Result<Vec<UserId>, KeeperError> {
        Ok(self.accounts().keys().cloned().collect())
    }
}
