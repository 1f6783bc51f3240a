//! What saves and restores do to running boxes.

use std::num::NonZeroU16;
use std::sync::{Arc, PoisonError};

use cocoonbox_core::backend::{HibernateTo, SandboxId, Target};
use cocoonbox_core::machine::{BoxRecord, Bytes, Cause, Command, Fresh, Phase, decide};
use cocoonbox_core::{BoxId, BoxName, OperationId, Timestamp, WakeId};
use cocoonbox_wire::AGENT_PORT;

use super::{Inner, effect, serve};
use crate::store::StoreError;
use crate::{EngineError, Guest, KeeperError, SaveInfo, SaveReason, StateKeeper};

/// Times that a save is made anew because another came first.
const MAX_SAVES: u32 = 3;

fn told(info: &SaveInfo, name: &BoxName) -> String {
    let mut text = format!("{name} is saved: {} files", info.files);
    if info.inconsistent > 0 {
        text = format!("{text}; {} changed while they were read", info.inconsistent);
    }
    text
}

impl Inner {
    pub(super) fn keeper(&self) -> Result<Arc<dyn StateKeeper>, EngineError> {
        let keeper = self.keeper.read().unwrap_or_else(PoisonError::into_inner).clone();
        keeper.ok_or(EngineError::Unsupported { what: "this server has no state store" })
    }

    async fn guest(
        &self,
        record: &BoxRecord,
        sandbox: &SandboxId,
        wake_id: &WakeId,
    ) -> Result<Guest, EngineError> {
        let port = NonZeroU16::new(AGENT_PORT).expect("the agent's port is not zero");
        let stream = self.backend.connect(sandbox, Target::Port(port)).await.map_err(EngineError::Backend)?;
        let (owner, box_id) = (record.owner.clone(), record.id.clone());
        Ok(Guest { owner, box_id, agent: record.agent, wake_id: wake_id.clone(), stream })
    }

    /// Saves a box that runs, and tells how far it is.
    pub(super) async fn keep(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        sandbox: &SandboxId,
        wake_id: &WakeId,
        reason: SaveReason,
    ) -> Result<SaveInfo, EngineError> {
        let keeper = self.keeper()?;
        let mut left = MAX_SAVES;
        loop {
            let guest = self.guest(record, sandbox, wake_id).await?;
            let work = |progress| keeper.save(guest, reason, progress);
            left -= 1;
            match serve::with_progress(self, &record.id, operation, Phase::Saving, "new", work).await {
                Err(KeeperError::Raced) if left > 0 => {}
                done => return Ok(done?),
            }
        }
    }

    pub(super) async fn save_box(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        sandbox: &SandboxId,
        wake_id: &WakeId,
    ) -> Result<Command, EngineError> {
        let info = self.keep(record, operation, sandbox, wake_id, SaveReason::Asked).await?;
        Ok(Command::Saved {
            operation: operation.clone(),
            at: info.at,
            message: told(&info, &record.name),
            bytes: Bytes { done: info.bytes, total: info.bytes },
        })
    }

    /// Saves a box that goes to sleep. It sleeps all the same when that fails.
    pub(super) async fn save_before_sleep(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        sandbox: &SandboxId,
    ) {
        let by_itself = record.pending.as_ref().is_some_and(|pending| {
            // its identity is not known, or only its memory goes
            matches!(pending.cause, Cause::Reconcile | Cause::FreezeToDisk)
        });
        let Some(wake_id) = record.wake_id.as_ref().filter(|_| !by_itself) else { return };
        if self.keeper().is_err() {
            return;
        }
        match self.keep(record, operation, sandbox, wake_id, SaveReason::Sleep).await {
            Ok(info) => {
                let bytes = Bytes { done: info.bytes, total: info.bytes };
                let message = told(&info, &record.name);
                self.progress(&record.id, operation, Phase::Saving, message, bytes, Some(info.at)).await;
            }
            Err(error) => {
                tracing::warn!(box_id = %record.id, error = effect::text(&error), "a box that goes to sleep was not saved");
                let message = "save failed; hibernating it".to_owned();
                self.progress(&record.id, operation, Phase::Snapshotting, message, Bytes::default(), None)
                    .await;
            }
        }
    }

