//! A store that fails when told to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cocoonbox_core::{Timestamp, TokenId, UserId};

use super::{Credential, NewDevice, TokenRecord, User, UserKey, UserStore, UserStoreError};
use crate::TokenHash;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Before it did anything: [`UserStoreError::Unavailable`].
    Before,
    /// After it had done everything: [`UserStoreError::Uncertain`].
    After,
}

/// Wraps a store and lets chosen calls fail.
#[derive(Debug)]
pub struct FaultyUserStore<S> {
    inner: S,
    schedule: BTreeMap<u64, Fault>,
    calls: AtomicU64,
}

impl<S> FaultyUserStore<S> {
    /// Lets the calls numbered in `schedule` fail; the first call of any method is 0.
    pub fn new(inner: S, schedule: impl IntoIterator<Item = (u64, Fault)>) -> Self {
        Self { inner, schedule: schedule.into_iter().collect(), calls: AtomicU64::new(0) }
    }

    /// Returns how many calls were made.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn run<T>(
        &self,
        call: impl Future<Output = Result<T, UserStoreError>> + Send,
    ) -> Result<T, UserStoreError> {
        match self.schedule.get(&self.calls.fetch_add(1, Ordering::SeqCst)) {
            None => call.await,
            Some(Fault::Before) => Err(UserStoreError::Unavailable { source: "scheduled".into() }),
            Some(Fault::After) => {
                call.await?;
                Err(UserStoreError::Uncertain { source: "scheduled".into() })
            }
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: UserStore> UserStore for FaultyUserStore<S> {
    async fn create_user(&self, user: &User, credentials: &[Credential]) -> Result<(), UserStoreError> {
        self.run(self.inner.create_user(user, credentials)).await
    }
    async fn user(&self, key: UserKey<'_>) -> Result<Option<User>, UserStoreError> {
        self.run(self.inner.user(key)).await
    }
    async fn save_user(&self, user: &User) -> Result<i64, UserStoreError> {
        self.run(self.inner.save_user(user)).await
    }
    async fn issue(&self, credential: &Credential) -> Result<(), UserStoreError> {
        self.run(self.inner.issue(credential)).await
    }
    async fn redeem_link(
        &self,
        link: &TokenHash,
        device: &NewDevice,
        now: Timestamp,
    ) -> Result<User, UserStoreError> {
        self.run(self.inner.redeem_link(link, device, now)).await
    }
    async fn revoke_token(&self, user: &UserId, token: &TokenId) -> Result<(), UserStoreError> {
        self.run(self.inner.revoke_token(user, token)).await
    }
    async fn tokens(
        &self,
        of: Option<&UserId>,
        after: Option<&TokenId>,
        limit: usize,
    ) -> Result<Vec<(User, TokenRecord)>, UserStoreError> {
        self.run(self.inner.tokens(of, after, limit)).await
    }
    async fn touch(&self, used: &[(TokenId, Timestamp)]) -> Result<(), UserStoreError> {
        self.run(self.inner.touch(used)).await
    }
}
