//! Release, hibernate, wake, renew, and what becomes of a claim whose lease is over.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::Timestamp;
use cocoonbox_core::backend::{
    BackendError, BoxedDuplex, Claim, ClaimFilter, ClaimState, HibernateTo, Memory, SandboxId, Target,
};
use futures::StreamExt as _;

use super::idle::Use;
use super::lease::{DEFAULT_LEASE, OnExpire};
use super::record::{Entry, Phase, Record, hold};
use super::refusal::{Code, Refusal};
use super::{Inner, Node, serve};

/// How many leases that are over are dealt with at a time.
const AT_A_TIME: usize = 8;

impl Node {
    /// Ends a sandbox and forgets its claim.
    pub(crate) async fn release(&self, id: &SandboxId) -> Result<(), Refusal> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        serve::to_the_end(async move {
            let entry = inner.entry(&id).await?;
            let _turn = entry.turn.lock().await;
            inner.release(&entry, "release").await
        })
        .await
    }

    /// Stops a sandbox and keeps its files, and its memory where that can be.
    pub(crate) async fn hibernate(&self, id: &SandboxId) -> Result<(), Refusal> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        serve::to_the_end(async move {
            let entry = inner.entry(&id).await?;
            let _turn = entry.turn.lock().await;
            let claim = inner.claim_of(&id).await?;
            match claim.state {
                ClaimState::Hibernated { .. } => return Ok(()),
                ClaimState::Failed { reason } => {
                    return Err(Refusal::conflict(format!("sandbox {id} failed: {reason}")));
                }
                _ => {}
            }
            inner.backend.hibernate(&id, HibernateTo::Memory).await?;
            inner.tell("hibernate", &claim);
            Ok(())
        })
        .await
    }

    /// Lets a sandbox run again, whatever it was.
    pub(crate) async fn wake(&self, id: &SandboxId) -> Result<(), Refusal> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        serve::to_the_end(async move { inner.wake(&id).await.map(drop) }).await
    }

    /// Stops a sandbox as `to` says, whatever it was, and returns what was kept.
    pub(crate) async fn sleep(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, Refusal> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        serve::to_the_end(async move {
            let entry = inner.entry(&id).await?;
            let _turn = entry.turn.lock().await;
            let claim = inner.claim_of(&id).await?;
            let memory = inner.backend.hibernate(&id, to).await?;
            if !matches!(claim.state, ClaimState::Hibernated { .. }) {
                inner.tell("hibernate", &claim);
            }
            Ok(memory)
        })
        .await
    }

    /// Lets a sandbox run again, whatever it was, and returns what was found of its memory.
    pub(crate) async fn rouse(&self, id: &SandboxId) -> Result<Memory, Refusal> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        serve::to_the_end(async move { inner.wake(&id).await }).await
    }

    /// Lets a sandbox that sleeps run again; one that failed stays as it is.
    pub(crate) async fn ready(&self, id: &SandboxId) -> Result<(), Refusal> {
        match self.see(id).await?.claim.state {
            ClaimState::Hibernated { .. } => self.wake(id).await,
            ClaimState::Failed { reason } => {
                Err(Refusal::conflict(format!("sandbox {id} cannot do that now: it failed: {reason}")))
            }
            _ => Ok(()),
        }
    }

    /// Opens a stream into a sandbox that is waked for it.
    pub(crate) async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, Refusal> {
        let entry = self.0.entry(id).await?;
        let uses = Use::of(&entry);
        // a look for what is idle that did not see this use is over when its turn is
        drop(entry.turn.lock().await);
        self.ready(id).await?;
        Ok(uses.by(self.0.backend.connect(id, target).await?))
    }

    /// Opens a stream into a sandbox that runs; one that does not, or is between two states, refuses at once.
    pub(crate) async fn look_in(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, Refusal> {
        let entry = self.0.entry(id).await?;
        let uses = Use::of(&entry);
        let Ok(turn) = entry.turn.try_lock() else {
            return Err(Refusal::conflict(format!("sandbox {id} is between two states")));
        };
        let state = self.0.claim_of(id).await?.state;
        drop(turn);
        match state {
            ClaimState::Running => Ok(uses.by(self.0.backend.connect(id, target).await?)),
            ClaimState::Failed { reason } => Err(Refusal::conflict(format!("sandbox {id} failed: {reason}"))),
            _ => Err(Refusal::conflict(format!("sandbox {id} is hibernated"))),
        }
    }

    /// Opens the guest channel of a sandbox that runs; it takes no turn and wakes nothing.
    pub(crate) async fn attach(&self, id: &SandboxId) -> Result<BoxedDuplex, Refusal> {
        let uses = Use::of(&self.0.entry(id).await?);
        Ok(uses.by(self.0.backend.connect(id, Target::Channel).await?))
    }

    /// Sets the lease from now; the answer is what was granted.
    pub(crate) async fn renew(
        &self,
        id: &SandboxId,
        granted: Duration,
        on_expire: Option<OnExpire>,
    ) -> Result<Timestamp, Refusal> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        serve::to_the_end(async move {
            let entry = inner.entry(&id).await?;
            let _turn = entry.turn.lock().await;
            let record = entry.record();
            match record.phase {
                Phase::Live => {}
                Phase::Archiving | Phase::Archived => {
                    return Err(Refusal::conflict(format!("sandbox {id} is archived: wake it first")));
                }
                _ => return Err(Refusal::not_found()),
            }
            if inner.is_orphan(&record) {
                return Err(Refusal::new(Code::Forbidden, "the sandbox's tenant was removed"));
            }
            let lease = inner.lease(granted);
            let deadline = inner.deadline(&lease);
            inner
                .change(&entry, |record| {
                    record.lease = Some(lease);
                    record.on_expire = on_expire.unwrap_or(record.on_expire);
                })
                .await?;
            Ok(deadline)
        })
        .await
    }

    /// Looks at all leases once: what is over is released or put away, what could not be done before is tried again.
    pub async fn tick(&self) {
        let inner = &self.0;
        let served = inner.served.now();
        let claims = inner.prune().await;
        let running: HashSet<&SandboxId> =
            claims.iter().filter(|claim| claim.state == ClaimState::Running).map(|claim| &claim.id).collect();
        let due = hold(&inner.registry).all().into_iter().filter(|entry| {
            let record = entry.record();
            let over = record.lease.as_ref().is_some_and(|lease| lease.left(served).is_zero());
            match record.phase {
                Phase::Live => over,
                Phase::Archiving | Phase::Releasing => true,
                Phase::Ended => !record.keeps_key(served),
                // one that runs was waked by a call whose answer got lost
                Phase::Archived => {
                    let runs = record.id.as_ref().is_some_and(|id| running.contains(id));
                    runs || inner.is_orphan(&record) || record.is_to_be_deleted(served)
                }
                Phase::Claiming => false,
            }
        });
        let due: Vec<_> = due.collect();
        futures::stream::iter(due)
            .for_each_concurrent(AT_A_TIME, |entry| {
                let inner = Arc::clone(inner);
                async move {
                    if let Err(error) = serve::to_the_end(async move { inner.expire(&entry).await }).await {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            error,
                            "a lease that is over could not be dealt with; it is tried again"
                        );
                    }
                }
            })
            .await;
        inner.sweep(&claims, served).await;
        self.rest().await;
    }

    /// Writes down how long the node has served.
    pub(super) async fn rest(&self) {
        if let Err(error) = self.0.store.put_served(self.0.served.now()).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the time served could not be written");
        }
    }
}

