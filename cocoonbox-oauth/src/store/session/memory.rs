use async_trait::async_trait;
use cocoonbox_core::{ConsoleSessionId, Timestamp, UserId};

use super::{SESSIONS_MAX, SessionRecord, SessionStore};
use crate::store::memory::State;
use crate::{MemoryUserStore, PasswordHash, TokenHash, User, UserStoreError};

impl State {
    fn begin(&mut self, session: &SessionRecord) -> Result<(), UserStoreError> {
        self.known(&session.user)?;
        if self.sessions.values().any(|held| held.hash == session.hash || held.id == session.id) {
            return Err(UserStoreError::Taken);
        }
        self.sessions.retain(|_, held| held.user != session.user || session.created_at < held.expires_at);
        let mut own: Vec<_> = self.sessions.values().filter(|held| held.user == session.user).collect();
        own.sort_by_key(|held| (held.created_at, held.id.clone()));
        let oldest: Vec<TokenHash> =
            own.iter().take((own.len() + 1).saturating_sub(SESSIONS_MAX)).map(|held| held.hash).collect();
        for hash in oldest {
            self.sessions.remove(&hash);
        }
        self.sessions.insert(session.hash, session.clone());
        Ok(())
    }
}

#[async_trait]
impl SessionStore for MemoryUserStore {
    async fn password(&self, user: &UserId) -> Result<Option<PasswordHash>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        state.known(user)?;
        Ok(state.passwords.get(user).cloned())
    }

    async fn set_password(
        &self,
        user: &UserId,
        password: &PasswordHash,
        keep: Option<&ConsoleSessionId>,
    ) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            state.known(user)?;
            state.passwords.insert(user.clone(), password.clone());
            state.sessions.retain(|_, held| held.user != *user || Some(&held.id) == keep);
            Ok(())
        })
    }

    async fn redeem_link_with_password(
        &self,
        link: &TokenHash,
        password: &PasswordHash,
        session: &SessionRecord,
    ) -> Result<User, UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            let user = state.spend(link, session.created_at)?;
            state.passwords.insert(user.id.clone(), password.clone());
            state.sessions.retain(|_, held| held.user != user.id);
            state.begin(&SessionRecord { user: user.id.clone(), ..session.clone() })?;
            Ok(user)
        })
    }

    async fn begin_session(&self, session: &SessionRecord) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| state.begin(session))
    }

    async fn session(
        &self,
        hash: &TokenHash,
        now: Timestamp,
    ) -> Result<Option<(User, SessionRecord)>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        let Some(session) = state.sessions.get(hash).filter(|held| now < held.expires_at) else {
            return Ok(None);
        };
        let user = state.users.get(&session.user).filter(|user| !user.disabled);
        Ok(user.map(|user| (user.clone(), session.clone())))
    }

    async fn end_session(&self, hash: &TokenHash) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            state.sessions.remove(hash);
            Ok(())
        })
    }

    async fn sign_out_everywhere(&self, user: &UserId) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            state.known(user)?;
            state.sessions.retain(|_, held| held.user != *user);
            state.tokens.retain(|_, held| held.user != *user);
            Ok(())
        })
    }
}
