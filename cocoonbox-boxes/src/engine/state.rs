//! Saving boxes and bringing their state back.

use cocoonbox_core::UserId;
use cocoonbox_core::machine::{Command, Limits};

use super::{Engine, IdempotencyKey, Started};
use crate::{EngineError, SaveInfo, SavedEntryInfo, SavedFileReader};

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
        let shown: Vec<_> = paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
        let request = format!("restore files {hint} {save} {}", shown.join("\0"));
        // what the box has is saved first: by then another save is the newest
        let newest = self.saves(owner, hint).await?.into_iter().next().map(|newest| newest.id);
        let save = match newest {
            Some(newest) if save.is_empty() => newest,
            _ => self.save_of(owner, hint, save).await?,
        };
        self.up(owner, limits, hint).await?;
        self.on_one(owner, hint, key, request, move |fresh, _| {
            let operation = fresh.operation;
            Ok(Command::RestoreFiles { save: save.clone(), paths: paths.clone(), operation })
        })
        .await
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

    /// Opens a file of a save.
    ///
    /// # Errors
    /// As [`browse`](Self::browse).
    pub async fn open_saved(
        &self,
        owner: &UserId,
        hint: &str,
        save: &str,
        file: &[u8],
    ) -> Result<Box<dyn SavedFileReader>, EngineError> {
        let keeper = self.inner.keeper()?;
        let record = self.get(owner, hint).await?.ok_or_else(no_box)?;
        Ok(keeper.open(owner, &record.id, save, file).await?)
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

    pub(super) async fn up(&self, owner: &UserId, limits: Limits, hint: &str) -> Result<(), EngineError> {
        let started = self.ensure(owner, limits, hint, None).await?;
        if let Some(last) = self.wait(&started).await? {
            super::call::check(last)?;
        }
        Ok(())
    }
}

pub(super) fn no_box() -> EngineError {
    EngineError::NotFound { what: "box yet: ensure one to make it".to_owned() }
}
