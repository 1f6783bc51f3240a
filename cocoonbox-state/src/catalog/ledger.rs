use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cocoonbox_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::manifest::SaveStats;
use crate::save::PreparedSave;
use crate::{Domain, Label, PackId, RootHash, SaveId};

/// Why a save is kept whatever its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Keep {
    /// It was made before an upgrade.
    BeforeUpgrade,
    /// It was made before a restore.
    BeforeRestore,
    /// Somebody asked for it.
    Asked,
}

/// A save that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SaveEntry {
    /// Its id.
    pub id: SaveId,
    /// The save that its manifest rests on.
    pub base: Option<SaveId>,
    /// When it was made, in microseconds since 1970.
    pub created_micros: i64,
    /// The hash over its tree.
    pub root_hash: RootHash,
    /// Counts.
    pub stats: SaveStats,
    /// Why it is kept whatever its age.
    pub keep: Option<Keep>,
    /// It is gone for users, and its manifest stays for those that rest on it.
    #[serde(default)]
    pub forgotten: bool,
}

impl SaveEntry {
    /// Returns when it was made.
    pub const fn created(&self) -> Timestamp {
        Timestamp::from_micros(self.created_micros)
    }
}

/// The saves of one box, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BoxSaves {
    /// The domain that its packs are in.
    pub domain: Domain,
    /// Its newest save.
    pub head: Option<SaveId>,
    /// All that count, and those they rest on.
    pub saves: Vec<SaveEntry>,
    /// The save that was restored since the newest one was made: what the box has rests on it.
    #[serde(default)]
    pub restored: Option<SaveId>,
}

/// What a prune means to delete, once long enough has passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Mark {
    /// When it was made, by the pruner's clock.
    pub at_micros: i64,
    /// Packs that no save names.
    pub packs: Vec<(Domain, PackId)>,
    /// Manifests that do not count.
    pub manifests: Vec<(Label, SaveId)>,
    /// No save that began before may be committed any more.
    pub sweeping: bool,
}

/// Everything that is known of a user's saves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Ledger {
    /// Boxes and their saves.
    pub boxes: BTreeMap<Label, BoxSaves>,
    /// How many sweeps have begun. A save that saw fewer may rest on what is gone.
    pub sweeps: u64,
    /// A prune that is not over.
    pub mark: Option<Mark>,
    /// Packs that are mostly dead: no save rests on them anew, so that they die.
    pub condemned: BTreeSet<PackId>,
}

/// Why a save is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitRefusal {
    /// Another save of the box was committed meanwhile.
    #[error("another save of the box came first")]
    LostRace {
        /// The box's newest save.
        head: Option<SaveId>,
    },
    /// A sweep began meanwhile, and may have taken what the save rests on.
    #[error("a sweep began since the save did")]
    Overtaken,
    /// The save rests on one that does not count.
    #[error("the save rests on one that is not there")]
    NoBase,
    /// The box's saves are in another domain.
    #[error("the box saves into another domain")]
    OtherDomain,
}

/// Which saves are kept: all of the last day, then the newest of each day and of each week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepRule {
    /// All saves younger than this.
    pub all: Duration,
    /// For how many days the newest of each.
    pub days: u32,
    /// For how many weeks the newest of each.
    pub weeks: u32,
}

impl Default for KeepRule {
    fn default() -> Self {
        Self { all: Duration::from_hours(24), days: 14, weeks: 8 }
    }
}

