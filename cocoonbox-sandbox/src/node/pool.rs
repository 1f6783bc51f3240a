//! Warm pools and the drain that empties them.

use std::sync::Arc;

use cocoonbox_core::backend::PoolTarget;
use serde::{Deserialize, Serialize};

use super::idle::PoolIdle;
use super::record::hold;
use super::refusal::Refusal;
use super::store::NodeError;
use super::{Inner, Node, serve};

const FILE: &str = "pools.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    pools: Vec<PoolTarget>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    idle: Vec<PoolIdle>,
}

impl Node {
    /// Sets what every pool should hold, and when what is like it is idle; while the node drains they stay empty.
    pub(crate) async fn put_pools(
        &self,
        targets: Vec<PoolTarget>,
        idle: Vec<PoolIdle>,
    ) -> Result<(), Refusal> {
        let inner = Arc::clone(&self.0);
        serve::to_the_end(async move {
            let _turn = inner.tenants_turn.lock().await;
            let Some(pools) = inner.backend.pools() else {
                let backend = inner.backend.capabilities().backend;
                return Err(Refusal::unsupported(format!("the {backend} backend keeps no warm pools")));
            };
            let before: Option<Stored> = inner.pools()?;
            let stored = Stored { version: 1, pools: targets.clone(), idle };
            inner.store.put_file(FILE, &stored).await?;
            if hold(&inner.registry).draining {
                inner.set_idle(&stored.idle);
                return Ok(());
            }
            if let Err(error) = pools.put_pools(targets).await {
                let none = || Stored { version: 1, pools: Vec::new(), idle: Vec::new() };
                inner.store.put_file(FILE, &before.unwrap_or_else(none)).await?;
                return Err(error.into());
            }
            inner.set_idle(&stored.idle);
            Ok(())
        })
        .await
    }

    /// Takes no new claims from now on and empties the pools, or takes them again and fills the pools.
    pub(crate) async fn drain(&self, draining: bool) -> Result<(), Refusal> {
        let inner = Arc::clone(&self.0);
        serve::to_the_end(async move {
            let _turn = inner.tenants_turn.lock().await;
            hold(&inner.registry).draining = draining;
            if let (Some(pools), Some(stored)) = (inner.backend.pools(), inner.pools()?) {
                pools.put_pools(if draining { Vec::new() } else { stored.pools }).await?;
            }
            Ok(())
        })
        .await
    }
}

impl Inner {
    fn pools(&self) -> Result<Option<Stored>, Refusal> {
        self.store.file(FILE).map_err(|error| {
            let mut refusal = Refusal::new(super::Code::Internal, "the pools' targets cannot be read");
            refusal.source = Some(Box::new(error));
            refusal
        })
    }

    /// Fills the pools that the node was told of, which a drain before the last stop may have emptied.
    pub(super) async fn resume_pools(&self) -> Result<(), NodeError> {
        let stored: Option<Stored> = self.store.file(FILE)?;
        if let (Some(pools), Some(stored)) = (self.backend.pools(), stored) {
            self.set_idle(&stored.idle);
            pools.put_pools(stored.pools).await.map_err(|error| NodeError::Settle(error.into()))?;
        }
        Ok(())
    }
}
