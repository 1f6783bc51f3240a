use async_trait::async_trait;
use cocoonbox_core::{SignInId, Timestamp, UserId};

use super::{SIGN_INS_FOR, SIGN_INS_MAX, SignInRecord, SignInStore};
use crate::store::page;
use crate::{MemoryUserStore, UserStoreError};

#[async_trait]
impl SignInStore for MemoryUserStore {
    async fn remember_sign_in(&self, sign_in: &SignInRecord) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        let mut state = self.state();
        if let Some(user) = &sign_in.user {
            state.known(user)?;
        }
        if state.sign_ins.iter().any(|held| held.id == sign_in.id) {
            return Err(UserStoreError::Taken);
        }
        state.sign_ins.retain(|held| sign_in.at.since(held.at) < SIGN_INS_FOR);
        state.sign_ins.push(sign_in.clone());
        state.sign_ins.sort_by(|a, b| (b.at, &b.id).cmp(&(a.at, &a.id)));
        let mut left = SIGN_INS_MAX;
        state.sign_ins.retain(|held| {
            let stays = held.user != sign_in.user || left > 0;
            left -= usize::from(held.user == sign_in.user && left > 0);
            stays
        });
        Ok(())
    }

    async fn sign_ins(
        &self,
        of: Option<&UserId>,
        before: Option<(Timestamp, &SignInId)>,
        limit: usize,
    ) -> Result<Vec<SignInRecord>, UserStoreError> {
        tokio::task::yield_now().await;
        let state = self.state();
        let wanted = state.sign_ins.iter().filter(|held| of.is_none() || held.user.as_ref() == of);
        let wanted = wanted.filter(|held| before.is_none_or(|before| (held.at, &held.id) < before));
        Ok(wanted.take(page(limit)).cloned().collect())
    }
}
