//! Opening the node: every claim again, and what was left half done settled.

use std::sync::{Arc, Mutex};

use cocoonbox_core::backend::{BackendError, ClaimFilter, SandboxBackend};

use super::clock::ServiceClock;
use super::journal::Journal;
use super::lease::DEFAULT_LEASE;
use super::metric::Metrics;
use super::preview::Previews;
use super::record::{Entry, Phase, Record, hold, is_mark};
use super::refusal::Refusal;
use super::registry::Registry;
use super::store::{NodeError, Store};
use super::{Inner, Node, NodeOptions, exec, tenant};

impl Node {
    /// Opens the node's directory, takes every claim of its own in again and settles what was left half done:
    /// a claim that nobody was told of is given back, and so is one whose release was under way.
    ///
    /// # Errors
    /// Any of [`NodeError`].
    pub async fn open(options: NodeOptions, backend: Arc<dyn SandboxBackend>) -> Result<Self, NodeError> {
        let store = Store::open(&options.directory)?;
        let mut registry = Registry::default();
        registry.set_tenants(tenant::load(&store)?);
        for record in store.records()? {
            registry.insert(Entry::new(record));
        }
        let caps: Vec<_> =
            registry.tenants().iter().map(|(name, tenant)| (name.clone(), tenant.cap())).collect();
        let inner = Inner {
            token: options.token,
            key: options.key,
            address: options.address,
            name: store.name(options.entropy.as_ref()).await.map_err(NodeError::Settle)?,
            max_claims: options.max_claims,
            served: ServiceClock::resume(options.boot_clock, store.served()?),
            journal: Journal::open(store.path("usage.jsonl"), options.entropy.as_ref()),
            clock: options.clock,
            entropy: options.entropy,
            registry: Mutex::new(registry),
            idle: Mutex::default(),
            own_idle: options.idle,
            tenants_turn: tokio::sync::Mutex::new(()),
            execs: exec::Room::default(),
            previews: options
                .previews
                .map(|(base, key)| Previews { base: base.trim_end_matches('/').to_owned(), key }),
            metrics: Metrics::default(),
            store,
            backend,
        };
        for (name, cap) in caps {
            if let Some(tenants) = inner.backend.tenants() {
                tenants.put_tenant(&name, cap).await.map_err(|error| NodeError::Settle(error.into()))?;
            }
        }
        inner.settle().await.map_err(NodeError::Settle)?;
        inner.resume_pools().await?;
        Ok(Self(Arc::new(inner)))
    }
}

impl Inner {
    async fn settle(&self) -> Result<(), Refusal> {
        let claims = self.backend.find(&ClaimFilter::all()).await?;
        let entries = hold(&self.registry).all();
        for entry in entries {
            let record = entry.record();
            let claim = claims.iter().find(|claim| {
                claim.metadata.mark() == Some(&record.mark) || record.id.as_ref() == Some(&claim.id)
            });
            match (record.phase, claim) {
                (Phase::Claiming | Phase::Releasing, Some(claim)) => {
                    match self.backend.release(&claim.id).await {
                        Ok(()) | Err(BackendError::NotFound { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                    self.forget(&entry).await?;
                }
                (Phase::Ended, _) | (Phase::Live | Phase::Archiving | Phase::Archived, Some(_)) => {}
                (_, None) => self.forget(&entry).await?,
            }
        }
        // the node's own, whose record somebody removed: nobody may lose a sandbox by that
        for claim in &claims {
            let Some(mark) = claim.metadata.mark().filter(|mark| is_mark(mark)) else { continue };
            if hold(&self.registry).of(claim).is_some() {
                continue;
            }
            let record = Record {
                mark: mark.to_owned(),
                lease: Some(self.lease(DEFAULT_LEASE)),
                ..Self::foreign(claim)
            };
            self.store.put(&record).await?;
            hold(&self.registry).insert(Entry::new(record));
        }
        Ok(())
    }

    /// Removes the record of a claim that is gone; one with a key that is still remembered stays as that.
    pub(super) async fn forget(&self, entry: &Arc<Entry>) -> Result<(), Refusal> {
        let record = entry.record();
        if record.id.is_some() && record.keeps_key(self.served.now()) {
            let mut ended = Record::new(record.mark.clone());
            ended.id.clone_from(&record.id);
            ended.key.clone_from(&record.key);
            ended.phase = Phase::Ended;
            self.store.put(&ended).await?;
            entry.set(ended);
        } else {
            self.store.remove(&record.mark).await?;
            hold(&self.registry).remove(entry);
        }
        Ok(())
    }
}
