//! The keeper over cocoonbox-state.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::{BoxId, Clock, Entropy, Retry, UserId};
use cocoonbox_state::{
    Account, BoxKeys, Browser, Catalog, CatalogError, CommitError, CommitRefusal, Domain, EntryKind, Fetch,
    Keep, Label, Ledger, Objects, PreparedSave, PreparedWire, Presign, ReadError, SaveEntry, SaveId,
    SavedEntry, SavedFile, TreePath, commit, pack_view, update_ledger,
};
use cocoonbox_wire::agent::v1 as wire;
use cocoonbox_wire::agent::v1::state_request::Message as Tell;
use cocoonbox_wire::agent::v1::state_response::Message as Said;
use ed25519_dalek::SigningKey;
use tokio::sync::watch;

use super::StateKeys;
use super::grant::Scope;
use super::serve::{Kind, Way, call};
use crate::keeper::{
    Guest, KeeperError, Moved, RestoreInfo, SaveInfo, SaveReason, SavedEntryInfo, SavedFileReader,
    StateKeeper,
};

/// Saves boxes into a store of objects, sealed by their agents.
pub struct SealedKeeper {
    pub(super) objects: Arc<dyn Objects>,
    presign: Arc<dyn Presign>,
    pub(super) catalog: Arc<dyn Catalog>,
    pub(super) keys: Arc<dyn StateKeys>,
    call_key: Arc<SigningKey>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
}

impl fmt::Debug for SealedKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedKeeper").field("objects", &self.objects).finish_non_exhaustive()
    }
}

impl SealedKeeper {
    /// Puts a keeper together; `presign` makes URLs to the objects of `objects`.
    pub fn new(
        objects: Arc<dyn Objects>,
        presign: Arc<dyn Presign>,
        catalog: Arc<dyn Catalog>,
        keys: Arc<dyn StateKeys>,
        call_key: Arc<SigningKey>,
        (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>),
    ) -> Self {
        Self { objects, presign, catalog, keys, call_key, clock, entropy }
    }

    fn way(&self) -> Way<'_> {
        Way { presign: &*self.presign, call_key: &self.call_key, clock: &self.clock }
    }

    pub(super) async fn opened(
        &self,
        owner: &UserId,
        box_id: &BoxId,
    ) -> Result<(BoxKeys, Ledger), KeeperError> {
        let Account { uid, key } = self.keys.of(owner).await?;
        let (ledger, _) = self.catalog.load(&uid).await.map_err(catalog)?;
        let label = Label::from(box_id);
        let domain = ledger.boxes.get(&label).map_or_else(Domain::user, |known| known.domain.clone());
        Ok((key.box_keys(&uid, &domain, &label), ledger))
    }

    /// As [`Self::opened`], for a box that may not have been saved yet: one that an agent made has a domain of its own, so
    /// that it can neither read what the user's boxes saved nor put anything in their way.
    async fn opened_to_save(
        &self,
        owner: &UserId,
        box_id: &BoxId,
        agent: bool,
    ) -> Result<(BoxKeys, Ledger), KeeperError> {
        let (keys, ledger) = self.opened(owner, box_id).await?;
        if !agent || ledger.boxes.contains_key(keys.box_label()) {
            return Ok((keys, ledger));
        }
        let Account { uid, key } = self.keys.of(owner).await?;
        let domain = Domain::agent(keys.box_label())
            .map_err(|error| KeeperError::Invalid { field: "box", reason: error.to_string() })?;
        Ok((key.box_keys(&uid, &domain, keys.box_label()), ledger))
    }

    /// Finds a box's save by its id, or the one that holds what it had last.
    pub(super) fn pick(ledger: &Ledger, keys: &BoxKeys, save: &str) -> Result<SaveId, KeeperError> {
        let none = |what: String| KeeperError::NotFound { what };
        if save.is_empty() {
            return ledger.current(keys.box_label()).ok_or_else(|| none("save yet".to_owned()));
        }
        let missing = || none(format!("save {save}"));
        let id: SaveId = save.parse().map_err(|_| missing())?;
        ledger.saves(keys.box_label()).find(|entry| entry.id == id).map(|entry| entry.id).ok_or_else(missing)
    }

    async fn note_restored(&self, keys: &BoxKeys, save: SaveId) -> Result<(), KeeperError> {
        let note = |ledger: &mut Ledger| Ok(ledger.restored(keys.box_label(), &save));
        update_ledger(&*self.catalog, keys.uid(), note).await.map(|_| ()).map_err(catalog)
    }

    async fn try_save(
        &self,
        guest: Guest,
        keep: Option<Keep>,
        progress: &watch::Sender<Moved>,
    ) -> Result<SaveEntry, KeeperError> {
        let (owner, box_id) = (guest.owner.clone(), guest.box_id.clone());
        let (keys, ledger) = self.opened_to_save(&owner, &box_id, guest.agent).await?;
        let Account { key, .. } = self.keys.of(&owner).await?;
        let view = pack_view(&*self.objects, &ledger, keys.uid(), keys.domain()).await.map_err(store)?;
        let mut scope = Scope::of(&keys, true);
        let mut neighbours = Vec::new();
        for (label, head) in nearest(&ledger, &keys) {
            let keys = key.box_keys(keys.uid(), keys.domain(), label);
            scope = scope.with_neighbour(&keys);
            let material = wire::BoxKeys { material: keys.to_bytes().into() };
            neighbours.push(wire::Neighbour { keys: Some(material), save: head.to_string() });
        }
        let start = wire::SaveStart {
            keys: Some(wire::BoxKeys { material: keys.to_bytes().into() }),
            base: ledger.head(keys.box_label()).map(|id| id.to_string()).unwrap_or_default(),
            view: serde_json::to_vec(&view)
                .map_err(|error| KeeperError::Store { reason: error.to_string() })?
                .into(),
            neighbours,
        };
        let said = call(&self.way(), guest, Kind::Save, Tell::Save(start), &scope, progress).await?;
        let Said::Prepared(bytes) = said else { return Err(misbehaved()) };
        let prepared: PreparedWire = serde_json::from_slice(&bytes).map_err(|_| misbehaved())?;
        let prepared = PreparedSave::from_wire(
            prepared,
            keys.uid().clone(),
            keys.domain().clone(),
            keys.box_label().clone(),
        );
        commit(&*self.objects, &*self.catalog, &prepared, keep).await.map_err(committed)?;
        let (ledger, _) = self.catalog.load(keys.uid()).await.map_err(catalog)?;
        let saved = ledger.saves(keys.box_label()).find(|entry| entry.id == prepared.id).cloned();
        saved.ok_or(KeeperError::Raced)
    }
}