    /// Brings a save into a box; what the box has is saved before.
    pub(super) async fn stage(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        sandbox: &SandboxId,
        wake_id: &WakeId,
        save: &str,
        fresh: Fresh,
    ) -> Result<Command, EngineError> {
        let keeper = self.keeper()?;
        let before = self.keep(record, operation, sandbox, wake_id, SaveReason::Restore).await?;
        let bytes = Bytes { done: before.bytes, total: before.bytes };
        let message = format!("what it replaces is save {}", before.id);
        self.progress(&record.id, operation, Phase::Restoring, message, bytes, Some(before.at)).await;
        let guest = self.guest(record, sandbox, wake_id).await?;
        let work = |progress| keeper.stage(guest, save, progress);
        serve::with_progress(self, &record.id, operation, Phase::Restoring, "fetched", work).await?;
        Ok(Command::Staged { operation: operation.clone(), fresh })
    }

    /// Brings chosen files of a save into a box; what the box has is saved before.
    pub(super) async fn bring_files(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        sandbox: &SandboxId,
        wake_id: &WakeId,
        save: &str,
        paths: &[Vec<u8>],
    ) -> Result<Command, EngineError> {
        let keeper = self.keeper()?;
        let before = self.keep(record, operation, sandbox, wake_id, SaveReason::Asked).await?;
        let bytes = Bytes { done: before.bytes, total: before.bytes };
        let message = format!("what it replaces is in save {}", before.id);
        self.progress(&record.id, operation, Phase::RestoringFiles, message, bytes, Some(before.at)).await;
        let guest = self.guest(record, sandbox, wake_id).await?;
        let work = |progress| keeper.restore_files(guest, save, paths, progress);
        let phase = Phase::RestoringFiles;
        let done = serve::with_progress(self, &record.id, operation, phase, "fetched", work).await?;
        Ok(Command::FilesRestored {
            operation: operation.clone(),
            message: format!("{} files are restored in {}", done.files, record.name),
            bytes: Bytes { done: done.bytes, total: done.bytes },
        })
    }

    /// Gives a sandbox that was just made a save of the box, the newest where none is named, and starts it anew with it.
    pub(super) async fn bring_back(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        sandbox: &SandboxId,
        wake_id: &WakeId,
        save: &str,
    ) -> Result<(), EngineError> {
        let keeper = self.keeper()?;
        let guest = self.guest(record, sandbox, wake_id).await?;
        let work = |progress| keeper.stage(guest, save, progress);
        match serve::with_progress(self, &record.id, operation, Phase::Restoring, "fetched", work).await {
            // its saves are gone: there is nothing to bring back
            Err(KeeperError::NotFound { .. }) if save.is_empty() => return Ok(()),
            done => done?,
        };
        self.restart(record, sandbox, wake_id).await
    }

    /// Ends what runs in a sandbox and starts it anew.
    pub(super) async fn restart(
        &self,
        record: &BoxRecord,
        sandbox: &SandboxId,
        wake_id: &WakeId,
    ) -> Result<(), EngineError> {
        self.before_sleep(record).await;
        self.backend.hibernate(sandbox, HibernateTo::Disk).await.map_err(EngineError::Backend)?;
        self.wake(record, sandbox, wake_id).await.map(drop)
    }

    /// Appends to an operation's events. What cannot be written is left out: nothing rests on it but a time of saving,
    /// which the state store knows, too.
    pub(super) async fn progress(
        &self,
        id: &BoxId,
        operation: &OperationId,
        phase: Phase,
        message: String,
        bytes: Bytes,
        saved_at: Option<Timestamp>,
    ) {
        for _ in 0..4 {
            let Ok(Some(stored)) = self.store.load(id).await else { return };
            let now = self.clock.now();
            let command = Command::Progress {
                operation: operation.clone(),
                phase,
                message: message.clone(),
                bytes,
                saved_at,
            };
            let Ok(decision) = decide(Some(&stored.record), command, now) else { return };
            let change = Self::change(&stored.record.owner, id, Some(&stored), &decision, now);
            match self.store.commit(change).await {
                Err(StoreError::Conflict { .. }) => {}
                _ => break,
            }
        }
        self.notices.tell(id);
    }
}
