//! Boxes that move: to another image, and here from another server.

use cocoonbox_core::backend::SandboxId;
use cocoonbox_core::machine::{BoxRecord, Bytes, Command, Limits, NewBox, Phase, decide};
use cocoonbox_core::{BoxId, BoxName, ImageName, OperationId, Timestamp, UserId, WakeId};

use super::state::no_box;
use super::{Confirm, Engine, IdempotencyKey, Inner, Started, effect};
use crate::store::{Owned, StoreError};
use crate::{EngineError, SaveReason};

impl Engine {
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
            && let Some(answer) = self.inner.answered(owner, key, &self.spelled(request.clone())).await?
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
}