/// The most boxes whose newest saves a save may rest on: it reads all of their manifests.
const MAX_NEIGHBOURS: usize = 8;

/// Returns the newest saves of the domain's other boxes: of those that were saved last.
fn nearest<'a>(ledger: &'a Ledger, keys: &BoxKeys) -> impl Iterator<Item = (&'a Label, SaveId)> {
    let others = ledger.boxes.iter().filter(|(label, known)| {
        *label != keys.box_label() && known.domain == *keys.domain() && known.head.is_some()
    });
    let saved = |known: &cocoonbox_state::BoxSaves| known.saves.last().map(|save| save.created_micros);
    let mut others: Vec<_> = others.collect();
    others.sort_by_key(|(_, known)| std::cmp::Reverse(saved(known)));
    others.into_iter().take(MAX_NEIGHBOURS).filter_map(|(label, known)| Some((label, known.head?)))
}

fn misbehaved() -> KeeperError {
    KeeperError::Guest { reason: "it said what it must not".to_owned() }
}

pub(super) fn catalog(error: CatalogError) -> KeeperError {
    if error.retry() == Retry::Reread { KeeperError::Raced } else { chained(&error) }
}

fn store(error: cocoonbox_state::ObjectError) -> KeeperError {
    chained(&error)
}

pub(super) fn chained(error: &(dyn std::error::Error + 'static)) -> KeeperError {
    KeeperError::Store { reason: crate::engine::text(error) }
}

fn committed(error: CommitError) -> KeeperError {
    match error {
        CommitError::Refused(CommitRefusal::OtherDomain) => misbehaved(),
        error if error.retry() == Retry::Reread => KeeperError::Raced,
        error => chained(&error),
    }
}

pub(super) fn read(error: ReadError) -> KeeperError {
    match &error {
        ReadError::NoSuchPath { .. } => KeeperError::NotFound { what: "such path in that save".to_owned() },
        ReadError::WrongKind { wanted, .. } => {
            KeeperError::Invalid { field: "path", reason: format!("it is no {wanted} in that save") }
        }
        _ if error.retry() == Retry::Never => KeeperError::Damaged { reason: crate::engine::text(&error) },
        _ => chained(&error),
    }
}

fn info(entry: &SaveEntry) -> SaveInfo {
    SaveInfo {
        id: entry.id.to_string(),
        at: entry.created(),
        files: entry.stats.files,
        bytes: entry.stats.bytes,
        new_bytes: entry.stats.stored_bytes,
        root_hash: entry.root_hash.to_string(),
        kept: match entry.keep {
            Some(Keep::BeforeUpgrade) => "before an upgrade",
            Some(Keep::BeforeRestore) => "before a restore",
            Some(_) => "asked for",
            None => "",
        }
        .to_owned(),
        inconsistent: entry.stats.inconsistent,
        skipped: entry.stats.sockets + entry.stats.devices + entry.stats.unreadable,
    }
}

fn restored(done: &wire::RestoredState) -> RestoreInfo {
    RestoreInfo { files: done.files, bytes: done.bytes, fetched: done.fetched_bytes }
}

fn tree_path(path: &[u8]) -> Result<TreePath, KeeperError> {
    let reason = "use an absolute path without . and .. parts";
    TreePath::parse(path).map_err(|_| KeeperError::Invalid { field: "path", reason: reason.to_owned() })
}

fn entry_info(entry: &SavedEntry) -> SavedEntryInfo {
    let (kind, bytes) = match &entry.kind {
        EntryKind::Folder => ("directory", 0),
        EntryKind::Symlink { target } => ("symlink", target.as_bytes().len() as u64),
        EntryKind::Fifo => ("fifo", 0),
        EntryKind::File { size } => ("file", *size),
        _ => ("other", 0),
    };
    let name = entry.path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    SavedEntryInfo { name: name.to_vec(), kind, bytes, mode: entry.mode, modified_at: entry.modified }
}

/// A file of a sealed save.
#[derive(Debug)]
struct OpenFile {
    entry: SavedEntryInfo,
    file: SavedFile,
}

#[async_trait]
impl SavedFileReader for OpenFile {
    fn entry(&self) -> &SavedEntryInfo {
        &self.entry
    }
    async fn read(&self, offset: u64, most: u64) -> Result<Vec<u8>, KeeperError> {
        self.file.read(offset..offset.saturating_add(most)).await.map(Into::into).map_err(read)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl StateKeeper for SealedKeeper {
    async fn save(
        &self,
        guest: Guest,
        reason: SaveReason,
        progress: watch::Sender<Moved>,
    ) -> Result<SaveInfo, KeeperError> {
        let keep = match reason {
            SaveReason::Restore => Some(Keep::BeforeRestore),
            SaveReason::Upgrade => Some(Keep::BeforeUpgrade),
            SaveReason::Asked | SaveReason::Sleep => None,
        };
        self.try_save(guest, keep, &progress).await.map(|entry| info(&entry))
    }

    async fn stage(
        &self,
        guest: Guest,
        save: &str,
        progress: watch::Sender<Moved>,
    ) -> Result<RestoreInfo, KeeperError> {
        let (keys, ledger) = self.opened(&guest.owner, &guest.box_id).await?;
        let save = Self::pick(&ledger, &keys, save)?;
        let scope = Scope::of(&keys, false);
        let material = wire::BoxKeys { material: keys.to_bytes().into() };
        let start = wire::StageStart { keys: Some(material), save: save.to_string() };
        let said = call(&self.way(), guest, Kind::Stage, Tell::Stage(start), &scope, &progress).await?;
        let Said::Restored(done) = said else { return Err(misbehaved()) };
        // from here on it is what the box comes back with, should its sandbox be lost
        self.note_restored(&keys, save).await?;
        Ok(restored(&done))
    }

    async fn restore_files(
        &self,
        guest: Guest,
        save: &str,
        paths: &[Vec<u8>],
        progress: watch::Sender<Moved>,
    ) -> Result<RestoreInfo, KeeperError> {
        let (keys, ledger) = self.opened(&guest.owner, &guest.box_id).await?;
        let save = Self::pick(&ledger, &keys, save)?;
        let scope = Scope::of(&keys, false);
        let material = wire::BoxKeys { material: keys.to_bytes().into() };
        let paths = paths.iter().map(|path| path.clone().into()).collect();
        let start = wire::RestoreFilesStart { keys: Some(material), save: save.to_string(), paths };
        let tell = Tell::RestoreFiles(start);
        match call(&self.way(), guest, Kind::RestoreFiles, tell, &scope, &progress).await? {
            Said::Restored(done) => Ok(restored(&done)),
            _ => Err(misbehaved()),
        }
    }

    async fn saves(&self, owner: &UserId, box_id: &BoxId) -> Result<Vec<SaveInfo>, KeeperError> {
        let Account { uid, .. } = self.keys.of(owner).await?;
        let (ledger, _) = self.catalog.load(&uid).await.map_err(catalog)?;
        let mut saves: Vec<SaveInfo> = ledger.saves(&Label::from(box_id)).map(info).collect();
        saves.reverse();
        Ok(saves)
    }

    async fn browse(
        &self,
        owner: &UserId,
        box_id: &BoxId,
        save: &str,
        folder: &[u8],
    ) -> Result<Vec<SavedEntryInfo>, KeeperError> {
        let (keys, ledger) = self.opened(owner, box_id).await?;
        let save = Self::pick(&ledger, &keys, save)?;
        let folder = tree_path(folder)?;
        let fetch: Arc<dyn Fetch> = Arc::new(Arc::clone(&self.objects));
        let browser = Browser::open(&keys, fetch, &save).await.map_err(read)?;
        let listed = browser.list(&folder).await.map_err(read)?;
        Ok(listed.iter().map(entry_info).collect())
    }

    async fn open(
        &self,
        owner: &UserId,
        box_id: &BoxId,
        save: &str,
        file: &[u8],
    ) -> Result<Box<dyn SavedFileReader>, KeeperError> {
        let (keys, ledger) = self.opened(owner, box_id).await?;
        let save = Self::pick(&ledger, &keys, save)?;
        let file = tree_path(file)?;
        let fetch: Arc<dyn Fetch> = Arc::new(Arc::clone(&self.objects));
        let file = Browser::open(&keys, fetch, &save).await.map_err(read)?.file(&file).await.map_err(read)?;
        Ok(Box::new(OpenFile { entry: entry_info(file.entry()), file }))
    }

    async fn forget(&self, owner: &UserId, box_id: &BoxId) -> Result<(), KeeperError> {
        let (Account { uid, .. }, label) = (self.keys.of(owner).await?, Label::from(box_id));
        let forget = |ledger: &mut Ledger| Ok(ledger.forget_box(&label));
        update_ledger(&*self.catalog, &uid, forget).await.map(|_| ()).map_err(catalog)
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_state::StateKey;

    use super::*;

    #[test]
    fn a_save_rests_on_the_eight_other_boxes_that_were_saved_last() -> Result<(), Box<dyn std::error::Error>>
    {
        let keys = |label: &str, domain: &Domain| -> Result<BoxKeys, cocoonbox_state::NameError> {
            Ok(StateKey::new([1; 32]).box_keys(&"us_a".parse()?, domain, &label.parse()?))
        };
        let mut ledger = Ledger::default();
        let mut commit = |number: u8, keys: &BoxKeys| -> Result<(), Box<dyn std::error::Error>> {
            let wire = serde_json::json!({
                "id": SaveId::from_bytes([number; 16]), "base": null, "delta": false,
                "root_hash": cocoonbox_state::RootHash::default(), "created_micros": i64::from(number),
                "stats": cocoonbox_state::SaveStats::default(), "packs": {}, "manifest_length": 1, "sweeps": 0,
            });
            let (uid, domain) = (keys.uid().clone(), keys.domain().clone());
            let wire = serde_json::from_value(wire)?;
            let save = PreparedSave::from_wire(wire, uid, domain, keys.box_label().clone());
            Ok(ledger.commit(&save, None)?)
        };
        for number in 0..12 {
            commit(number, &keys(&format!("cb-{number}"), &Domain::user())?)?;
        }
        // the newest of all is another domain's
        let apart = Domain::agent(&"cb-agent".parse()?)?;
        commit(99, &keys("cb-agent", &apart)?)?;
        let names = |keys: &BoxKeys| -> Vec<String> {
            nearest(&ledger, keys).map(|(label, _)| label.to_string()).collect()
        };
        let last: Vec<String> = (4..12).rev().map(|number| format!("cb-{number}")).collect();
        assert_eq!(names(&keys("cb-0", &Domain::user())?), last);
        assert_eq!(names(&keys("cb-11", &Domain::user())?)[..2], ["cb-10", "cb-9"]);
        assert!(names(&keys("cb-agent", &apart)?).is_empty());
        Ok(())
    }
}