impl Ledger {
    /// Takes a save in, if it still fits.
    ///
    /// # Errors
    /// See [`CommitRefusal`]; the ledger is then as it was.
    pub fn commit(&mut self, save: &PreparedSave, keep: Option<Keep>) -> Result<(), CommitRefusal> {
        let known = self.boxes.get(&save.box_label);
        let head = known.and_then(|known| known.head);
        if let Some(known) = known {
            if known.saves.iter().any(|entry| entry.id == save.id) {
                // the same commit again: its answer was lost
                return Ok(());
            }
            if known.domain != save.domain {
                return Err(CommitRefusal::OtherDomain);
            }
        }
        if head != save.base {
            return Err(CommitRefusal::LostRace { head });
        }
        if save.sweeps != self.sweeps {
            return Err(CommitRefusal::Overtaken);
        }
        let base = save.base.filter(|_| save.delta);
        if base
            .is_some_and(|base| !known.is_some_and(|known| known.saves.iter().any(|entry| entry.id == base)))
        {
            return Err(CommitRefusal::NoBase);
        }
        let entry = SaveEntry {
            id: save.id,
            base,
            created_micros: save.created.micros(),
            root_hash: save.root_hash,
            stats: save.record.stats,
            keep,
            forgotten: false,
        };
        let known = self.boxes.entry(save.box_label.clone()).or_insert_with(|| BoxSaves {
            domain: save.domain.clone(),
            head: None,
            saves: Vec::new(),
            restored: None,
        });
        known.saves.push(entry);
        known.head = Some(save.id);
        known.restored = None;
        Ok(())
    }

    /// Returns a box's saves that count, the oldest first.
    pub fn saves(&self, box_label: &Label) -> impl Iterator<Item = &SaveEntry> {
        self.boxes.get(box_label).into_iter().flat_map(|known| &known.saves).filter(|save| !save.forgotten)
    }

    /// Returns a box's newest save.
    pub fn head(&self, box_label: &Label) -> Option<SaveId> {
        self.boxes.get(box_label).and_then(|known| known.head)
    }

    /// Sets why a save is kept; returns whether there is such a save.
    pub fn keep(&mut self, box_label: &Label, id: &SaveId, keep: Option<Keep>) -> bool {
        let saves = self.boxes.get_mut(box_label).into_iter().flat_map(|known| &mut known.saves);
        saves.filter(|save| save.id == *id).map(|save| save.keep = keep).count() > 0
    }

    /// Notes which save a box was restored from; returns whether there is such a save.
    pub fn restored(&mut self, box_label: &Label, id: &SaveId) -> bool {
        let Some(known) = self.boxes.get_mut(box_label) else { return false };
        let there = known.saves.iter().any(|save| save.id == *id && !save.forgotten);
        if there {
            known.restored = Some(*id);
        }
        there
    }

    /// Returns the save that holds what a box has, or had last: the one that was restored since the newest was made,
    /// else the newest that no restore made of what it replaced.
    pub fn current(&self, box_label: &Label) -> Option<SaveId> {
        let restored = self.boxes.get(box_label).and_then(|known| known.restored);
        let own = || self.saves(box_label).filter(|save| save.keep != Some(Keep::BeforeRestore));
        restored.or_else(|| own().last().map(|save| save.id))
    }

    /// Forgets all saves of a box; the next prune takes what only they named.
    pub fn forget_box(&mut self, box_label: &Label) -> bool {
        self.boxes.remove(box_label).is_some()
    }

    /// Returns the saves that the rule does not keep, by box; a box's newest is always kept.
    pub fn outdated(&self, rule: &KeepRule, now: Timestamp) -> Vec<(Label, SaveId)> {
        const DAY: u64 = 24 * 3600;
        let mut outdated = Vec::new();
        for (label, known) in &self.boxes {
            let mut seen = BTreeSet::new();
            for save in known.saves.iter().rev().filter(|save| !save.forgotten) {
                let age = now.since(save.created());
                let day = save.created_micros.div_euclid(1_000_000).div_euclid(DAY as i64);
                // weeks begin on Monday; 1970 began on a Thursday
                let week = (day + 3).div_euclid(7);
                let days = age.as_secs() / DAY;
                let first_of_day = seen.insert(("day", day));
                let first_of_week = seen.insert(("week", week));
                let kept = save.keep.is_some()
                    || known.head == Some(save.id)
                    || known.restored == Some(save.id)
                    || age < rule.all
                    || (first_of_day && days < u64::from(rule.days))
                    || (first_of_week && days < u64::from(rule.weeks) * 7);
                if !kept {
                    outdated.push((label.clone(), save.id));
                }
            }
        }
        outdated
    }

