use async_trait::async_trait;
use cocoonbox_core::Timestamp;

use super::{CLIENTS_MAX, ClientStore, UNUSED_FOR};
use crate::{Client, ClientId, MemoryUserStore, UserStoreError};

#[async_trait]
impl ClientStore for MemoryUserStore {
    async fn register_client(&self, client: &Client, now: Timestamp) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        self.change(|state| {
            if state.clients.contains_key(&client.id) {
                return Err(UserStoreError::Taken);
            }
            state.clients.retain(|_, (_, made, used)| used.is_some() || now.since(*made) < UNUSED_FOR);
            if state.clients.len() >= CLIENTS_MAX {
                let unused = state.clients.iter().filter(|(_, (_, _, used))| used.is_none());
                let oldest = unused.min_by_key(|(id, (_, made, _))| (*made, (*id).clone()));
                let oldest = oldest.map(|(id, _)| id.clone());
                let full = UserStoreError::TooMany { what: "registered clients", limit: CLIENTS_MAX };
                state.clients.remove(&oldest.ok_or(full)?);
            }
            state.clients.insert(client.id.clone(), (client.clone(), now, None));
            Ok(())
        })
    }

    async fn client(&self, id: &ClientId) -> Result<Option<Client>, UserStoreError> {
        tokio::task::yield_now().await;
        Ok(self.state().clients.get(id).map(|(client, ..)| client.clone()))
    }

    async fn allow_client(&self, id: &ClientId, now: Timestamp) -> Result<(), UserStoreError> {
        tokio::task::yield_now().await;
        if let Some((_, _, used)) = self.state().clients.get_mut(id) {
            *used = Some(now);
        }
        Ok(())
    }
}
