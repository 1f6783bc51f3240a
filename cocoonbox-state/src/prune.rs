//! Taking out what no save needs, without locks: mark, wait, sweep.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use cocoonbox_core::{Retry, Timestamp};
use serde::Serialize;

use crate::catalog::{CatalogError, KeepRule, Ledger, Mark, update};
use crate::crash::crash_point;
use crate::manifest::{ReadError, load_chain};
use crate::object::{Listed, ObjectError, Objects, URL_LIFETIME_MAX};
use crate::tree::ChunkTable;
use crate::vault::Vault;
use crate::{Domain, Label, ObjectKey, PackId, Prefix, SaveId};

/// How long a mark stands before its sweep: the longest life of a URL, and as long again for a save to be committed.
pub const SWEEP_WAIT: Duration = Duration::from_mins(30);
/// A pack of which less than a quarter is alive is condemned.
const LIVELY: u64 = 4;

/// Why a prune was not done. Nothing that a save needs is touched by any of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PruneError {
    /// A save cannot be read, so that what it needs is not known.
    #[error("a save cannot be read")]
    Read(#[from] ReadError),
    /// The catalog failed.
    #[error("the catalog failed")]
    Catalog(#[from] CatalogError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] ObjectError),
    /// There is a mark already, and its sweep comes first.
    #[error("a prune is under way")]
    UnderWay,
    /// The mark is too young.
    #[error("the mark is to stand {left:?} more")]
    TooEarly {
        /// How much longer.
        left: Duration,
    },
}

impl PruneError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Read(error) => error.retry(),
            Self::Catalog(error) => error.retry(),
            Self::Store(error) => error.retry(),
            Self::UnderWay | Self::TooEarly { .. } => Retry::Later,
        }
    }
}

/// What a prune would do: shown, approved, applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PrunePlan {
    /// Saves that the rule does not keep.
    pub forget: Vec<(Label, SaveId)>,
    /// Packs that no kept save names, and their lengths.
    pub packs: Vec<(Domain, PackId, u64)>,
    /// Manifests that do not count: of forgotten saves, and of saves that were never committed.
    pub manifests: Vec<(Label, SaveId)>,
    /// Packs that are mostly dead: no save rests on them anew.
    pub condemned: Vec<PackId>,
    /// Bytes that deleting the packs frees.
    pub bytes: u64,
}

impl PrunePlan {
    /// Holds when there is nothing to do.
    pub const fn is_empty(&self) -> bool {
        self.forget.is_empty() && self.packs.is_empty() && self.manifests.is_empty()
    }
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Swept {
    /// Packs deleted.
    pub packs: usize,
    /// Manifests deleted.
    pub manifests: usize,
    /// Packs that were marked and that a save rests on since.
    pub spared: usize,
}

/// Which packs the ledger's saves name, and how many bytes of each are alive.
async fn alive(vault: &Vault, ledger: &Ledger) -> Result<BTreeMap<PackId, u64>, ReadError> {
    let mut groups = HashSet::new();
    for (label, known) in &ledger.boxes {
        let keys = vault.key.box_keys(&vault.uid, &known.domain, label);
        let bases: BTreeSet<SaveId> = known.saves.iter().filter_map(|save| save.base).collect();
        for save in &known.saves {
            // what a delta leaves of its base is counted with it, and what it drops is counted with the base alone
            if save.forgotten && bases.contains(&save.id) {
                continue;
            }
            let mut table = ChunkTable::default();
            load_chain(&*vault.objects, &keys, &save.id, &mut table).await?;
            groups.extend(table.groups);
        }
    }
    let mut alive = BTreeMap::new();
    for group in groups {
        *alive.entry(group.pack).or_insert(0) += u64::from(group.sealed);
    }
    Ok(alive)
}

fn pack_of(listed: &Listed) -> Option<(Domain, PackId)> {
    let mut parts = listed.key.as_str().rsplit('/');
    let (id, domain) = (parts.next()?, parts.next()?);
    Some((Domain::parse(domain).ok()?, id.parse().ok()?))
}

fn save_of(listed: &Listed) -> Option<(Label, SaveId)> {
    let mut parts = listed.key.as_str().rsplit('/');
    let (id, label) = (parts.next()?, parts.next()?);
    Some((label.parse().ok()?, id.parse().ok()?))
}

impl Vault {
    /// Plans a prune: reads every kept save's manifest, lists the store, changes nothing.
    ///
    /// # Errors
    /// See [`PruneError`].
    pub async fn plan_prune(&self, rule: &KeepRule) -> Result<PrunePlan, PruneError> {
        let (mut ledger, _) = self.catalog.load(&self.uid).await?;
        let mut plan = PrunePlan { forget: ledger.outdated(rule, self.clock.now()), ..PrunePlan::default() };
        ledger.forget(&plan.forget);
        // listed first: what is put after this is not looked at
        let packs = self.objects.list(&Prefix::all_packs(&self.uid)).await?;
        let manifests = self.objects.list(&Prefix::all_saves(&self.uid)).await?;
        let alive = alive(self, &ledger).await?;
        for listed in &packs {
            let Some((domain, id)) = pack_of(listed) else { continue };
            match alive.get(&id) {
                None => {
                    plan.bytes += listed.length;
                    plan.packs.push((domain, id, listed.length));
                }
                Some(alive) if alive * LIVELY < listed.length && listed.length > 1 << 20 => {
                    plan.condemned.push(id);
                }
                Some(_) => {}
            }
        }
        for listed in &manifests {
            let Some((label, id)) = save_of(listed) else { continue };
            let counts =
                ledger.boxes.get(&label).is_some_and(|known| known.saves.iter().any(|save| save.id == id));
            if !counts {
                plan.manifests.push((label, id));
            }
        }
        Ok(plan)
    }

