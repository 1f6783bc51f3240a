//! Doing with the backend what was decided.

use std::error::Error;
use std::sync::PoisonError;

use cocoonbox_core::backend::{
    BackendError, Claim, ClaimFilter, ClaimRef, ClaimRequest, ClaimState, Doors, HostFile, HostFileName,
    Memory, SandboxId,
};
use cocoonbox_core::machine::{BoxRecord, Command, Effect, FailureKind, Fresh, Look, SeenClaim};
use cocoonbox_core::{BoxId, ImageName, OperationId, WakeId};
use cocoonbox_wire::identity::Identity;

use super::Inner;
use crate::{EngineError, KeeperError};

impl Inner {
    /// Performs one effect; returns what came of it, none where nothing waits for that.
    pub(super) async fn perform(
        &self,
        record: &BoxRecord,
        operation: Option<&OperationId>,
        effect: Effect,
        fresh: Fresh,
    ) -> Option<Command> {
        if let Effect::ReleaseStray { sandbox } = &effect {
            if let Err(error) = self.release(sandbox).await {
                tracing::warn!(box_id = %record.id, %sandbox, error = text(&error), "a second sandbox was not released");
            }
            return None;
        }
        let operation = operation?.clone();
        let done = match effect {
            Effect::Claim { wake_id } => {
                let sandbox = self.claim(record, &operation, &wake_id).await;
                sandbox.map(|sandbox| Command::Claimed { operation: operation.clone(), sandbox })
            }
            Effect::Save { sandbox, wake_id } => self.save_box(record, &operation, &sandbox, &wake_id).await,
            Effect::Stage { sandbox, wake_id, save } => {
                self.stage(record, &operation, &sandbox, &wake_id, &save, fresh.clone()).await
            }
            Effect::RestoreFiles { sandbox, wake_id, save, paths } => {
                self.bring_files(record, &operation, &sandbox, &wake_id, &save, &paths).await
            }
            Effect::Restart { sandbox, wake_id } => {
                let restarted = self.restart(record, &sandbox, &wake_id).await;
                restarted.map(|()| Command::Woke { operation: operation.clone(), memory: Memory::Lost })
            }
            Effect::Rebase { sandbox, wake_id, image } => {
                self.rebase(record, &operation, &sandbox, &wake_id, image).await
            }
            Effect::Wake { sandbox, wake_id } => {
                let woke = self.wake(record, &sandbox, &wake_id).await;
                woke.map(|memory| Command::Woke { operation: operation.clone(), memory })
            }
            Effect::Hibernate { sandbox, to } => {
                self.save_before_sleep(record, &operation, &sandbox).await;
                let pending = record.pending.as_ref();
                if pending.is_some_and(|pending| pending.cause.gives_way()) && self.holds.of(&record.id).0 {
                    return Some(Command::GiveWay { operation });
                }
                self.before_sleep(record).await;
                let slept = self.backend.hibernate(&sandbox, to).await;
                slept
                    .map_err(EngineError::Backend)
                    .map(|memory| Command::Hibernated { operation: operation.clone(), memory })
            }
            Effect::Release { sandbox } => {
                self.before_sleep(record).await;
                let released = self.release_all(&record.id, sandbox).await;
                released.map(|()| Command::Released { operation: operation.clone() })
            }
            _ => return None,
        };
        match done {
            Ok(command) => Some(command),
            Err(error) => {
                let (kind, reason) = blame(&error);
                let look = self.look(&record.id, record.sandbox.as_ref()).await;
                let look = look.map_or(Look::Unknown, Look::Seen);
                Some(Command::EffectFailed { operation, kind, reason, look, fresh })
            }
        }
    }

    /// Returns the claims that carry the box's reference, oldest first; `known` is the one that the box is said to have.
    pub(super) async fn look(
        &self,
        id: &BoxId,
        known: Option<&SandboxId>,
    ) -> Result<Vec<SeenClaim>, BackendError> {
        let seen = |claim: Claim| SeenClaim { id: claim.id, state: claim.state };
        let found = self.backend.find(&ClaimFilter::by_ref(ClaimRef::from(id))).await?;
        let mut claims: Vec<SeenClaim> = found.into_iter().map(seen).collect();
        if let Some(known) = known
            && claims.iter().all(|claim| claim.id != *known)
        {
            // it is gone only if the backend says so of this one: a node that does not answer may still hold it
            match self.backend.find(&ClaimFilter::by_id(known.clone())).await {
                Ok(found) => claims.extend(found.into_iter().map(seen)),
                Err(error) => {
                    let state = ClaimState::Away { reason: text(&error) };
                    claims.push(SeenClaim { id: known.clone(), state });
                }
            }
        }
        Ok(claims)
    }

