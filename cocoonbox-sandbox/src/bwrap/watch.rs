//! Looking at what boxes have on disk, and holding still who is over its limit.
//!
//! A box is looked at again before it could fill what it has left, and rarely when that is much; the machine's own
//! reserve is looked at each time.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::{BackendError, HibernateTo, SandboxId};
use serde::{Deserialize, Serialize};

use super::error::refused;
use super::journal::{Phase, Process, Record};
use super::limit::{DiskLimit, Tier};
use super::registry::{Entry, Kind, hold};
use super::usage::{self, Found, Usage};
use super::work::left_behind;
use super::{Inner, process, serve, volume};

/// The pause between two rounds.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// The longest that a box goes unseen.
const RARELY: Duration = Duration::from_secs(30);
/// What a box may write in a second, at the most that is reckoned with.
const BYTES_PER_SECOND: u64 = 512 * 1024 * 1024;
/// What a box may make in a second.
const FILES_PER_SECOND: u64 = 20_000;
/// A look takes at most this part of the time.
const SHARE: u32 = 50;
/// Growth between two looks that counts when the machine is short of disk.
const GROWTH: u64 = 4 * 1024 * 1024;

/// That a box was over its limit, until it is under it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Over {
    /// Why it is held still; nothing when it was woken since.
    pub(super) held: Option<String>,
    /// What it may have until then.
    pub(super) allowed: Usage,
}

/// What was seen, and when to look again.
#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: BTreeMap<SandboxId, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    bytes: u64,
    /// Since the watch began.
    due: Duration,
}

/// What a look at a box leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It may go on.
    Well,
    /// It was over its limit and is not any more.
    Under,
    /// It is held still.
    Hold(String),
}