    /// Applies a plan's first half: forgets saves and marks what is to go. Saves that begin after this rest on nothing
    /// that is marked.
    ///
    /// # Errors
    /// See [`PruneError`].
    pub async fn mark(&self, plan: &PrunePlan) -> Result<(), PruneError> {
        crash_point("prune: before the mark");
        let now = self.clock.now();
        update(&*self.catalog, &self.uid, |ledger| {
            if ledger.mark.is_some() {
                return Err(PruneError::UnderWay);
            }
            ledger.forget(&plan.forget);
            ledger.mark = Some(Mark {
                at_micros: now.micros(),
                packs: plan.packs.iter().map(|(domain, id, _)| (domain.clone(), *id)).collect(),
                manifests: plan.manifests.clone(),
                sweeping: false,
            });
            ledger.condemned = plan.condemned.iter().copied().collect();
            Ok(())
        })
        .await?;
        crash_point("prune: after the mark");
        Ok(())
    }

    /// Applies a mark's second half, once it stood [`SWEEP_WAIT`] by this machine's clock: looks again at what the saves
    /// need, and deletes what they do not. A sweep that broke off is gone on with.
    ///
    /// # Errors
    /// See [`PruneError`]; without a mark it does nothing.
    pub async fn sweep(&self) -> Result<Swept, PruneError> {
        crash_point("prune: before the sweep");
        let now = self.clock.now();
        // from here on no save is taken that began before: what it rests on may be about to go
        let mark = update(&*self.catalog, &self.uid, |ledger| {
            let Some(mark) = &mut ledger.mark else { return Ok(None) };
            if !mark.sweeping {
                let stood = now.since(Timestamp::from_micros(mark.at_micros));
                if stood < SWEEP_WAIT {
                    return Err(PruneError::TooEarly { left: SWEEP_WAIT.saturating_sub(stood) });
                }
                mark.sweeping = true;
                ledger.sweeps += 1;
            }
            Ok(ledger.mark.clone())
        })
        .await?;
        let Some(mark) = mark else { return Ok(Swept::default()) };
        crash_point("prune: after the count of sweeps");
        let (ledger, _) = self.catalog.load(&self.uid).await?;
        let alive = alive(self, &ledger).await?;
        let mut swept = Swept::default();
        for (label, id) in &mark.manifests {
            let counts =
                ledger.boxes.get(label).is_some_and(|known| known.saves.iter().any(|save| save.id == *id));
            if !counts {
                crash_point("prune: before an object is deleted");
                self.objects.delete(&ObjectKey::save(&self.uid, label, id)).await?;
                swept.manifests += 1;
            }
        }
        for (domain, id) in &mark.packs {
            if alive.contains_key(id) {
                swept.spared += 1;
                continue;
            }
            crash_point("prune: before an object is deleted");
            self.objects.delete(&ObjectKey::pack(&self.uid, domain, id)).await?;
            swept.packs += 1;
        }
        crash_point("prune: before the mark is cleared");
        update(&*self.catalog, &self.uid, |ledger| {
            ledger.mark = None;
            Ok::<(), PruneError>(())
        })
        .await?;
        Ok(swept)
    }
}

const _: () = assert!(SWEEP_WAIT.as_secs() > URL_LIFETIME_MAX.as_secs());
