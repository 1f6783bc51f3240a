//! A keeper in this process's memory.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cocoonbox_core::machine::Bytes;
use cocoonbox_core::{BoxId, Clock, Timestamp, UserId};
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::sync::watch;

use super::{
    Guest, KeeperError, Moved, RestoreInfo, SaveInfo, SaveReason, SavedEntryInfo, SavedFileReader,
    StateKeeper,
};

type Files = BTreeMap<String, Vec<u8>>;

#[derive(Debug)]
struct Saved {
    info: SaveInfo,
    reason: SaveReason,
    files: Files,
}

#[derive(Debug, Default)]
struct Held {
    files: Files,
    staged: Option<Files>,
    saves: Vec<Saved>,
    /// The save that was restored last, and how many there were then.
    restored: Option<(String, usize)>,
}

#[derive(Debug, Default)]
struct Kept {
    boxes: HashMap<BoxId, Held>,
    failures: BTreeMap<u64, KeeperError>,
    works: u64,
    made: u64,
}

/// A [`StateKeeper`] that forgets everything when it is dropped, for tests of what stands on one; clones share one
/// content.
///
/// It cannot look into boxes: what they hold is what [`write`](Self::write) says.
#[derive(Clone, Debug)]
pub struct MemoryKeeper {
    kept: Arc<Mutex<Kept>>,
    clock: Arc<dyn Clock>,
}

impl MemoryKeeper {
    /// Makes one that holds nothing.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { kept: Arc::default(), clock }
    }

    /// Says what a box has in a file, by its absolute name in the box.
    pub fn write(&self, id: &BoxId, path: &str, bytes: &[u8]) {
        let mut kept = self.kept();
        let files = &mut kept.boxes.entry(id.clone()).or_default().files;
        files.insert(path.trim_start_matches('/').to_owned(), bytes.to_vec());
    }

    /// Returns what a box has in a file.
    pub fn read(&self, id: &BoxId, path: &str) -> Option<Vec<u8>> {
        self.kept().boxes.get(id)?.files.get(path.trim_start_matches('/')).cloned()
    }

    /// Says that a box started: what was staged takes its place.
    pub fn started(&self, id: &BoxId) {
        if let Some(held) = self.kept().boxes.get_mut(id)
            && let Some(staged) = held.staged.take()
        {
            held.files = staged;
        }
    }

    /// Lets the next save, or what is brought back next, fail; called more than once, the ones after it, too.
    pub fn fail_next(&self, error: KeeperError) {
        let mut kept = self.kept();
        let next = kept.failures.last_key_value().map_or(kept.works, |(last, _)| last + 1);
        kept.failures.insert(next, error);
    }

    /// Lets the one after `skipped` others fail.
    pub fn fail_later(&self, skipped: u64, error: KeeperError) {
        let mut kept = self.kept();
        let at = kept.works + skipped;
        kept.failures.insert(at, error);
    }

    /// Returns why a box was saved each time, the first first.
    pub fn reasons(&self, id: &BoxId) -> Vec<SaveReason> {
        let kept = self.kept();
        kept.boxes.get(id).into_iter().flat_map(|held| &held.saves).map(|saved| saved.reason).collect()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails as was asked for, or when nobody is there on the guest's side.
    async fn work(&self, guest: &mut Guest) -> Result<MutexGuard<'_, Kept>, KeeperError> {
        let gone = std::future::poll_fn(|context| {
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            let polled = std::pin::Pin::new(&mut guest.stream).poll_read(context, &mut buffer);
            std::task::Poll::Ready(polled.is_ready() && buffer.filled().is_empty())
        });
        if gone.await {
            return Err(KeeperError::Guest { reason: "it hung up".to_owned() });
        }
        let mut kept = self.kept();
        let work = kept.works;
        kept.works += 1;
        match kept.failures.remove(&work) {
            Some(error) => Err(error),
            None => Ok(kept),
        }
    }
}