impl Inner {
    /// Looks at the boxes that are due at `now`, counted from when the watch began.
    pub(super) async fn look(self: &Arc<Self>, watch: &mut Watch, now: Duration) {
        let running: Vec<_> = hold(&self.registry)
            .entries
            .values()
            .filter(|entry| entry.kind == Kind::Claim)
            .cloned()
            .collect();
        watch.seen.retain(|id, _| running.iter().any(|entry| entry.id == *id));
        let (free, reserve) = self.disk_left().unwrap_or((u64::MAX, 0));
        for entry in running {
            let last = watch.seen.get(&entry.id).copied();
            if free >= reserve && last.is_some_and(|last| last.due > now) {
                continue;
            }
            // a box that is worked on is looked at the next time
            let Ok(record) = entry.turn.try_lock().map(|record| record.clone()) else { continue };
            if record.phase != Phase::Running {
                watch.seen.remove(&entry.id);
                continue;
            }
            let tier = self.config.limits.tier(record.size);
            let (found, took) = serve::timed(self.disk_used(&entry, &record, &tier)).await;
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(sandbox = %entry.id, error, "a box's files could not be looked at");
                    continue;
                }
            };
            let short = (free < reserve).then(|| {
                let growth = if free < reserve / 2 { 64 * 1024 } else { GROWTH };
                last.map_or(u64::MAX, |last| last.bytes.saturating_add(growth))
            });
            let done = match judge(&found, &tier, record.over.as_ref(), short) {
                Verdict::Well => Ok(()),
                Verdict::Under => self.forget_over(&entry).await,
                Verdict::Hold(reason) => self.hold_over(&entry, &tier, reason).await,
            };
            if let Err(error) = done {
                left_behind(&entry.id, &error);
            }
            let bytes = match found {
                Found::Used(used) => used.bytes,
                Found::TooDeep => 0,
            };
            let due = now + next(&found, &allowed(&tier, record.over.as_ref()), took);
            watch.seen.insert(entry.id.clone(), Seen { bytes, due });
        }
    }

    /// Returns the free bytes of the data directory's file system, and how many of them are the machine's own.
    fn disk_left(&self) -> Option<(u64, u64)> {
        let found = rustix::fs::statvfs(&self.data).ok()?;
        let total = found.f_blocks.saturating_mul(found.f_frsize);
        Some((found.f_bavail.saturating_mul(found.f_frsize), self.config.limits.reserve.disk_of(total)))
    }

    async fn disk_used(&self, entry: &Entry, record: &Record, tier: &Tier) -> Result<Found, BackendError> {
        let (directory, files) = (entry.directory.clone(), entry.directory.join("files"));
        let limit = tier.disk_bytes;
        let most = tier.files().saturating_mul(2);
        let processes =
            record.process.as_ref().map(|first| self.members(&entry.id, first)).unwrap_or_default();
        // what belongs to a box's own uid and shuts everybody out is opened by who may
        let map = record.uid.and(self.map.clone());
        serve::blocking(move || {
            let look = || {
                // what it holds is the kernel's affair, what it takes of the machine's disk is ours
                if let Some((_, taken)) = volume::usage(&directory)? {
                    return Ok(Found::Used(Usage { bytes: taken.min(limit), files: 0 }));
                }
                let found = match &map {
                    Some(map) => Found::Used(map.measure(&files)?),
                    None => usage::measure(&files, most)?,
                };
                let Found::Used(mut used) = found else { return Ok(found) };
                let device = fs::metadata(&files)?.dev();
                let removed = match &map {
                    Some(map) => map.removed(&processes, device)?,
                    None => usage::removed(&processes, device),
                };
                used.bytes = used.bytes.saturating_add(removed);
                io::Result::Ok(Found::Used(used))
            };
            look().map_err(refused("a box's files could not be measured"))
        })
        .await
    }

    /// The processes of a box, as its cgroup lists them.
    fn members(&self, id: &SandboxId, first: &Process) -> Vec<i32> {
        match self.cgroup_of(id, first) {
            Ok(Some(cgroup)) => cgroup.members(),
            _ => process::tree(first.pid).into_iter().map(|(pid, _)| pid).collect(),
        }
    }

    /// Holds a box still for `reason`.
    async fn hold_over(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        tier: &Tier,
        reason: String,
    ) -> Result<(), BackendError> {
        let mut record = self.turn(entry).await?;
        if record.phase != Phase::Running {
            return Ok(());
        }
        tracing::warn!(sandbox = %entry.id, reason, "a box is held still");
        let before = record.over.take();
        let first = before.is_none();
        record.over = Some(Over { held: Some(reason), allowed: allowed(tier, before.as_ref()) });
        if let Err(error) = self.hibernate(entry, &mut record, HibernateTo::Memory).await {
            left_behind(&entry.id, &error);
            // who does not stand still is ended
            self.hibernate(entry, &mut record, HibernateTo::Disk).await?;
        }
        let found = self.disk_used(entry, &record, tier).await?;
        if let (Found::Used(used), Some(over)) = (found, &mut record.over) {
            over.allowed = grace(&used, tier, first);
        }
        entry.store(&record).await?;
        entry.show(&record);
        Ok(())
    }

    async fn forget_over(&self, entry: &Arc<Entry>) -> Result<(), BackendError> {
        let mut record = self.turn(entry).await?;
        record.over = None;
        entry.store(&record).await?;
        entry.show(&record);
        Ok(())
    }

    /// Whether boxes are looked at.
    pub(super) fn watches(&self) -> bool {
        self.config.limits.disk != DiskLimit::Off
    }
}

/// What a box may have.
fn allowed(tier: &Tier, over: Option<&Over>) -> Usage {
    let own = Usage { bytes: tier.disk_bytes, files: tier.files() };
    over.map_or(own, |over| Usage {
        bytes: own.bytes.max(over.allowed.bytes),
        files: own.files.max(over.allowed.files),
    })
}

/// What a box that has `used` may have once it is woken: a little more, to tidy up with, the first time.
fn grace(used: &Usage, tier: &Tier, first: bool) -> Usage {
    let part = u64::from(first);
    Usage {
        bytes: used.bytes.saturating_add(part * tier.disk_bytes / 20),
        files: used.files.saturating_add(part * tier.files() / 20),
    }
}