    /// Forgets saves, and drops those that nothing rests on.
    pub fn forget(&mut self, saves: &[(Label, SaveId)]) {
        for (label, known) in &mut self.boxes {
            for entry in &mut known.saves {
                if known.head != Some(entry.id)
                    && known.restored != Some(entry.id)
                    && saves.iter().any(|(other, id)| other == label && *id == entry.id)
                {
                    entry.forgotten = true;
                }
            }
            // bases stand before what rests on them
            let mut needed = BTreeSet::new();
            for at in (0..known.saves.len()).rev() {
                let entry = &known.saves[at];
                if !entry.forgotten || needed.contains(&entry.id) {
                    needed.extend(entry.base);
                } else {
                    known.saves.remove(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(ages_hours: &[i64]) -> (Ledger, Label, Timestamp) {
        let label: Label = "cb-a".parse().expect("a label");
        let now = Timestamp::from_millis(1_800_000_000_000);
        let saves: Vec<SaveEntry> = ages_hours
            .iter()
            .enumerate()
            .map(|(number, hours)| SaveEntry {
                id: SaveId::from_bytes([number as u8; 16]),
                base: None,
                created_micros: now.micros() - hours * 3_600_000_000,
                root_hash: RootHash::default(),
                stats: SaveStats::default(),
                keep: None,
                forgotten: false,
            })
            .collect();
        let head = saves.last().map(|save| save.id);
        let known = BoxSaves { domain: Domain::user(), head, saves, restored: None };
        (Ledger { boxes: [(label.clone(), known)].into(), ..Ledger::default() }, label, now)
    }

    #[test]
    fn the_last_day_is_kept_whole_then_one_of_each_day_and_week() {
        // two in one hour long ago, two on one day last week, three today
        let (mut ledger, label, now) = ledger(&[24 * 200, 24 * 40, 24 * 40 - 1, 24 * 7, 24 * 7 - 1, 5, 3, 1]);
        let outdated: Vec<u8> =
            ledger.outdated(&KeepRule::default(), now).iter().map(|(_, id)| id.as_bytes()[0]).collect();
        assert_eq!(outdated, [3, 1, 0]);
        assert!(ledger.keep(&label, &SaveId::from_bytes([0; 16]), Some(Keep::BeforeUpgrade)));
        assert_eq!(ledger.outdated(&KeepRule::default(), now).len(), 2);
    }

    #[test]
    fn what_others_rest_on_stays_though_forgotten() {
        let (mut ledger, label, _) = ledger(&[3, 2, 1]);
        if let Some(known) = ledger.boxes.get_mut(&label) {
            known.saves[1].base = Some(known.saves[0].id);
            known.saves[2].base = Some(known.saves[1].id);
        }
        let all: Vec<(Label, SaveId)> = ledger.saves(&label).map(|save| (label.clone(), save.id)).collect();
        ledger.forget(&all);
        assert_eq!(ledger.saves(&label).count(), 1);
        assert_eq!(ledger.boxes[&label].saves.len(), 3);
    }

    #[test]
    fn what_was_restored_is_what_the_box_has_until_it_is_saved_again() {
        let (mut ledger, label, now) = ledger(&[24 * 200, 24 * 200 - 1, 1]);
        let ids: Vec<SaveId> = ledger.saves(&label).map(|save| save.id).collect();
        assert_eq!(ledger.current(&label), Some(ids[2]));
        assert!(ledger.keep(&label, &ids[2], Some(Keep::BeforeRestore)));
        assert_eq!(ledger.current(&label), Some(ids[1]));
        assert!(ledger.restored(&label, &ids[0]));
        assert_eq!(ledger.current(&label), Some(ids[0]));
        // no prune takes it meanwhile
        assert_eq!(ledger.outdated(&KeepRule::default(), now), [(label.clone(), ids[1])]);
        ledger.forget(&[(label.clone(), ids[0]), (label.clone(), ids[1])]);
        assert_eq!(ledger.saves(&label).count(), 2);
        assert!(!ledger.restored(&label, &ids[1]));
        assert_eq!(ledger.current(&label), Some(ids[0]));
    }
}
