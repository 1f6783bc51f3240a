//! Warm pools of the memory backend: what waits in them fills up by one each time that somebody looks.

use std::collections::HashSet;

use async_trait::async_trait;

use super::store::State;
use super::{BACKEND, MemoryBackend, yield_once};
use crate::backend::{BackendError, ClaimRequest, NetworkMode, PoolKey, PoolStatus, PoolTarget, Pools};

/// One pool and how many wait in it.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    target: PoolTarget,
    warm: u32,
}

impl State {
    /// Takes a warm sandbox for a claim, where one fits.
    pub(super) fn take_warm(&mut self, request: &ClaimRequest) {
        let key = PoolKey { image: request.image.clone(), network: request.network, size: request.size };
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.target.key == key) {
            pool.warm = pool.warm.saturating_sub(1);
        }
    }

    /// Empties all pools, as a restart does.
    pub(super) fn cool_down(&mut self) {
        self.pools.iter_mut().for_each(|pool| pool.warm = 0);
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Pools for MemoryBackend {
    async fn put_pools(&self, targets: Vec<PoolTarget>) -> Result<(), BackendError> {
        yield_once().await;
        let mut keys = HashSet::new();
        let mut all = 0_u64;
        for PoolTarget { key, warm } in &targets {
            if !self.options.images.contains(&key.image) {
                return Err(BackendError::UnknownImage { image: key.image.to_string() });
            }
            if key.network == NetworkMode::Open {
                let what = "give a sandbox the network mode Open".to_owned();
                return Err(BackendError::Unsupported { backend: BACKEND, what });
            }
            if !keys.insert(key) {
                return Err(BackendError::Invalid { reason: "two pools have one key".to_owned() });
            }
            all += u64::from(*warm);
        }
        if all > u64::from(self.options.max_claims) {
            return Err(BackendError::Invalid { reason: "the pools hold more than the node".to_owned() });
        }
        self.step(|state| {
            let before = std::mem::take(&mut state.pools);
            state.pools = targets
                .into_iter()
                .map(|target| {
                    let known = before.iter().find(|pool| pool.target.key == target.key);
                    let warm = known.map_or(0, |pool| pool.warm.min(target.warm));
                    Pool { target, warm }
                })
                .collect();
            Ok(())
        })?;
        yield_once().await;
        Ok(())
    }

    async fn pools(&self) -> Result<Vec<PoolStatus>, BackendError> {
        yield_once().await;
        let status = self.step(|state| {
            let status = state
                .pools
                .iter()
                .map(|pool| PoolStatus::new(pool.target.clone(), pool.warm, pool.target.warm - pool.warm))
                .collect();
            if let Some(short) = state.pools.iter_mut().find(|pool| pool.warm < pool.target.warm) {
                short.warm += 1;
            }
            Ok(status)
        });
        yield_once().await;
        status
    }
}