impl Inner {
    /// Whether a claim's tenant was removed.
    pub(super) fn is_orphan(&self, record: &Record) -> bool {
        let registry = hold(&self.registry);
        record
            .tenant
            .as_ref()
            .and_then(|name| registry.tenants().get(name))
            .is_some_and(|tenant| tenant.removed)
    }

    /// Ends a sandbox. The caller has the turn.
    async fn release(&self, entry: &Arc<Entry>, event: &'static str) -> Result<(), Refusal> {
        let record = entry.record();
        if record.phase == Phase::Releasing && record.id.is_none() {
            return self.undo(entry, true).await;
        }
        let id = match (&record.id, record.phase) {
            (Some(id), Phase::Live | Phase::Archiving | Phase::Archived | Phase::Releasing) => id.clone(),
            _ => return Err(Refusal::not_found()),
        };
        let claim = self.claim_of(&id).await.ok();
        if record.phase != Phase::Releasing {
            self.change(entry, |record| record.phase = Phase::Releasing).await?;
        }
        match self.backend.release(&id).await {
            Ok(()) | Err(BackendError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.forget(entry).await?;
        match claim {
            Some(claim) => self.tell(event, &claim),
            None if event == "release" => return Err(Refusal::not_found()),
            None => {}
        }
        Ok(())
    }

    async fn wake(&self, id: &SandboxId) -> Result<Memory, Refusal> {
        let entry = self.entry(id).await?;
        let _turn = entry.turn.lock().await;
        let before = entry.record();
        if !before.is_shown() {
            return Err(Refusal::not_found());
        }
        let claim = self.claim_of(id).await?;
        let archived = before.phase != Phase::Live;
        let failed = matches!(claim.state, ClaimState::Failed { .. });
        if archived || failed {
            let granted = before.lease.as_ref().map_or(DEFAULT_LEASE, super::lease::Lease::granted);
            let lease = archived.then(|| self.lease(granted));
            let now = self.clock.now();
            self.change(&entry, |record| {
                record.phase = Phase::Live;
                record.delete_at_millis = None;
                record.lease = lease.or(record.lease.take());
                if failed {
                    record.restarts = record.restarts.saturating_add(1);
                    record.restarted_at = Some(now);
                }
            })
            .await?;
        }
        let began = self.served.now();
        match self.backend.wake(id).await {
            Ok(memory) => {
                entry.uses.restart();
                if claim.state != ClaimState::Running {
                    let event = if archived { "unarchive" } else { "wake" };
                    self.tell(event, &claim);
                    self.metrics.woke(self.served.now().saturating_sub(began));
                }
                Ok(memory)
            }
            Err(error) => {
                if archived || failed {
                    self.change(&entry, |record| *record = (*before).clone()).await?;
                }
                Err(error.into())
            }
        }
    }

    /// Deals with a claim whose lease was over when it was looked at.
    async fn expire(&self, entry: &Arc<Entry>) -> Result<(), Refusal> {
        let _turn = entry.turn.lock().await;
        let record = entry.record();
        let over = record.lease.as_ref().is_some_and(|lease| lease.left(self.served.now()).is_zero());
        match record.phase {
            // renewed meanwhile
            Phase::Live if !over => Ok(()),
            Phase::Ended => self.forget(entry).await,
            Phase::Archived if record.is_to_be_deleted(self.served.now()) => {
                self.release(entry, "archive_delete").await
            }
            Phase::Archived if !self.is_orphan(&record) => self.archive(entry, &record).await,
            Phase::Live | Phase::Archiving
                if record.on_expire == OnExpire::Archive && !self.is_orphan(&record) =>
            {
                self.archive(entry, &record).await
            }
            Phase::Claiming => Ok(()),
            Phase::Live | Phase::Archiving | Phase::Archived | Phase::Releasing => {
                self.release(entry, "reap").await
            }
        }
    }

    /// Puts a claim away: its processes end, its files stay.
    pub(super) async fn archive(&self, entry: &Arc<Entry>, record: &Record) -> Result<(), Refusal> {
        let id = record.id.clone().ok_or_else(Refusal::not_found)?;
        let claim = self.claim_of(&id).await?;
        if record.phase != Phase::Archiving {
            self.change(entry, |record| record.phase = Phase::Archiving).await?;
        }
        self.backend.hibernate(&id, HibernateTo::Disk).await?;
        let delete_at = self.idle_of(&claim).delete_after().map(|after| self.served.now() + after);
        self.change(entry, |record| {
            record.phase = Phase::Archived;
            record.delete_at_millis = delete_at.map(|at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
        })
        .await?;
        self.tell("archive", &claim);
        Ok(())
    }

    /// Forgets claims that somebody else ended, and returns those that are there.
    async fn prune(&self) -> Vec<Claim> {
        let before: Vec<_> = hold(&self.registry)
            .all()
            .into_iter()
            .filter(|entry| {
                let record = entry.record();
                record.id.is_some() && record.is_shown()
            })
            .collect();
        let Ok(claims) = self.backend.find(&ClaimFilter::all()).await else { return Vec::new() };
        let there: HashSet<&SandboxId> = claims.iter().map(|claim| &claim.id).collect();
        for entry in before {
            let record = entry.record();
            let gone = record.is_shown() && record.id.as_ref().is_some_and(|id| !there.contains(id));
            if !gone {
                continue;
            }
            // a release under way does it itself
            let Ok(_turn) = entry.turn.try_lock() else { continue };
            if entry.record().is_shown()
                && let Err(error) = self.forget(&entry).await
            {
                tracing::warn!(error = &error as &dyn std::error::Error, "the record of a lost claim stays");
            }
        }
        claims
    }
}
