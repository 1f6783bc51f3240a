//! All of it in one hand: who holds the key, the store and the catalog.

use std::path::Path;
use std::sync::Arc;

use cocoonbox_core::{Clock, Entropy, Retry, SystemClock, SystemEntropy};

use crate::browse::Browser;
use crate::catalog::{Catalog, CatalogError, CommitRefusal, Keep, Ledger, ObjectCatalog, SaveEntry, update};
use crate::crash::crash_point;
use crate::manifest::{ReadError, load_chain};
use crate::object::{ObjectError, Objects};
use crate::restore::{RestoreError, RestoreOptions, Restored};
use crate::save::{Neighbours, PackView, PreparedSave, SaveError, SaveOptions};
use crate::serve::{RestoreContext, SaveContext, restore, restore_paths, save};
use crate::tree::{ChunkTable, TreePath};
use crate::{BoxKeys, Domain, Label, ObjectKey, PackId, Prefix, SaveId, StateKey};

/// Why a save does not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// It was not made.
    #[error("the save was not made")]
    Save(#[from] SaveError),
    /// It no longer fits: make it anew, which is quick.
    #[error("the save is not taken")]
    Refused(#[from] CommitRefusal),
    /// The store says it took objects that are not there, or not whole: make the save anew.
    #[error("{count} objects of the save are not in the store as they were put")]
    Lost {
        /// How many.
        count: usize,
    },
    /// The store cannot be asked.
    #[error("the store cannot be listed")]
    Store(#[from] ObjectError),
    /// The catalog did not take it.
    #[error("the catalog did not take the save")]
    Catalog(#[from] CatalogError),
    /// A save of another box cannot be read.
    #[error("another save of the domain cannot be read")]
    Read(#[from] ReadError),
}

impl CommitError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Save(error) => error.retry(),
            Self::Refused(CommitRefusal::OtherDomain) => Retry::Never,
            Self::Refused(_) | Self::Lost { .. } => Retry::Reread,
            Self::Store(error) => error.retry(),
            Self::Catalog(error) => error.retry(),
            Self::Read(error) => error.retry(),
        }
    }
}

/// Returns the packs that a save of this domain may rest on.
///
/// # Errors
/// The store cannot be listed.
pub async fn pack_view(
    objects: &dyn Objects,
    ledger: &Ledger,
    uid: &Label,
    domain: &Domain,
) -> Result<PackView, ObjectError> {
    let listed = objects.list(&Prefix::packs(uid, domain)).await?;
    let mut packs: std::collections::BTreeSet<PackId> =
        listed.iter().filter_map(|listed| listed.key.last().parse().ok()).collect();
    for (_, pack) in ledger.mark.iter().flat_map(|mark| &mark.packs) {
        packs.remove(pack);
    }
    packs.retain(|pack| !ledger.condemned.contains(pack));
    Ok(PackView { packs, sweeps: ledger.sweeps })
}

/// Takes a save that was prepared, here or in a guest: looks that all it put is there and whole, then writes the
/// catalog. The answer is the same when it is asked again.
///
/// # Errors
/// See [`CommitError`]; the box's saves are then as they were.
pub async fn commit(
    objects: &dyn Objects,
    catalog: &dyn Catalog,
    prepared: &PreparedSave,
    keep: Option<Keep>,
) -> Result<(), CommitError> {
    let mut missing = 0;
    let manifest = ObjectKey::save(&prepared.uid, &prepared.box_label, &prepared.id);
    if objects.head(&manifest).await?.map(|listed| listed.length) != Some(prepared.manifest_length) {
        missing += 1;
    }
    if prepared.packs.len() > 8 {
        let listed = objects.list(&Prefix::packs(&prepared.uid, &prepared.domain)).await?;
        let there: std::collections::HashMap<&str, u64> =
            listed.iter().map(|listed| (listed.key.last(), listed.length)).collect();
        missing +=
            prepared.packs.iter().filter(|(id, length)| there.get(&*id.to_string()) != Some(length)).count();
    } else {
        for (id, length) in &prepared.packs {
            let key = ObjectKey::pack(&prepared.uid, &prepared.domain, id);
            if objects.head(&key).await?.map(|listed| listed.length) != Some(*length) {
                missing += 1;
            }
        }
    }
    if missing > 0 {
        return Err(CommitError::Lost { count: missing });
    }
    crash_point("commit: before the catalog is written");
    update(catalog, &prepared.uid, |ledger| ledger.commit(prepared, keep).map_err(CommitError::from)).await?;
    crash_point("commit: after the catalog was written");
    Ok(())
}

/// Reads the chunks of other boxes' newest saves, for a save that may rest on them. A save that cannot be read is left
/// out.
///
/// # Errors
/// The store is not available.
pub async fn neighbours(
    objects: &Arc<dyn Objects>,
    key: &StateKey,
    uid: &Label,
    domain: &Domain,
    ledger: &Ledger,
    but: &Label,
) -> Result<Neighbours, ReadError> {
    let mut table = ChunkTable::default();
    for (label, known) in
        ledger.boxes.iter().filter(|(label, known)| *label != but && known.domain == *domain)
    {
        let Some(head) = &known.head else { continue };
        let keys = key.box_keys(uid, domain, label);
        match load_chain(&**objects, &keys, head, &mut table).await {
            Ok(_) => {}
            Err(error) if error.retry() == Retry::Never => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Neighbours(Arc::new(table)))
}

/// A user's saves in one store, for who holds the state key.
#[derive(Clone, Debug)]
pub struct Vault {
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) key: StateKey,
    pub(crate) uid: Label,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

impl Vault {
    /// Opens the vault of `uid` with a catalog that is kept in the store itself.
    pub fn open(objects: Arc<dyn Objects>, key: StateKey, uid: Label) -> Self {
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        let catalog = ObjectCatalog::new(Arc::clone(&objects), key.clone(), Arc::clone(&entropy));
        Self::new(objects, Arc::new(catalog), key, uid, Arc::new(SystemClock), entropy)
    }

    /// Opens a vault over a catalog, a clock and randomness of the caller's.
    pub fn new(
        objects: Arc<dyn Objects>,
        catalog: Arc<dyn Catalog>,
        key: StateKey,
        uid: Label,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { objects, catalog, key, uid, clock, entropy }
    }

    /// Returns the store.
    pub fn objects(&self) -> &Arc<dyn Objects> {
        &self.objects
    }

    /// Returns the catalog.
    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.catalog
    }

    /// Returns the keys of one box of the user's own.
    pub fn keys(&self, box_label: &Label) -> BoxKeys {
        self.key.box_keys(&self.uid, &Domain::user(), box_label)
    }

    /// Returns the keys that a box's saves are under, as the catalog knows its domain.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub async fn keys_of(&self, box_label: &Label) -> Result<BoxKeys, CatalogError> {
        let (ledger, _) = self.catalog.load(&self.uid).await?;
        let domain = ledger.boxes.get(box_label).map_or_else(Domain::user, |known| known.domain.clone());
        Ok(self.key.box_keys(&self.uid, &domain, box_label))
    }

    /// Saves a box and commits it. `options` says what; the base, the view and the neighbours are found here.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub async fn save(
        &self,
        keys: &BoxKeys,
        mut options: SaveOptions,
        keep: Option<Keep>,
    ) -> Result<PreparedSave, CommitError> {
        let (ledger, _) = self.catalog.load(&self.uid).await?;
        options.base = ledger.head(keys.box_label());
        options.view = Some(pack_view(&*self.objects, &ledger, &self.uid, keys.domain()).await?);
        options.neighbours =
            neighbours(&self.objects, &self.key, &self.uid, keys.domain(), &ledger, keys.box_label()).await?;
        let context = SaveContext::new(
            Arc::new(Arc::clone(&self.objects)),
            Arc::new(Arc::clone(&self.objects)),
            Arc::clone(&self.clock),
            Arc::clone(&self.entropy),
        );
        let prepared = save(keys, &options, &context).await?;
        commit(&*self.objects, &*self.catalog, &prepared, keep).await?;
        Ok(prepared)
    }

    /// Lists a box's saves, the oldest first.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub async fn saves(&self, box_label: &Label) -> Result<Vec<SaveEntry>, CatalogError> {
        let (ledger, _) = self.catalog.load(&self.uid).await?;
        Ok(ledger.saves(box_label).cloned().collect())
    }

    /// Sets why a save is kept whatever its age; returns whether there is such a save.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub async fn keep(
        &self,
        box_label: &Label,
        save: &SaveId,
        keep: Option<Keep>,
    ) -> Result<bool, CatalogError> {
        update(&*self.catalog, &self.uid, |ledger| Ok(ledger.keep(box_label, save, keep))).await
    }

    pub(crate) fn restore_context(&self) -> RestoreContext {
        RestoreContext::new(
            Arc::new(Arc::clone(&self.objects)),
            Arc::clone(&self.clock),
            Arc::clone(&self.entropy),
        )
    }

    /// Restores a whole save, see [`restore`].
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub async fn restore(
        &self,
        keys: &BoxKeys,
        save: &SaveId,
        target: &Path,
        options: &RestoreOptions,
    ) -> Result<Restored, RestoreError> {
        restore(keys, save, target, options, &self.restore_context()).await
    }

    /// Restores chosen paths, see [`restore_paths`].
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub async fn restore_paths(
        &self,
        keys: &BoxKeys,
        save: &SaveId,
        paths: &[TreePath],
        target: &Path,
        options: &RestoreOptions,
    ) -> Result<Vec<Restored>, RestoreError> {
        restore_paths(keys, save, paths, target, options, &self.restore_context()).await
    }

    /// Opens a save for looking in.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn browse(&self, keys: &BoxKeys, save: &SaveId) -> Result<Browser, ReadError> {
        Browser::open(keys, Arc::new(Arc::clone(&self.objects)), save).await
    }
}
