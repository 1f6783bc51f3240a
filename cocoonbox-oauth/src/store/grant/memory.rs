use async_trait::async_trait;
use cocoonbox_core::{GrantId, Timestamp, UserId};
use tokio::sync::broadcast;

use super::{CodeRecord, GrantChange, GrantChanges, GrantStore, LivingGrant, SPENT_FOR, Spent, Which};
use crate::grant::ENDED_FOR;
use crate::store::memory::State;
use crate::{
    AccessRecord, GRANTS_MAX, GrantRecord, MemoryUserStore, PAGE_MAX, TokenHash, User, UserStoreError,
};

#[derive(Debug)]
struct MemoryGrantChanges(broadcast::Receiver<GrantChange>);

#[async_trait]
impl GrantChanges for MemoryGrantChanges {
    async fn next(&mut self) -> Option<GrantChange> {
        match self.0.recv().await {
            Ok(change) => Some(change),
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            // the store is gone, so nothing changes any more
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl MemoryUserStore {
    fn tell(&self, id: &GrantId, generation: Option<i64>) {
        // nobody listening is no failure
        let _ = self.grant_changes.send(GrantChange { grant: id.clone(), generation });
    }
}

impl State {
    fn end(&mut self, id: &GrantId, now: Timestamp) {
        if let Some(grant) = self.grants.get_mut(id) {
            grant.ended_at = Some(now);
        }
        self.access.retain(|_, held| held.grant != *id);
    }
}

#[async_trait]
impl GrantStore for MemoryUserStore {
    async fn put_code(&self, code: &CodeRecord, now: Timestamp) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            state.known(&code.user)?;
            state.codes.retain(|_, (held, _)| now.since(held.expires_at) < SPENT_FOR);
            if state.codes.insert(code.hash, (code.clone(), false)).is_some() {
                return Err(UserStoreError::Taken);
            }
            Ok(())
        })
    }

    async fn spend_code(&self, hash: &TokenHash, now: Timestamp) -> Result<Spent, UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            Ok(match state.codes.get_mut(hash) {
                Some((code, true)) => Spent::Again(Box::new(code.clone())),
                Some((code, spent)) if now < code.expires_at => {
                    *spent = true;
                    Spent::First(Box::new(code.clone()))
                }
                _ => Spent::Unknown,
            })
        })
    }

    async fn begin_grant(
        &self,
        grant: &GrantRecord,
        access: &AccessRecord,
        now: Timestamp,
    ) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            if state.known(&grant.user)?.disabled {
                return Err(UserStoreError::NoUser { id: grant.user.clone() });
            }
            let over = |held: &GrantRecord| {
                let since = held.ended_at.unwrap_or(held.expires_at).min(held.expires_at);
                held.user == grant.user && since <= now && now.since(since) >= ENDED_FOR
            };
            state.grants.retain(|_, held| !over(held));
            let standing = state.grants.values().filter(|held| held.user == grant.user && held.lives(now));
            if standing.count() >= GRANTS_MAX {
                return Err(UserStoreError::TooMany { what: "agents", limit: GRANTS_MAX });
            }
            if state.grants.contains_key(&grant.id) || state.access.contains_key(&access.hash) {
                return Err(UserStoreError::Taken);
            }
            state.grants.insert(grant.id.clone(), grant.clone());
            state.access.insert(access.hash, access.clone());
            Ok(())
        })?;
        self.tell(&grant.id, None);
        Ok(())
    }

    async fn grant(&self, id: &GrantId) -> Result<Option<(User, GrantRecord)>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        Ok(state
            .grants
            .get(id)
            .and_then(|grant| Some((state.users.get(&grant.user)?.clone(), grant.clone()))))
    }

    async fn put_access(&self, access: &AccessRecord, now: Timestamp) -> Result<bool, UserStoreError> {
        tokio::task::yield_now().await;
        let done = self.change(|state| {
            let shut_out = |user: &UserId| state.users.get(user).is_none_or(|user| user.disabled);
            let Some(grant) = state.grants.get(&access.grant).filter(|held| held.lives(now)) else {
                return Ok(false);
            };
            let step = access.generation - grant.generation;
            if shut_out(&grant.user) || !(0..=1).contains(&step) {
                return Ok(false);
            }
            if let Some(grant) = state.grants.get_mut(&access.grant) {
                grant.generation = access.generation;
            }
            state
                .access
                .retain(|_, held| held.grant != access.grant || held.generation >= access.generation - 1);
            state.access.insert(access.hash, access.clone());
            Ok(true)
        })?;
        if done {
            self.tell(&access.grant, Some(access.generation));
        }
        Ok(done)
    }

    async fn end_grant(
        &self,
        id: &GrantId,
        of: Option<&UserId>,
        now: Timestamp,
    ) -> Result<bool, UserStoreError> {
        tokio::task::yield_now().await;
        let ended = self.change(|state| {
            let stands = state
                .grants
                .get(id)
                .is_some_and(|held| of.is_none_or(|of| held.user == *of) && held.lives(now));
            if stands {
                state.end(id, now);
            }
            Ok(stands)
        })?;
        if ended {
            self.tell(id, None);
        }
        Ok(ended)
    }

    async fn end_grants(&self, of: &UserId, now: Timestamp) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        let ended = self.change(|state| {
            let own = state.grants.values().filter(|held| held.user == *of && held.lives(now));
            let own: Vec<GrantId> = own.map(|held| held.id.clone()).collect();
            for id in &own {
                state.end(id, now);
            }
            Ok(own)
        })?;
        for id in &ended {
            self.tell(id, None);
        }
        Ok(())
    }

    async fn living(
        &self,
        which: Which<'_>,
        after: Option<&GrantId>,
        now: Timestamp,
    ) -> Result<Vec<LivingGrant>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        let wanted = state.grants.values().filter(|held| match which {
            Which::All => true,
            Which::Of(user) => held.user == *user,
            Which::One(id) => held.id == *id,
        });
        let wanted = wanted.filter(|held| held.lives(now) && after.is_none_or(|after| held.id > *after));
        let living = wanted.take(PAGE_MAX).filter_map(|grant| {
            let access = state.access.values().filter(|held| held.grant == grant.id && now < held.expires_at);
            let mut access: Vec<_> = access.cloned().collect();
            access.sort_by_key(|held| held.generation);
            Some(LivingGrant { user: state.users.get(&grant.user)?.clone(), grant: grant.clone(), access })
        });
        Ok(living.collect())
    }

    async fn see_grants(&self, of: &UserId) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            state.grants.values_mut().filter(|held| held.user == *of).for_each(|held| held.seen = true);
            Ok(())
        })
    }

    async fn touch_grants(&self, used: &[(GrantId, Timestamp)]) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        let mut state = self.state();
        for (id, at) in used {
            if let Some(grant) = state.grants.get_mut(id) {
                grant.used_at = grant.used_at.max(Some(*at));
            }
        }
        Ok(())
    }

    async fn grant_changes(&self) -> Result<Box<dyn GrantChanges>, UserStoreError> {
        Ok(Box::new(MemoryGrantChanges(self.grant_changes.subscribe())))
    }
}