/// Decides about a box; `short` is what it may have when the machine is short of disk.
fn judge(found: &Found, tier: &Tier, over: Option<&Over>, short: Option<u64>) -> Verdict {
    const MIB: u64 = 1024 * 1024;
    let Found::Used(used) = found else {
        return Verdict::Hold("too many of its directories are nested too deep to be counted".to_owned());
    };
    let own = allowed(tier, None);
    if !used.fits(&allowed(tier, over)) {
        let (has, may) = if used.bytes > own.bytes {
            (format!("{} MiB on disk", used.bytes / MIB), format!("{} MiB", own.bytes / MIB))
        } else {
            (format!("{} files", used.files), own.files.to_string())
        };
        return Verdict::Hold(format!("it has {has}, {may} at most: wake it, and remove what is too much"));
    }
    if short.is_some_and(|most| used.bytes > most) {
        return Verdict::Hold("the machine is short of disk, and it went on writing".to_owned());
    }
    if over.is_some() && used.fits(&own) { Verdict::Under } else { Verdict::Well }
}

/// Returns how long a box may go unseen.
fn next(found: &Found, allowed: &Usage, took: Duration) -> Duration {
    let Found::Used(used) = found else { return PAUSE };
    let bytes = allowed.bytes.saturating_sub(used.bytes) / BYTES_PER_SECOND;
    let files = allowed.files.saturating_sub(used.files) / FILES_PER_SECOND;
    Duration::from_secs(bytes.min(files)).clamp(PAUSE, RARELY).max(took.saturating_mul(SHARE))
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::backend::Size;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn used(bytes: u64, files: u64) -> Found {
        Found::Used(Usage { bytes, files })
    }

    #[test]
    fn a_box_is_judged_by_its_size_and_by_what_it_was_granted() {
        let tier = Tier::of(Size::Small);
        let files = tier.files();
        let over = Over { held: None, allowed: Usage { bytes: 12 * GIB, files } };
        let holds = |verdict: &Verdict| matches!(verdict, Verdict::Hold(_));
        assert_eq!(judge(&used(10 * GIB, 5), &tier, None, None), Verdict::Well);
        let verdict = judge(&used(10 * GIB + 1, 5), &tier, None, None);
        let expected = "it has 10240 MiB on disk, 10240 MiB at most: wake it, and remove what is too much";
        assert_eq!(verdict, Verdict::Hold(expected.to_owned()));
        assert!(holds(&judge(&used(0, files + 1), &tier, None, None)));
        assert!(holds(&judge(&Found::TooDeep, &tier, None, None)));
        // one that was woken tidies up
        assert_eq!(judge(&used(11 * GIB, 5), &tier, Some(&over), None), Verdict::Well);
        assert!(holds(&judge(&used(13 * GIB, 5), &tier, Some(&over), None)));
        assert_eq!(judge(&used(9 * GIB, 5), &tier, Some(&over), None), Verdict::Under);
        // a machine that is short of disk
        assert!(holds(&judge(&used(GIB, 5), &tier, None, Some(GIB - 1))));
        assert_eq!(judge(&used(GIB, 5), &tier, None, Some(GIB)), Verdict::Well);
    }

    #[test]
    fn the_first_grace_is_the_only_one_with_room() {
        let tier = Tier::of(Size::Small);
        let used = Usage { bytes: 11 * GIB, files: 7 };
        assert_eq!(grace(&used, &tier, true).bytes, 11 * GIB + GIB / 2);
        assert_eq!(grace(&used, &tier, false), used);
    }

    #[test]
    fn who_has_little_left_is_looked_at_often() {
        let all = Usage { bytes: 100 * GIB, files: 10_000_000 };
        let quick = Duration::from_millis(1);
        assert_eq!(next(&used(0, 0), &all, quick), RARELY);
        assert_eq!(next(&used(95 * GIB, 0), &all, quick), Duration::from_secs(10));
        assert_eq!(next(&used(100 * GIB, 0), &all, quick), PAUSE);
        assert_eq!(next(&used(0, 9_900_000), &all, quick), Duration::from_secs(5));
        assert_eq!(next(&used(101 * GIB, 0), &all, Duration::from_secs(2)), Duration::from_secs(100));
        assert_eq!(next(&Found::TooDeep, &all, quick), PAUSE);
    }
}
