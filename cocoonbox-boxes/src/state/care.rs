//! Looking after a user's saves: proving, pruning, and the key to them.

use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::machine::Bytes;
use cocoonbox_core::{BoxId, Timestamp, UserId};
use cocoonbox_state::{
    Account, Depth, KeepRule, Label, Ledger, Progress, PruneError, PrunePlan, SWEEP_WAIT, Vault, recover,
    update_ledger,
};
use tokio::sync::watch;

use super::SealedKeeper;
use super::keeper::{catalog, chained, read};
use super::serve::heard_of;
use crate::care::{CheckInfo, DamageInfo, PrintedStateKey, PruneInfo, RecoveredInfo, StateCare};
use crate::keeper::KeeperError;

impl SealedKeeper {
    pub(super) async fn vault(&self, owner: &UserId) -> Result<Vault, KeeperError> {
        let Account { uid, key } = self.keys.of(owner).await?;
        Ok(Vault::new(
            Arc::clone(&self.objects),
            Arc::clone(&self.catalog),
            key,
            uid,
            Arc::clone(&self.clock),
            Arc::clone(&self.entropy),
        ))
    }

    async fn ledger(&self, owner: &UserId) -> Result<Ledger, KeeperError> {
        let Account { uid, .. } = self.keys.of(owner).await?;
        Ok(self.catalog.load(&uid).await.map_err(catalog)?.0)
    }
}

fn pruned(error: PruneError) -> KeeperError {
    match error {
        PruneError::Read(error) => read(error),
        PruneError::Catalog(error) => catalog(error),
        PruneError::UnderWay => KeeperError::Raced,
        error => chained(&error),
    }
}

fn told(plan: &PrunePlan) -> PruneInfo {
    PruneInfo {
        forget: plan.forget.iter().map(|(label, id)| (label.to_string(), id.to_string())).collect(),
        packs: plan.packs.len() as u64,
        manifests: plan.manifests.len() as u64,
        bytes: plan.bytes,
        ..PruneInfo::default()
    }
}

/// When what a ledger's mark names may go.
fn sweep_at(ledger: &Ledger) -> Option<Timestamp> {
    ledger.mark.as_ref().map(|mark| Timestamp::from_micros(mark.at_micros).plus(SWEEP_WAIT))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl StateCare for SealedKeeper {
    async fn check(
        &self,
        owner: &UserId,
        box_id: &BoxId,
        save: &str,
        sample: u32,
        progress: watch::Sender<Bytes>,
    ) -> Result<CheckInfo, KeeperError> {
        let (keys, ledger) = self.opened(owner, box_id).await?;
        let save = Self::pick(&ledger, &keys, save)?;
        let depth = if sample > 1 { Depth::Sample(sample) } else { Depth::All };
        let vault = self.vault(owner).await?;
        let (sender, heard) = watch::channel(Progress::default());
        let checking = vault.check_with_progress(&keys, &save, depth, Some(sender));
        let at = |at: &Progress| Bytes { done: at.bytes, total: at.bytes_total };
        let tell = |now: &Progress| {
            progress.send_replace(at(now));
        };
        let report = heard_of(checking, heard, tell).await.map_err(read)?;
        let damages = report.damages.into_iter().map(|damage| DamageInfo {
            object: damage.key.to_string(),
            missing: damage.missing,
            paths: damage.paths.iter().map(|path| [b"/", path.as_bytes()].concat()).collect(),
        });
        Ok(CheckInfo {
            save: save.to_string(),
            parts: report.groups,
            bytes: report.bytes,
            damages: damages.collect(),
        })
    }

    async fn plan_prune(&self, owner: &UserId) -> Result<PruneInfo, KeeperError> {
        let plan = self.vault(owner).await?.plan_prune(&KeepRule::default()).await.map_err(pruned)?;
        Ok(PruneInfo { sweep_at: sweep_at(&self.ledger(owner).await?), ..told(&plan) })
    }

    async fn prune(&self, owner: &UserId) -> Result<PruneInfo, KeeperError> {
        let vault = self.vault(owner).await?;
        let swept = match vault.sweep().await {
            Ok(swept) => swept,
            Err(PruneError::TooEarly { .. }) => {
                let sweep_at = sweep_at(&self.ledger(owner).await?);
                return Ok(PruneInfo { sweep_at, ..PruneInfo::default() });
            }
            Err(error) => return Err(pruned(error)),
        };
        let plan = vault.plan_prune(&KeepRule::default()).await.map_err(pruned)?;
        let told = PruneInfo { deleted: (swept.packs + swept.manifests) as u64, ..told(&plan) };
        if plan.is_empty() {
            return Ok(told);
        }
        vault.mark(&plan).await.map_err(pruned)?;
        Ok(PruneInfo { sweep_at: sweep_at(&self.ledger(owner).await?), ..told })
    }

    async fn owners(&self) -> Result<Vec<UserId>, KeeperError> {
        self.keys.owners().await
    }

    async fn export_key(&self, owner: &UserId) -> Result<PrintedStateKey, KeeperError> {
        let account = self.keys.of(owner).await?;
        Ok(PrintedStateKey::new(account.export().reveal().to_owned()))
    }

    async fn import_key(&self, owner: &UserId, printed: &str) -> Result<Vec<RecoveredInfo>, KeeperError> {
        let invalid = |reason: String| KeeperError::Invalid { field: "key", reason };
        let account = Account::import(printed).map_err(|error| invalid(error.to_string()))?;
        let own = self.keys.of(owner).await?;
        let again = own.uid == account.uid && own.key.is(&account.key);
        let (held, _) = self.catalog.load(&account.uid).await.map_err(catalog)?;
        if !again {
            if !self.ledger(owner).await?.boxes.is_empty() {
                let reason = "you have saves under another key here, which would be lost: import it as a user \
                              without saves";
                return Err(KeeperError::Held { reason: reason.to_owned() });
            }
            if !held.boxes.is_empty() {
                let reason = "this server keeps the saves of that key for somebody already";
                return Err(KeeperError::Held { reason: reason.to_owned() });
            }
        }
        let found = recover(&self.objects, &account.key, &account.uid).await.map_err(read)?;
        // first of the two: an import that breaks off here is gone on with by the same call
        self.keys.replace(owner, &account).await?;
        let take_in = |ledger: &mut Ledger| {
            for (label, known) in &found.boxes {
                // what is known stays as it is known: a save that was forgotten does not come back
                ledger.boxes.entry(label.clone()).or_insert_with(|| known.clone());
            }
            Ok(ledger.boxes.clone())
        };
        let boxes = update_ledger(&*self.catalog, &account.uid, take_in).await.map_err(catalog)?;
        let recovered = |(label, known): (&Label, &cocoonbox_state::BoxSaves)| {
            let saves: Vec<_> = known.saves.iter().filter(|save| !save.forgotten).collect();
            Some(RecoveredInfo {
                box_id: label.as_str().parse().ok()?,
                saves: saves.len() as u64,
                newest: saves.last()?.created(),
            })
        };
        Ok(boxes.iter().filter_map(recovered).collect())
    }
}