impl Held {
    fn find(&self, save: &str) -> Result<&Saved, KeeperError> {
        if !save.is_empty() {
            let missing = || KeeperError::NotFound { what: format!("save {save}") };
            return self.saves.iter().find(|saved| saved.info.id == save).ok_or_else(missing);
        }
        let counts = |saved: &&Saved| saved.reason != SaveReason::Restore;
        let newest = self.saves.iter().rposition(|saved| counts(&saved));
        match &self.restored {
            Some((id, before)) if newest.is_none_or(|newest| newest < *before) => self.find(id),
            _ => self
                .saves
                .iter()
                .rfind(counts)
                .ok_or_else(|| KeeperError::NotFound { what: "save yet".to_owned() }),
        }
    }
}

fn total(files: &Files) -> u64 {
    files.values().map(|bytes| bytes.len() as u64).sum()
}

fn told(progress: &watch::Sender<Moved>, files: &Files) -> RestoreInfo {
    let (count, bytes) = (files.len() as u64, total(files));
    let moved = Moved {
        bytes: Bytes { done: bytes, total: bytes },
        files: count,
        files_total: count,
        new_bytes: bytes,
    };
    progress.send_replace(moved);
    RestoreInfo { files: count, bytes, fetched: bytes }
}

/// Returns a path in its one spelling, without the first slash.
fn plain(path: &[u8]) -> Result<String, KeeperError> {
    let reason = "use an absolute path without . and .. parts";
    let wrong = || KeeperError::Invalid { field: "path", reason: reason.to_owned() };
    let text = std::str::from_utf8(path).map_err(|_| wrong())?;
    let text = text.strip_prefix('/').unwrap_or(text);
    if !text.is_empty() && text.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(wrong());
    }
    Ok(text.to_owned())
}

