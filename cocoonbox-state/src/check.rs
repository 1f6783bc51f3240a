//! Reading what was saved, and naming what is damaged.

use std::collections::BTreeMap;

use cocoonbox_core::Retry;
use futures::{StreamExt, stream};
use tokio::sync::watch;

use crate::manifest::{ReadError, load_chain};
use crate::object::{ByteRange, Fetch};
use crate::pack::{GroupPlace, open_group};
use crate::serve::{blocking, retried};
use crate::tree::{ChunkTable, TreePath, join};
use crate::vault::Vault;
use crate::{BoxKeys, ObjectKey, Progress, SaveId};

/// How much a check reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Depth {
    /// Every group of the save.
    All,
    /// One of so many groups, other ones each time; and the manifest whole.
    Sample(u32),
}

/// An object that is damaged, and what that costs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Damage {
    /// Which object.
    pub key: ObjectKey,
    /// Whether it is not there at all.
    pub missing: bool,
    /// Whose content is lost, as far as this check read.
    pub paths: Vec<TreePath>,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Groups read.
    pub groups: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Damaged objects; a manifest that is damaged names no paths, since all are lost.
    pub damages: Vec<Damage>,
}

const READS: usize = 4;

fn verify(keys: &BoxKeys, place: &GroupPlace, sealed: &[u8], chunks: &[(u32, crate::tree::Chunk)]) -> bool {
    open_group(keys, place, sealed).is_ok_and(|plain| {
        chunks.iter().all(|(_, chunk)| {
            let content = plain.get(chunk.offset as usize..(chunk.offset + chunk.length) as usize);
            content.is_some_and(|content| keys.chunk_id(content) == chunk.id)
        })
    })
}

impl Vault {
    /// Checks one save.
    ///
    /// # Errors
    /// The store is not available; damage is no error, it is what the report names.
    pub async fn check(&self, keys: &BoxKeys, save: &SaveId, depth: Depth) -> Result<CheckReport, ReadError> {
        self.check_with_progress(keys, save, depth, None).await
    }

    /// Checks one save; `progress` is told bytes read and in all.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub async fn check_with_progress(
        &self,
        keys: &BoxKeys,
        save: &SaveId,
        depth: Depth,
        progress: Option<watch::Sender<Progress>>,
    ) -> Result<CheckReport, ReadError> {
        let mut report = CheckReport::default();
        let mut table = ChunkTable::default();
        let tree = match load_chain(&*self.objects, keys, save, &mut table).await {
            Ok((_, tree, _)) => tree,
            Err(error) if error.retry() == Retry::Never => {
                let (key, missing) = match error {
                    ReadError::Object { key, .. } => (key, true),
                    ReadError::Damaged { key, .. } => (key, false),
                    _ => (ObjectKey::save(keys.uid(), keys.box_label(), save), false),
                };
                report.damages.push(Damage { key, missing, paths: Vec::new() });
                return Ok(report);
            }
            Err(error) => return Err(error),
        };
        let mut by_group: BTreeMap<u32, Vec<(u32, crate::tree::Chunk)>> = BTreeMap::new();
        for (number, chunk) in table.chunks.iter().enumerate() {
            by_group.entry(chunk.group).or_default().push((number as u32, *chunk));
        }
        if let Depth::Sample(one_of) = depth {
            let mut byte = [0; 4];
            let _ = self.entropy.fill(&mut byte);
            let start = u32::from_le_bytes(byte);
            by_group.retain(|group, _| group.wrapping_add(start).is_multiple_of(one_of.max(1)));
        }
        let sealed = |group: &u32| u64::from(table.groups[*group as usize].sealed);
        let mut told = Progress { bytes_total: by_group.keys().map(sealed).sum(), ..Progress::default() };
        let mut reads = stream::iter(by_group)
            .map(|(group, chunks)| {
                let place = table.groups[group as usize];
                let key = ObjectKey::pack(keys.uid(), keys.domain(), &place.pack);
                async move {
                    let span = u64::from(place.offset)..u64::from(place.offset) + u64::from(place.sealed);
                    let get = |_| self.objects.get(&key, ByteRange::Span(span.clone()));
                    let fetched = match retried(&*self.entropy, get).await {
                        Ok(fetched) => fetched.bytes,
                        Err(error) if error.retry() == Retry::Never => {
                            return Ok((key, chunks, Some(true), 0));
                        }
                        Err(source) => return Err(ReadError::Object { key, source }),
                    };
                    let (keys, length) = (keys.clone(), fetched.len());
                    let work = move || Ok((verify(&keys, &place, &fetched, &chunks), chunks));
                    let (good, chunks) = blocking(work).await.map_err(|error| ReadError::Object {
                        key: key.clone(),
                        source: crate::ObjectError::unavailable(error),
                    })?;
                    Ok((key, chunks, (!good).then_some(false), length))
                }
            })
            .buffer_unordered(READS);
        let mut lost: BTreeMap<u32, (ObjectKey, bool)> = BTreeMap::new();
        while let Some(read) = reads.next().await {
            let (key, chunks, damage, length) = read?;
            report.groups += 1;
            report.bytes += length as u64;
            told.bytes = report.bytes;
            if let Some(progress) = &progress {
                progress.send_replace(told);
            }
            if let Some(missing) = damage {
                lost.extend(chunks.iter().map(|(number, _)| (*number, (key.clone(), missing))));
            }
        }
        drop(reads);
        let mut damages: BTreeMap<ObjectKey, Damage> = BTreeMap::new();
        for listing in tree.listings.iter().filter(|_| !lost.is_empty()) {
            for entry in &listing.entries {
                let mut hit: Vec<&(ObjectKey, bool)> =
                    entry.chunks().iter().filter_map(|chunk| lost.get(chunk)).collect();
                hit.dedup_by(|one, other| one.0 == other.0);
                for (key, missing) in hit {
                    let damage = damages.entry(key.clone()).or_insert_with(|| Damage {
                        key: key.clone(),
                        missing: *missing,
                        paths: Vec::new(),
                    });
                    damage.paths.push(TreePath::of(&join(&listing.path, &entry.name)));
                }
            }
        }
        report.damages = damages.into_values().collect();
        Ok(report)
    }
}
