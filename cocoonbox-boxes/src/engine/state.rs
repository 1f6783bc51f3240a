//! Saving boxes and bringing their state back.

use std::num::NonZeroU16;
use std::sync::{Arc, PoisonError};

use cocoonbox_core::backend::{HibernateTo, SandboxId, Target};
use cocoonbox_core::machine::{BoxRecord, Bytes, Cause, Command, Fresh, Limits, NewBox, Phase, decide};
use cocoonbox_core::{BoxId, BoxName, ImageName, OperationId, Timestamp, UserId, WakeId};
use cocoonbox_wire::AGENT_PORT;

use super::{Confirm, Engine, IdempotencyKey, Inner, Started, effect, serve};
use crate::store::{Owned, StoreError};
use crate::{EngineError, Guest, KeeperError, SaveInfo, SaveReason, SavedEntryInfo, StateKeeper};

/// Times that a save is made anew because another came first.
const MAX_SAVES: u32 = 3;

impl Engine {
    /// Saves a running box.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], [`EngineError::WrongState`], [`EngineError::KeyReused`],
    /// [`EngineError::Unsupported`] without a state store.
    pub async fn save(
        &self,
        owner: &UserId,
        hint: &str,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        self.inner.keeper()?;
        self.on_one(owner, hint, key, format!("save {hint}"), |fresh, _| {
            Ok(Command::Save { operation: fresh.operation })
        })
        .await
    }

    /// Puts a save's state in the place of what a box has, which is saved before; a box that does not run is started
    /// first. `save` is an id, or empty for the newest.
    ///
    /// # Errors
    /// As [`save`](Self::save), and those of [`ensure`](Self::ensure).
    pub async fn restore(
        &self,
        owner: &UserId,
        limits: Limits,
        hint: &str,
        save: &str,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        let save = self.save_of(owner, hint, save).await?;
        self.up(owner, limits, hint).await?;
        let request = format!("restore {hint} {save}");
        self.on_one(owner, hint, key, request, move |fresh, _| {
            Ok(Command::Restore { save: save.clone(), operation: fresh.operation })
        })
        .await
    }

    /// Puts files and folders of a save, by their absolute names in the box, in the place of what the box has there.
    ///
    /// # Errors
    /// As [`restore`](Self::restore); [`EngineError::Invalid`] without a path.
    pub async fn restore_files(
        &self,
        owner: &UserId,
        limits: Limits,
        hint: &str,
        save: &str,
        paths: Vec<Vec<u8>>,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        self.inner.keeper()?;
        if paths.is_empty() || paths.len() > 1000 {
            let reason = "name 1 to 1000 files or folders".to_owned();
            return Err(EngineError::Invalid { field: "paths", reason });
        }
        let save = self.save_of(owner, hint, save).await?;
        self.up(owner, limits, hint).await?;
        let shown: Vec<_> = paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
        let request = format!("restore files {hint} {save} {}", shown.join("\0"));
        self.on_one(owner, hint, key, request, move |fresh, _| {
            let operation = fresh.operation;
            Ok(Command::RestoreFiles { save: save.clone(), paths: paths.clone(), operation })
        })
        .await
    }

    /// Moves a box to another image and keeps its state; a box that does not run is started first, and its programs end.
    /// Without an image it is the one of new boxes.
    ///
    /// # Errors
    /// As [`restore`](Self::restore); [`EngineError::Unconfirmed`]; [`EngineError::Invalid`] when the box has that image.
    pub async fn rebase(
        &self,
        owner: &UserId,
        limits: Limits,
        hint: &str,
        image: Option<ImageName>,
        confirm: Confirm,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        self.inner.keeper()?;
        if confirm == Confirm::No {
            return Err(EngineError::Unconfirmed { what: "moving a box to another image ends its programs" });
        }
        let image = image.unwrap_or_else(|| self.inner.config.default_image.clone());
        let request = format!("rebase {hint} {image}");
        // a call that is repeated finds its box on that image already
        if let Some(key) = &key
            && let Some(answer) = self.inner.answered(owner, key, &request).await?
        {
            return Ok(answer);
        }
        let record = self.get(owner, hint).await?.ok_or_else(no_box)?;
        if record.image == image {
            let reason = format!("{} has image {image} already", record.name);
            return Err(EngineError::Invalid { field: "image", reason });
        }
        self.up(owner, limits, hint).await?;
        self.on_one(owner, hint, key, request, move |fresh, _| {
            Ok(Command::Rebase { image: image.clone(), fresh })
        })
        .await
    }

    /// Takes boxes of another server in whose saves were found, those that are there already left out; returns all of
    /// them. The next [`ensure`](Self::ensure) of one brings its newest save here.
    ///
    /// # Errors
    /// [`EngineError::Store`].
    pub async fn adopt(
        &self,
        owner: &UserId,
        limits: Limits,
        found: &[(BoxId, Timestamp)],
    ) -> Result<Vec<BoxRecord>, EngineError> {
        let mut adopted = Vec::new();
        for (id, saved_at) in found {
            adopted.push(self.inner.adopt(owner, limits, id, *saved_at).await?);
        }
        Ok(adopted)
    }