    async fn claim(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        wake_id: &WakeId,
    ) -> Result<SandboxId, EngineError> {
        // an earlier claim whose answer was lost must not become a second sandbox
        let seen = self.look(&record.id, record.sandbox.as_ref()).await.map_err(EngineError::Backend)?;
        if let Some(seen) = seen.into_iter().next() {
            self.wake(record, &seen.id, wake_id).await?;
            return Ok(seen.id);
        }
        let sandbox = self.claim_new(record, &record.image, wake_id).await?;
        if record.last_saved_at.is_some() && self.keeper().is_ok() {
            // a box that was saved does not run without what it had
            if let Err(error) = self.bring_back(record, operation, &sandbox, wake_id, "").await {
                self.release(&sandbox).await?;
                return Err(error);
            }
        }
        Ok(sandbox)
    }

    /// Claims a sandbox for a box, whether it has one or not.
    pub(super) async fn claim_new(
        &self,
        record: &BoxRecord,
        image: &ImageName,
        wake_id: &WakeId,
    ) -> Result<SandboxId, EngineError> {
        let tenant = self.put_tenant(record).await?;
        let mut request = ClaimRequest::new(ClaimRef::from(&record.id), image.clone())
            .with_tenant(tenant)
            .with_size(self.config.size)
            .with_doors(Doors::Bound)
            .with_hostname(record.name.hostname());
        for file in self.host_files(record, wake_id)? {
            request = request.with_host_file(file);
        }
        Ok(self.backend.claim(request).await.map_err(EngineError::Backend)?.id)
    }

    pub(super) async fn wake(
        &self,
        record: &BoxRecord,
        sandbox: &SandboxId,
        wake_id: &WakeId,
    ) -> Result<Memory, EngineError> {
        for file in self.host_files(record, wake_id)? {
            self.backend.put_host_file(sandbox, file).await.map_err(EngineError::Backend)?;
        }
        self.backend.wake(sandbox).await.map_err(EngineError::Backend)
    }

    /// Makes the files that say which box this is, in which wake.
    fn host_files(&self, record: &BoxRecord, wake_id: &WakeId) -> Result<[HostFile; 2], EngineError> {
        let identity =
            Identity::new(record.id.clone(), wake_id.clone(), Some(&record.name), &self.config.call_key);
        let mut random = [0_u8; 16];
        self.entropy.fill(&mut random)?;
        let machine_id = format!("{:032x}\n", u128::from_be_bytes(random));
        Ok([
            HostFile::new(HostFileName::identity(), identity.to_bytes()),
            HostFile::new(HostFileName::machine_id(), machine_id.into_bytes()),
        ])
    }

    pub(super) async fn before_sleep(&self, record: &BoxRecord) {
        let Some(wake_id) = &record.wake_id else { return };
        let hooks = self.hooks.read().unwrap_or_else(PoisonError::into_inner).clone();
        for hook in hooks {
            hook.box_sleeps(&record.id, wake_id).await;
        }
    }

    pub(super) async fn release(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        match self.backend.release(sandbox).await {
            Ok(()) | Err(BackendError::NotFound { .. }) => Ok(()),
            Err(error) => Err(EngineError::Backend(error)),
        }
    }

    async fn release_all(&self, id: &BoxId, known: Option<SandboxId>) -> Result<(), EngineError> {
        let seen = self.look(id, None).await.map_err(EngineError::Backend)?;
        let mut sandboxes: Vec<_> = seen.into_iter().map(|claim| claim.id).collect();
        sandboxes.extend(known.filter(|known| !sandboxes.contains(known)));
        for sandbox in sandboxes {
            self.release(&sandbox).await?;
        }
        Ok(())
    }
}

/// Says why an effect failed, by what a person may do next.
pub(super) fn blame(error: &EngineError) -> (FailureKind, String) {
    let backend = match error {
        EngineError::Backend(backend) => backend,
        EngineError::Keeper(KeeperError::NotFound { .. } | KeeperError::Invalid { .. }) => {
            return (FailureKind::Invalid, text(error));
        }
        EngineError::Keeper(KeeperError::Store { .. }) => return (FailureKind::Unavailable, text(error)),
        _ => return (FailureKind::Broken, text(error)),
    };
    let kind = match backend {
        BackendError::Invalid { .. } | BackendError::Unsupported { .. } => FailureKind::Invalid,
        BackendError::UnknownImage { .. } => FailureKind::UnknownImage,
        BackendError::Quota { .. } => FailureKind::Quota,
        BackendError::Unavailable { .. } => FailureKind::Unavailable,
        _ => FailureKind::Broken,
    };
    (kind, text(backend))
}

/// Walks an error's causes into one line.
pub(crate) fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
