//! The store in memory, stricter than the real ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cocoonbox_core::{GrantId, Timestamp, TokenId, UserId};
use tokio::sync::{broadcast, watch};

use super::{
    CodeRecord, Credential, DEVICES_MAX, GrantChange, LINKS_MAX, LinkRecord, NewDevice, OauthKeyStore,
    PAGE_MAX, SessionRecord, SignInRecord, StateKeyStore, TokenClass, TokenRecord, User, UserChanges,
    UserKey, UserStore, UserStoreError, page,
};
use crate::{AccessRecord, Client, ClientId, GrantRecord, PasswordHash, TokenHash};

/// Users in memory, for tests and for trying things out. It gives way to other tasks before each answer.
#[derive(Debug)]
pub struct MemoryUserStore {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
    pub(super) grant_changes: broadcast::Sender<GrantChange>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) users: BTreeMap<UserId, User>,
    pub(super) tokens: BTreeMap<TokenId, TokenRecord>,
    links: HashMap<TokenHash, LinkRecord>,
    state_keys: BTreeMap<UserId, Vec<u8>>,
    pub(super) passwords: HashMap<UserId, PasswordHash>,
    pub(super) sessions: HashMap<TokenHash, SessionRecord>,
    pub(super) clients: HashMap<ClientId, (Client, Timestamp, Option<Timestamp>)>,
    /// With whether it was spent.
    pub(super) codes: HashMap<TokenHash, (CodeRecord, bool)>,
    pub(super) grants: BTreeMap<GrantId, GrantRecord>,
    pub(super) access: HashMap<TokenHash, AccessRecord>,
    pub(super) oauth_key: Option<Vec<u8>>,
    /// The newest first.
    pub(super) sign_ins: Vec<SignInRecord>,
}

#[derive(Debug)]
struct MemoryChanges(watch::Receiver<u64>);

#[async_trait]
impl UserChanges for MemoryChanges {
    async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // the store is gone, so nothing changes any more
            std::future::pending::<()>().await;
        }
    }
}

impl Default for MemoryUserStore {
    fn default() -> Self {
        let (changes, grant_changes) = (watch::channel(0).0, broadcast::channel(256).0);
        Self { state: Mutex::default(), changes, grant_changes }
    }
}

impl MemoryUserStore {
    /// Starts to hear changes.
    pub fn changes(&self) -> Box<dyn UserChanges> {
        Box::new(MemoryChanges(self.changes.subscribe()))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on a copy and keeps it only when nothing was refused.
    pub(super) fn change<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, UserStoreError>,
    ) -> Result<T, UserStoreError> {
        let mut state = self.state();
        let mut next = state.clone();
        let answer = work(&mut next)?;
        *state = next;
        drop(state);
        self.changes.send_modify(|count| *count += 1);
        Ok(answer)
    }
}

impl State {
    /// Returns a user that there is.
    pub(super) fn known(&self, user: &UserId) -> Result<&User, UserStoreError> {
        self.users.get(user).ok_or_else(|| UserStoreError::NoUser { id: user.clone() })
    }

    /// Spends a link and returns its user.
    pub(super) fn spend(&mut self, link: &TokenHash, now: Timestamp) -> Result<User, UserStoreError> {
        let link = self.links.remove(link).filter(|link| now < link.expires_at);
        let link = link.ok_or(UserStoreError::LinkRefused)?;
        let user = self.users.get(&link.user).filter(|user| !user.disabled).cloned();
        user.ok_or(UserStoreError::LinkRefused)
    }