    /// Lists a box's saves, the newest first.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], [`EngineError::Unsupported`], [`EngineError::Keeper`].
    pub async fn saves(&self, owner: &UserId, hint: &str) -> Result<Vec<SaveInfo>, EngineError> {
        let keeper = self.inner.keeper()?;
        let record = self.get(owner, hint).await?.ok_or_else(no_box)?;
        Ok(keeper.saves(owner, &record.id).await?)
    }

    /// Lists a folder of a save.
    ///
    /// # Errors
    /// As [`saves`](Self::saves); [`EngineError::Invalid`] for a path that is none.
    pub async fn browse(
        &self,
        owner: &UserId,
        hint: &str,
        save: &str,
        folder: &[u8],
    ) -> Result<Vec<SavedEntryInfo>, EngineError> {
        let keeper = self.inner.keeper()?;
        let record = self.get(owner, hint).await?.ok_or_else(no_box)?;
        Ok(keeper.browse(owner, &record.id, save, folder).await?)
    }

    /// Finds the save that is meant, before anything is done for it.
    async fn save_of(&self, owner: &UserId, hint: &str, save: &str) -> Result<String, EngineError> {
        let saves = self.saves(owner, hint).await?;
        let found = saves.iter().any(|known| save.is_empty() || known.id == save);
        let what = if save.is_empty() {
            "save of this box yet".to_owned()
        } else {
            format!("save {save} of this box")
        };
        if found { Ok(save.to_owned()) } else { Err(EngineError::NotFound { what }) }
    }

    async fn up(&self, owner: &UserId, limits: Limits, hint: &str) -> Result<(), EngineError> {
        let started = self.ensure(owner, limits, hint, None).await?;
        if let Some(last) = self.wait(&started).await? {
            super::call::check(last)?;
        }
        Ok(())
    }
}

fn no_box() -> EngineError {
    EngineError::NotFound { what: "box yet: ensure one to make it".to_owned() }
}

fn told(info: &SaveInfo, name: &BoxName) -> String {
    let mut text = format!("{name} is saved: {} files", info.files);
    if info.inconsistent > 0 {
        text = format!("{text}; {} changed while they were read", info.inconsistent);
    }
    text
}

/// The name of a box whose own is not known: nothing but its state came over.
fn name_for(owned: &Owned, id: &BoxId) -> BoxName {
    let short = id.as_str().trim_start_matches("cb-");
    let names = ["main".to_owned(), format!("saved-{short}")];
    let mut free = names.iter().filter_map(|name| name.parse::<BoxName>().ok());
    let taken = |name: &BoxName| owned.boxes.iter().any(|stored| stored.record.name == *name);
    free.find(|name| !taken(name)).unwrap_or_else(BoxName::first)
}

impl Inner {
    async fn adopt(
        &self,
        owner: &UserId,
        limits: Limits,
        id: &BoxId,
        saved_at: Timestamp,
    ) -> Result<BoxRecord, EngineError> {
        loop {
            let owned = self.store.owned(owner).await?;
            if let Some(stored) = owned.boxes.iter().find(|stored| stored.record.id == *id) {
                return Ok(stored.record.clone());
            }
            let name = name_for(&owned, id);
            let new = NewBox {
                id: id.clone(),
                owner: owner.clone(),
                name,
                image: self.config.default_image.clone(),
            };
            let now = self.clock.now();
            let decision = decide(None, Command::Adopt { new, saved_at, limits }, now)?;
            match self.store.commit(Self::change(owner, id, None, &decision, now)).await {
                Ok(_) => self.notices.tell(id),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

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
        Ok(Guest { owner: record.owner.clone(), box_id: record.id.clone(), wake_id: wake_id.clone(), stream })
    }

    /// Saves a box that runs, and tells how far it is.
    async fn keep(
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

    /// Moves a box to another image: nothing that it wrote before its programs were ended is left behind.
    pub(super) async fn rebase(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        sandbox: &SandboxId,
        wake_id: &WakeId,
        image: ImageName,
    ) -> Result<Command, EngineError> {
        // its programs end first, so that the save holds all that they wrote
        self.restart(record, sandbox, wake_id).await?;
        match self.move_to(record, operation, sandbox, wake_id, &image).await {
            Ok(new) => Ok(Command::Rebased { operation: operation.clone(), sandbox: new, image }),
            Err(error) => {
                let (kind, reason) = effect::blame(&error);
                let reason = format!("{} stays on image {}: {reason}", record.name, record.image);
                Ok(Command::NotRebased { operation: operation.clone(), kind, reason })
            }
        }
    }

    async fn move_to(
        &self,
        record: &BoxRecord,
        operation: &OperationId,
        sandbox: &SandboxId,
        wake_id: &WakeId,
        image: &ImageName,
    ) -> Result<SandboxId, EngineError> {
        let before = self.keep(record, operation, sandbox, wake_id, SaveReason::Upgrade).await?;
        let bytes = Bytes { done: before.bytes, total: before.bytes };
        let message = format!("starting {} from image {image}", record.name);
        self.progress(&record.id, operation, Phase::Creating, message, bytes, Some(before.at)).await;
        let new = self.claim_new(record, image, wake_id).await?;
        if let Err(error) = self.bring_back(record, operation, &new, wake_id, &before.id).await {
            self.release(&new).await?;
            return Err(error);
        }
        Ok(new)
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
