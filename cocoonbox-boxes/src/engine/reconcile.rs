//! Comparing what is written with what the backend holds.

use std::collections::HashMap;
use std::sync::Arc;

use cocoonbox_core::backend::{Claim, ClaimFilter, ClaimState};
use cocoonbox_core::machine::{Command, Decision, FailureKind, Look, SeenClaim, Write, decide};
use cocoonbox_core::{BoxId, UserId};

use super::{Engine, Inner, serve};
use crate::EngineError;
use crate::store::StoreError;

/// Boxes read at a time.
pub(super) const PAGE: u32 = 256;

/// What a start found and put right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconciled {
    /// Boxes that there are.
    pub boxes: u32,
    /// Boxes whose record did not agree with the backend.
    pub repaired: u32,
    /// Sandboxes released because their box is gone.
    pub released: u32,
}

impl Engine {
    /// Compares every box with the backend and puts right what a restart cut off; must end before anything is served.
    ///
    /// # Behavior
    /// - No box stays between two states: an operation that was under way is completed where its effect turns out
    ///   done, and otherwise ends as failed, "interrupted by a restart".
    /// - A box whose sandbox is gone or died is failed, with the reason, and can be ensured again.
    /// - A box on a node that does not answer is failed, with the reason, and is neither claimed anew nor forgotten: once
    ///   the node answers, it is again what it is there. So is one that such a node was perhaps about to make.
    /// - A sandbox whose box was deleted is released, if its tenant is a user whose boxes this store knows; a store
    ///   that was lost releases nothing.
    /// - Doing it twice changes nothing the second time.
    ///
    /// # Errors
    /// [`EngineError::Backend`], [`EngineError::Store`]: without both there is nothing to compare.
    pub async fn start(&self) -> Result<Reconciled, EngineError> {
        self.inner.jumps.look(self.inner.clock.as_ref());
        serve::listen(&self.inner).await?;
        self.inner.reconcile().await
    }
}

impl Inner {
    async fn reconcile(self: &Arc<Self>) -> Result<Reconciled, EngineError> {
        let mut claims: HashMap<String, Vec<Claim>> = HashMap::new();
        for claim in self.backend.find(&ClaimFilter::all()).await.map_err(EngineError::Backend)? {
            claims.entry(claim.claim_ref.as_str().to_owned()).or_default().push(claim);
        }
        let mut counts = Reconciled::default();
        let mut after: Option<BoxId> = None;
        loop {
            let page = self.store.page(after.as_ref(), PAGE).await?;
            for stored in &page {
                counts.boxes += 1;
                let seen = claims.remove(stored.record.id.as_str()).unwrap_or_default();
                let seen =
                    seen.into_iter().map(|claim| SeenClaim { id: claim.id, state: claim.state }).collect();
                let command = Command::Reconcile { seen, fresh: self.fresh()? };
                let quick = decide(Some(&stored.record), command, self.clock.now())?;
                if quick != Decision::nothing() {
                    counts.repaired += 1;
                    if let Some(decision) = self.compare(&stored.record.id, Pending::CutOff).await? {
                        serve::carry_out(self, &stored.record.id, &decision, None).await;
                    }
                }
            }
            after = page.last().map(|last| last.record.id.clone());
            if page.len() < PAGE as usize {
                break;
            }
        }
        for claim in claims.into_values().flatten() {
            counts.released += u32::from(self.release_orphan(&claim).await?);
        }
        Ok(counts)
    }

    /// Releases a sandbox whose box was deleted; returns whether it did.
    async fn release_orphan(&self, claim: &Claim) -> Result<bool, EngineError> {
        if matches!(claim.state, ClaimState::Away { .. }) {
            return Ok(false);
        }
        let Ok(id) = claim.claim_ref.as_str().parse::<BoxId>() else { return Ok(false) };
        let Some(owner) = claim.tenant.as_ref().and_then(|tenant| tenant.as_str().parse::<UserId>().ok())
        else {
            return Ok(false);
        };
        if self.store.load(&id).await?.is_some() || self.store.owned(&owner).await?.admissions == 0 {
            return Ok(false);
        }
        tracing::info!(box_id = %id, sandbox = %claim.id, "releasing the sandbox of a box that is gone");
        self.release(&claim.id).await?;
        Ok(true)
    }

    /// Returns whether the backend says that nothing of a box runs; a backend that cannot be asked says nothing.
    pub(super) async fn is_down(&self, id: &BoxId) -> bool {
        let seen = self.look(id, None).await;
        seen.is_ok_and(|seen| !seen.iter().any(|claim| claim.state == ClaimState::Running))
    }

    /// Compares one box with the backend, writes what follows and sets to work on it.
    pub(super) async fn settle(self: &Arc<Self>, id: &BoxId) -> Result<(), EngineError> {
        if let Some(decision) = self.compare(id, Pending::AtWork).await? {
            serve::work(self, id, &decision, None);
        }
        Ok(())
    }

    /// Compares one box with the backend and writes what follows; none when nothing does.
    pub(super) async fn compare(
        &self,
        id: &BoxId,
        pending: Pending,
    ) -> Result<Option<Decision>, EngineError> {
        loop {
            // the record first: what the backend says is then newer, and the write fails if the record moved on
            let Some(stored) = self.store.load(id).await? else { return Ok(None) };
            if stored.record.pending.is_some() && pending == Pending::AtWork {
                return Ok(None);
            }
            let seen = self.look(id, stored.record.sandbox.as_ref()).await;
            let (now, fresh) = (self.clock.now(), self.fresh()?);
            let command = match (seen, &stored.record.pending) {
                (Ok(seen), _) => Command::Reconcile { seen, fresh },
                // a node that may hold it is silent: one box is in doubt, and the others are served all the same
                (Err(error), Some(cut_off)) if pending == Pending::CutOff => Command::EffectFailed {
                    operation: cut_off.operation.clone(),
                    kind: FailureKind::Interrupted,
                    reason: format!("interrupted by a restart: {}", super::effect::text(&error)),
                    look: Look::Unknown,
                    fresh,
                },
                (Err(error), None) if pending == Pending::CutOff => {
                    tracing::warn!(box_id = %id, error = super::effect::text(&error), "a box cannot be compared now");
                    return Ok(None);
                }
                (Err(error), _) => return Err(EngineError::Backend(error)),
            };
            let decision = decide(Some(&stored.record), command, now)?;
            if decision.write != Write::Keep {
                let change = Self::change(&stored.record.owner, id, Some(&stored), &decision, now);
                match self.store.commit(change).await {
                    Ok(_) => {
                        self.notices.tell(id);
                        if decision.write == Write::Remove && stored.record.agent {
                            self.agent_box_left(&stored.record).await;
                        }
                    }
                    Err(StoreError::Conflict { .. }) => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(Some(decision));
        }
    }
}

/// What an operation that is under way means to a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// Somebody works on it: leave the box alone.
    AtWork,
    /// Nobody does.
    CutOff,
}
