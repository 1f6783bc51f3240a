//! A store that fails when told to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cocoonbox_core::{ConsoleSessionId, GrantId, SignInId, Timestamp, TokenId, UserId};

use super::{
    ClientStore, CodeRecord, Credential, GrantChanges, GrantStore, LivingGrant, NewDevice, SessionRecord,
    SessionStore, SignInRecord, SignInStore, Spent, TokenRecord, User, UserKey, UserStore, UserStoreError,
    Which,
};
use crate::{AccessRecord, Client, ClientId, GrantRecord, PasswordHash, TokenHash};

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
    async fn users(&self, after: Option<&UserId>) -> Result<Vec<User>, UserStoreError> {
        self.run(self.inner.users(after)).await
    }
    async fn remove_user(&self, user: &UserId, revision: i64) -> Result<(), UserStoreError> {
        self.run(self.inner.remove_user(user, revision)).await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: SessionStore> SessionStore for FaultyUserStore<S> {
    async fn password(&self, user: &UserId) -> Result<Option<PasswordHash>, UserStoreError> {
        self.run(self.inner.password(user)).await
    }
    async fn set_password(
        &self,
        user: &UserId,
        password: &PasswordHash,
        keep: Option<&ConsoleSessionId>,
    ) -> Result<(), UserStoreError> {
        self.run(self.inner.set_password(user, password, keep)).await
    }
    async fn redeem_link_with_password(
        &self,
        link: &TokenHash,
        password: &PasswordHash,
        session: &SessionRecord,
    ) -> Result<User, UserStoreError> {
        self.run(self.inner.redeem_link_with_password(link, password, session)).await
    }
    async fn begin_session(&self, session: &SessionRecord) -> Result<(), UserStoreError> {
        self.run(self.inner.begin_session(session)).await
    }
    async fn session(
        &self,
        hash: &TokenHash,
        now: Timestamp,
    ) -> Result<Option<(User, SessionRecord)>, UserStoreError> {
        self.run(self.inner.session(hash, now)).await
    }
    async fn end_session(&self, hash: &TokenHash) -> Result<(), UserStoreError> {
        self.run(self.inner.end_session(hash)).await
    }
    async fn sign_out_everywhere(&self, user: &UserId) -> Result<(), UserStoreError> {
        self.run(self.inner.sign_out_everywhere(user)).await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: GrantStore> GrantStore for FaultyUserStore<S> {
    async fn put_code(&self, code: &CodeRecord, now: Timestamp) -> Result<(), UserStoreError> {
        self.run(self.inner.put_code(code, now)).await
    }
    async fn spend_code(&self, hash: &TokenHash, now: Timestamp) -> Result<Spent, UserStoreError> {
        self.run(self.inner.spend_code(hash, now)).await
    }
    async fn begin_grant(
        &self,
        grant: &GrantRecord,
        access: &AccessRecord,
        now: Timestamp,
    ) -> Result<(), UserStoreError> {
        self.run(self.inner.begin_grant(grant, access, now)).await
    }
    async fn grant(&self, id: &GrantId) -> Result<Option<(User, GrantRecord)>, UserStoreError> {
        self.run(self.inner.grant(id)).await
    }
    async fn put_access(&self, access: &AccessRecord, now: Timestamp) -> Result<bool, UserStoreError> {
        self.run(self.inner.put_access(access, now)).await
    }
    async fn end_grant(
        &self,
        id: &GrantId,
        of: Option<&UserId>,
        now: Timestamp,
    ) -> Result<bool, UserStoreError> {
        self.run(self.inner.end_grant(id, of, now)).await
    }
    async fn end_grants(&self, of: &UserId, now: Timestamp) -> Result<(), UserStoreError> {
        self.run(self.inner.end_grants(of, now)).await
    }
    async fn living(
        &self,
        which: Which<'_>,
        after: Option<&GrantId>,
        now: Timestamp,
    ) -> Result<Vec<LivingGrant>, UserStoreError> {
        self.run(self.inner.living(which, after, now)).await
    }
    async fn see_grants(&self, of: &UserId) -> Result<(), UserStoreError> {
        self.run(self.inner.see_grants(of)).await
    }
    async fn touch_grants(&self, used: &[(GrantId, Timestamp)]) -> Result<(), UserStoreError> {
        self.run(self.inner.touch_grants(used)).await
    }
    async fn grant_changes(&self) -> Result<Box<dyn GrantChanges>, UserStoreError> {
        self.run(self.inner.grant_changes()).await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: ClientStore> ClientStore for FaultyUserStore<S> {
    async fn register_client(&self, client: &Client, now: Timestamp) -> Result<(), UserStoreError> {
        self.run(self.inner.register_client(client, now)).await
    }
    async fn client(&self, id: &ClientId) -> Result<Option<Client>, UserStoreError> {
        self.run(self.inner.client(id)).await
    }
    async fn allow_client(&self, id: &ClientId, now: Timestamp) -> Result<(), UserStoreError> {
        self.run(self.inner.allow_client(id, now)).await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: SignInStore> SignInStore for FaultyUserStore<S> {
    async fn remember_sign_in(&self, sign_in: &SignInRecord) -> Result<(), UserStoreError> {
        self.run(self.inner.remember_sign_in(sign_in)).await
    }
    async fn sign_ins(
        &self,
        of: Option<&UserId>,
        before: Option<(Timestamp, &SignInId)>,
        limit: usize,
    ) -> Result<Vec<SignInRecord>, UserStoreError> {
        self.run(self.inner.sign_ins(of, before, limit)).await
    }
}