    fn add(&mut self, credential: &Credential) -> Result<(), UserStoreError> {
        let user = credential.user();
        if !self.users.contains_key(user) {
            return Err(UserStoreError::NoUser { id: user.clone() });
        }
        match credential {
            Credential::Token(token) => {
                match token.class {
                    TokenClass::Personal => {
                        self.tokens
                            .retain(|_, held| held.user != *user || held.class != TokenClass::Personal);
                    }
                    TokenClass::Device => {
                        let devices = self
                            .tokens
                            .values()
                            .filter(|held| held.user == *user && held.class == TokenClass::Device);
                        if devices.count() >= DEVICES_MAX {
                            return Err(UserStoreError::TooMany { what: "devices", limit: DEVICES_MAX });
                        }
                    }
                }
                if self.tokens.contains_key(&token.id)
                    || self.tokens.values().any(|held| held.hash == token.hash)
                {
                    return Err(UserStoreError::Taken);
                }
                self.tokens.insert(token.id.clone(), token.clone());
            }
            Credential::Link(link) => {
                self.links.retain(|_, held| held.user != *user || held.expires_at > link.created_at);
                if self.links.values().filter(|held| held.user == *user).count() >= LINKS_MAX {
                    return Err(UserStoreError::TooMany { what: "open sign-in links", limit: LINKS_MAX });
                }
                if self.links.contains_key(&link.hash) || self.links.values().any(|held| held.id == link.id) {
                    return Err(UserStoreError::Taken);
                }
                self.links.insert(link.hash, link.clone());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl UserStore for MemoryUserStore {
    async fn create_user(&self, user: &User, credentials: &[Credential]) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            if state.users.values().any(|held| held.name == user.name) {
                return Err(UserStoreError::NameTaken { name: user.name.clone() });
            }
            if state.users.contains_key(&user.id) {
                return Err(UserStoreError::Taken);
            }
            state.users.insert(user.id.clone(), User { revision: 1, ..user.clone() });
            credentials.iter().try_for_each(|credential| state.add(credential))
        })
    }

    async fn user(&self, key: UserKey<'_>) -> Result<Option<User>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        Ok(match key {
            UserKey::Id(id) => state.users.get(id).cloned(),
            UserKey::Name(name) => state.users.values().find(|user| user.name == *name).cloned(),
        })
    }

    async fn save_user(&self, user: &User) -> Result<i64, UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            let held =
                state.users.get(&user.id).ok_or_else(|| UserStoreError::NoUser { id: user.id.clone() })?;
            if held.revision != user.revision {
                return Err(UserStoreError::Stale { id: user.id.clone() });
            }
            if state.users.values().any(|other| other.id != user.id && other.name == user.name) {
                return Err(UserStoreError::NameTaken { name: user.name.clone() });
            }
            let (created_at, revision) = (held.created_at, held.revision + 1);
            state.users.insert(user.id.clone(), User { created_at, revision, ..user.clone() });
            Ok(revision)
        })
    }

    async fn issue(&self, credential: &Credential) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| state.add(credential))
    }

    async fn redeem_link(
        &self,
        link: &TokenHash,
        device: &NewDevice,
        now: Timestamp,
    ) -> Result<User, UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            let user = state.spend(link, now)?;
            state.add(&Credential::Token(device.record(&user.id, now)))?;
            Ok(user)
        })
    }

    async fn revoke_token(&self, user: &UserId, token: &TokenId) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| match state.tokens.get(token) {
            Some(held) if held.user == *user => {
                state.tokens.remove(token);
                Ok(())
            }
            _ => Err(UserStoreError::NoToken { id: token.clone() }),
        })
    }

    async fn tokens(
        &self,
        of: Option<&UserId>,
        after: Option<&TokenId>,
        limit: usize,
    ) -> Result<Vec<(User, TokenRecord)>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        let rows = state.tokens.values().filter(|token| of.is_none_or(|user| token.user == *user));
        let rows = rows.filter(|token| after.is_none_or(|after| token.id > *after)).take(page(limit));
        Ok(rows.filter_map(|token| Some((state.users.get(&token.user)?.clone(), token.clone()))).collect())
    }

    async fn touch(&self, used: &[(TokenId, Timestamp)]) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        let mut state = self.state();
        for (id, at) in used {
            if let Some(token) = state.tokens.get_mut(id) {
                token.used_at = token.used_at.max(Some(*at));
            }
        }
        Ok(())
    }

    async fn users(&self, after: Option<&UserId>) -> Result<Vec<User>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        let later = state.users.values().filter(|user| after.is_none_or(|after| user.id > *after));
        Ok(later.take(PAGE_MAX).cloned().collect())
    }

    async fn remove_user(&self, user: &UserId, revision: i64) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            if state.known(user)?.revision != revision {
                return Err(UserStoreError::Stale { id: user.clone() });
            }
            state.users.remove(user);
            state.tokens.retain(|_, held| held.user != *user);
            state.links.retain(|_, held| held.user != *user);
            state.state_keys.remove(user);
            state.passwords.remove(user);
            state.sessions.retain(|_, held| held.user != *user);
            state.sign_ins.retain(|held| held.user.as_ref() != Some(user));
            state.codes.retain(|_, (held, _)| held.user != *user);
            let gone: Vec<GrantId> =
                state.grants.values().filter(|held| held.user == *user).map(|held| held.id.clone()).collect();
            state.grants.retain(|_, held| held.user != *user);
            state.access.retain(|_, held| !gone.contains(&held.grant));
            Ok(())
        })
    }
}

#[async_trait]
impl StateKeyStore for MemoryUserStore {
    async fn sealed_state_key(&self, user: &UserId) -> Result<Option<Vec<u8>>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        if !state.users.contains_key(user) {
            return Err(UserStoreError::NoUser { id: user.clone() });
        }
        Ok(state.state_keys.get(user).cloned())
    }

    async fn put_sealed_state_key(
        &self,
        user: &UserId,
        sealed: &[u8],
        before: Option<&[u8]>,
    ) -> Result<bool, UserStoreError> {
        tokio::task::yield_now().await;
        let mut state = self.state();
        if !state.users.contains_key(user) {
            return Err(UserStoreError::NoUser { id: user.clone() });
        }
        if state.state_keys.get(user).map(Vec::as_slice) != before {
            return Ok(false);
        }
        state.state_keys.insert(user.clone(), sealed.to_owned());
        Ok(true)
    }

    async fn users_with_state_keys(&self, after: Option<&UserId>) -> Result<Vec<UserId>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        let later = state.state_keys.keys().filter(|id| after.is_none_or(|after| *id > after));
        Ok(later.take(PAGE_MAX).cloned().collect())
    }
}

#[async_trait]
impl OauthKeyStore for MemoryUserStore {
    async fn sealed_oauth_key(&self) -> Result<Option<Vec<u8>>, UserStoreError> {
        tokio::task::yield_now().await;
        Ok(self.state().oauth_key.clone())
    }

    async fn put_sealed_oauth_key(
        &self,
        sealed: &[u8],
        before: Option<&[u8]>,
    ) -> Result<bool, UserStoreError> {
        tokio::task::yield_now().await;
        let mut state = self.state();
        if state.oauth_key.as_deref() != before {
            return Ok(false);
        }
        state.oauth_key = Some(sealed.to_owned());
        Ok(true)
    }
}