fn is_under(name: &str, folder: &str) -> bool {
    folder.is_empty()
        || name.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn file_entry(name: &str, bytes: &[u8]) -> SavedEntryInfo {
    let (name, bytes) = (name.as_bytes().to_vec(), bytes.len() as u64);
    SavedEntryInfo { name, kind: "file", bytes, mode: 0o644, modified_at: Timestamp::from_millis(0) }
}

#[derive(Debug)]
struct Opened {
    entry: SavedEntryInfo,
    bytes: Vec<u8>,
}

#[async_trait]
impl SavedFileReader for Opened {
    fn entry(&self) -> &SavedEntryInfo {
        &self.entry
    }
    async fn read(&self, offset: u64, most: u64) -> Result<Vec<u8>, KeeperError> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(self.bytes[from..].iter().take(most).copied().collect())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl StateKeeper for MemoryKeeper {
    async fn save(
        &self,
        mut guest: Guest,
        reason: SaveReason,
        progress: watch::Sender<Moved>,
    ) -> Result<SaveInfo, KeeperError> {
        let mut kept = self.work(&mut guest).await?;
        kept.made += 1;
        let id = format!("{:032x}", kept.made);
        let held = kept.boxes.entry(guest.box_id).or_default();
        let files = held.files.clone();
        let done = told(&progress, &files);
        let mut hash = DefaultHasher::new();
        files.hash(&mut hash);
        let kept_for = match reason {
            SaveReason::Restore => "before a restore",
            SaveReason::Upgrade => "before an upgrade",
            SaveReason::Asked | SaveReason::Sleep => "",
        };
        let info = SaveInfo {
            id,
            at: self.clock.now(),
            files: done.files,
            bytes: done.bytes,
            new_bytes: done.bytes,
            root_hash: format!("{:016x}", hash.finish()),
            kept: kept_for.to_owned(),
            inconsistent: 0,
            skipped: 0,
        };
        held.saves.push(Saved { info: info.clone(), reason, files });
        Ok(info)
    }

    async fn stage(
        &self,
        mut guest: Guest,
        save: &str,
        progress: watch::Sender<Moved>,
    ) -> Result<RestoreInfo, KeeperError> {
        let mut kept = self.work(&mut guest).await?;
        let held = kept.boxes.entry(guest.box_id).or_default();
        let saved = held.find(save)?;
        let (id, files) = (saved.info.id.clone(), saved.files.clone());
        let done = told(&progress, &files);
        held.restored = Some((id, held.saves.len()));
        held.staged = Some(files);
        Ok(done)
    }

    async fn restore_files(
        &self,
        mut guest: Guest,
        save: &str,
        paths: &[Vec<u8>],
        progress: watch::Sender<Moved>,
    ) -> Result<RestoreInfo, KeeperError> {
        let mut kept = self.work(&mut guest).await?;
        let held = kept.boxes.entry(guest.box_id).or_default();
        let mut chosen = Files::new();
        let paths = paths.iter().map(|path| plain(path)).collect::<Result<Vec<_>, _>>()?;
        for path in &paths {
            let files = held.find(save)?.files.iter().filter(|(name, _)| is_under(name, path));
            let found: Files = files.map(|(name, bytes)| (name.clone(), bytes.clone())).collect();
            if found.is_empty() {
                return Err(KeeperError::NotFound { what: "such path in that save".to_owned() });
            }
            chosen.extend(found);
        }
        held.files.retain(|name, _| !paths.iter().any(|path| is_under(name, path)));
        held.files.extend(chosen.clone());
        Ok(told(&progress, &chosen))
    }

    async fn saves(&self, _: &UserId, box_id: &BoxId) -> Result<Vec<SaveInfo>, KeeperError> {
        let kept = self.kept();
        let saves = kept.boxes.get(box_id).into_iter().flat_map(|held| held.saves.iter().rev());
        Ok(saves.map(|saved| saved.info.clone()).collect())
    }

    async fn browse(
        &self,
        _: &UserId,
        box_id: &BoxId,
        save: &str,
        folder: &[u8],
    ) -> Result<Vec<SavedEntryInfo>, KeeperError> {
        let folder = plain(folder)?;
        let kept = self.kept();
        let none = Held::default();
        let saved = kept.boxes.get(box_id).unwrap_or(&none).find(save)?;
        if saved.files.contains_key(&folder) {
            return Err(KeeperError::Invalid {
                field: "path",
                reason: "it is no folder in that save".to_owned(),
            });
        }
        let mut entries: BTreeMap<String, SavedEntryInfo> = BTreeMap::new();
        for (path, bytes) in saved.files.iter().filter(|(path, _)| is_under(path, &folder)) {
            let rest = path[folder.len()..].trim_start_matches('/');
            let (name, entry) = match rest.split_once('/') {
                Some((name, _)) => {
                    (name, SavedEntryInfo { kind: "directory", mode: 0o755, ..file_entry(name, &[]) })
                }
                None => (rest, file_entry(rest, bytes)),
            };
            entries.insert(name.to_owned(), entry);
        }
        if entries.is_empty() && !folder.is_empty() {
            return Err(KeeperError::NotFound { what: "such path in that save".to_owned() });
        }
        Ok(entries.into_values().collect())
    }

    async fn open(
        &self,
        _: &UserId,
        box_id: &BoxId,
        save: &str,
        file: &[u8],
    ) -> Result<Box<dyn SavedFileReader>, KeeperError> {
        let name = plain(file)?;
        let kept = self.kept();
        let none = Held::default();
        let files = &kept.boxes.get(box_id).unwrap_or(&none).find(save)?.files;
        let Some(bytes) = files.get(&name) else {
            if files.keys().any(|path| is_under(path, &name)) {
                return Err(KeeperError::Invalid {
                    field: "path",
                    reason: "it is no file in that save".to_owned(),
                });
            }
            return Err(KeeperError::NotFound { what: "such path in that save".to_owned() });
        };
        let short = name.rsplit('/').next().unwrap_or_default();
        Ok(Box::new(Opened { entry: file_entry(short, bytes), bytes: bytes.clone() }))
    }

    async fn forget(&self, _: &UserId, box_id: &BoxId) -> Result<(), KeeperError> {
        if let Some(held) = self.kept().boxes.get_mut(box_id) {
            held.saves.clear();
            held.restored = None;
        }
        Ok(())
    }
}
