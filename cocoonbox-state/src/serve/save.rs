//! The future that drives a save: it puts what the threads pack, and the manifest last.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cocoonbox_core::{Clock, Entropy, Retry, Timestamp};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::worker::{Engine, Known, Request, Requests};
use super::{GatherInput, blocking, gather, retried};
use crate::cache::{self, CacheFile};
use crate::crash::crash_point;
use crate::manifest::{CHAIN_MAX, Index, ManifestPlan, SaveRecord, load_chain, write_manifest};
use crate::object::{ByteRange, Fetch, ObjectError, Upload};
use crate::pack::{ClosedPack, GroupPlace, Packer};
use crate::save::{PreparedSave, SaveError, SaveOptions};
use crate::scan::Cached;
use crate::tree::{ChunkTable, Tree, changes, root_hash};
use crate::{BoxKeys, ObjectKey, PackId, RootHash, SaveId};

/// Objects that are put at once.
const PUTS: usize = 3;

/// What a save stands on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SaveContext {
    /// Reads earlier saves.
    pub fetch: Arc<dyn Fetch>,
    /// Puts packs and the manifest.
    pub upload: Arc<dyn Upload>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Draws ids.
    pub entropy: Arc<dyn Entropy>,
}

impl SaveContext {
    /// Puts it together.
    pub fn new(
        fetch: Arc<dyn Fetch>,
        upload: Arc<dyn Upload>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { fetch, upload, clock, entropy }
    }
}

fn machine(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SaveError {
    SaveError::Machine { source: io::Error::other(source) }
}

/// What is known of the save before.
#[derive(Debug, Default)]
struct Before {
    table: ChunkTable,
    cache: Option<CacheFile>,
    /// The tree to which a delta can be written, and how.
    base: Option<(Option<Tree>, u32, u64)>,
}

impl Before {
    /// Returns the base's tree, chain and room.
    fn base(&self) -> Option<(&Tree, u32, u64)> {
        let (tree, chain, room) = self.base.as_ref()?;
        let cached = self.cache.as_ref().map(|cache| &cache.cached.tree);
        Some((tree.as_ref().or(cached)?, *chain, *room))
    }
}

async fn before(keys: &BoxKeys, options: &SaveOptions, context: &SaveContext) -> Result<Before, SaveError> {
    let mut before = Before::default();
    if let Some(path) = options.cache.clone() {
        let keys = keys.clone();
        let load = move || {
            let mut table = ChunkTable::default();
            Ok(cache::load(&keys, &path, &mut table).map(|cache| (cache, table)))
        };
        if let Some((cache, table)) = blocking(load).await.map_err(machine)? {
            before.table = table;
            if Some(cache.save) == options.base {
                before.base = Some((None, cache.chain, cache.room));
            }
            before.cache = Some(cache);
        }
    }
    if let (Some(base), None) = (options.base, &before.base) {
        match load_chain(&*context.fetch, keys, &base, &mut before.table).await {
            Ok((manifest, tree, room)) => {
                let chain = manifest.index.base.map_or(0, |base| base.1);
                before.base = Some((Some(tree), chain, room));
            }
            // what is damaged is not built upon: this save is whole by itself
            Err(error) if error.retry() == Retry::Never => {}
            Err(source) => return Err(SaveError::Base { source }),
        }
    }
    Ok(before)
}

/// What the threads made.
#[derive(Debug)]
struct Outcome {
    manifest: Vec<u8>,
    delta: bool,
    root_hash: RootHash,
    record: SaveRecord,
    cache: CacheFile,
    table: ChunkTable,
}

#[derive(Debug)]
struct Work {
    keys: BoxKeys,
    options: SaveOptions,
    entropy: Arc<dyn Entropy>,
    before: Before,
    id: SaveId,
    now: Timestamp,
}

impl Work {
    fn run(self, requests: Requests) -> Result<Outcome, SaveError> {
        let Self { keys, options, entropy, mut before, id, now } = self;
        let known = Known::new(std::mem::take(&mut before.table), options.view.as_ref());
        let mut engine = Engine::new(&keys, &*entropy, &options.owners, &options.neighbours, known);
        engine.level = options.level;
        engine.view = options.view.as_ref();
        engine.packer = Some(Mutex::new(Packer::new(keys.clone(), options.pack_size)));
        engine.requests = Some(requests);
        engine.progress = options.progress.as_ref();
        let cached = before.cache.as_ref().map(|cache| &cache.cached);
        let (tree, mut record) = gather(&engine, &GatherInput::of(&options, cached))?;
        let last = engine
            .packer
            .as_ref()
            .and_then(|packer| packer.lock().unwrap_or_else(PoisonError::into_inner).close(false));
        if let Some(pack) = last {
            engine.send(Request::Pack(pack)).map_err(machine)?;
        }
        // no more will be asked: the driver ends once all is put
        engine.requests = None;
        record.stats.stored_bytes = engine.stored.load(Ordering::Relaxed);
        let known = engine.known.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (reclaimed, table) = (known.reclaimed, known.table);
        let root_hash = root_hash(&keys, &tree, &table).map_err(machine)?;

        let mut index = Index {
            root_hash,
            created: now,
            base: None,
            root: tree.root.clone(),
            record: record.clone(),
            removed: Vec::new(),
            segments: Vec::new(),
        };
        let mut delta = None;
        if let (Some(base_id), Some((base, chain, room))) = (options.base, before.base())
            && chain < CHAIN_MAX
            && !options.full
            && !reclaimed
        {
            let change = changes(base, &tree);
            let mut index = index.clone();
            index.base = Some((base_id, chain + 1));
            index.removed = change.removed;
            let plan = ManifestPlan { tree: &tree, table: &table, listings: change.listings };
            let bytes = write_manifest(&keys, &id, &plan, index, options.level).map_err(machine)?;
            let length = bytes.len() as u64;
            if length <= room {
                delta = Some((bytes, chain + 1, room - length));
            }
        }
        let is_delta = delta.is_some();
        let (manifest, chain, room) = if let Some(delta) = delta {
            delta
        } else {
            index.base = None;
            let listings = (0..tree.listings.len()).collect();
            let plan = ManifestPlan { tree: &tree, table: &table, listings };
            let bytes = write_manifest(&keys, &id, &plan, index, options.level).map_err(machine)?;
            let room = bytes.len() as u64 / 3;
            (bytes, 0, room)
        };
        let scanned = i128::from(now.micros()) * 1000;
        let cache = CacheFile { save: id, chain, room, cached: Cached { tree, scanned } };
        Ok(Outcome { manifest, delta: is_delta, root_hash, record, cache, table })
    }
}

async fn put(context: &SaveContext, key: ObjectKey, bytes: Bytes) -> Result<(), SaveError> {
    let done = retried(&*context.entropy, |attempt| {
        let (upload, key, bytes) = (&context.upload, &key, bytes.clone());
        async move {
            match upload.put(key, bytes).await {
                // the name is random and ours: an attempt before this one got through
                Err(ObjectError::AlreadyExists) if attempt > 0 => Ok(()),
                done => done,
            }
        }
    });
    done.await.map_err(|source| SaveError::Put { key: key.clone(), source })
}

async fn fetch_group(context: &SaveContext, keys: &BoxKeys, place: &GroupPlace) -> Option<Bytes> {
    let key = ObjectKey::pack(keys.uid(), keys.domain(), &place.pack);
    let span = u64::from(place.offset)..u64::from(place.offset) + u64::from(place.sealed);
    let get = |_| context.fetch.get(&key, ByteRange::Span(span.clone()));
    retried(&*context.entropy, get).await.ok().map(|fetched| fetched.bytes)
}

/// Makes a save and puts its objects; it counts once it is committed.
///
/// # Errors
/// See [`SaveError`]. What was put stays put and is found again by the next try, or pruned.
pub async fn save(
    keys: &BoxKeys,
    options: &SaveOptions,
    context: &SaveContext,
) -> Result<PreparedSave, SaveError> {
    if !(4 << 20..=32 << 20).contains(&options.pack_size) {
        return Err(SaveError::Misuse { what: "a pack is 4 to 32 MiB" });
    }
    let before = before(keys, options, context).await?;
    let id = SaveId::random(&*context.entropy).map_err(machine)?;
    let now = context.clock.now();
    let (requests, mut asked) = mpsc::channel(1);
    let work = Work {
        keys: keys.clone(),
        options: options.clone(),
        entropy: Arc::clone(&context.entropy),
        before,
        id,
        now,
    };
    let threads = tokio::task::spawn_blocking(move || work.run(requests));

    let mut packs: BTreeMap<PackId, u64> = BTreeMap::new();
    let mut under_way: FuturesUnordered<BoxFuture<'_, Result<(), SaveError>>> = FuturesUnordered::new();
    let mut open = true;
    while open || !under_way.is_empty() {
        tokio::select! {
            request = asked.recv(), if open && under_way.len() < PUTS => match request {
                Some(Request::Pack(ClosedPack { id, bytes })) => {
                    packs.insert(id, bytes.len() as u64);
                    let key = ObjectKey::pack(keys.uid(), keys.domain(), &id);
                    under_way.push(Box::pin(async move {
                        crash_point("save: before a pack is put");
                        put(context, key, bytes.into()).await?;
                        crash_point("save: after a pack was put");
                        Ok(())
                    }));
                }
                Some(Request::Group(place, answer)) => under_way.push(Box::pin(async move {
                    let _ = answer.send(fetch_group(context, keys, &place).await);
                    Ok(())
                })),
                None => open = false,
            },
            Some(done) = under_way.next(), if !under_way.is_empty() => done?,
        }
    }
    drop(under_way);
    let outcome = match threads.await {
        Ok(outcome) => outcome?,
        Err(error) => return Err(machine(error)),
    };
    let manifest_length = outcome.manifest.len() as u64;
    crash_point("save: before the manifest is put");
    put(context, ObjectKey::save(keys.uid(), keys.box_label(), &id), outcome.manifest.into()).await?;
    crash_point("save: after the manifest was put");
    if let Some(path) = options.cache.clone() {
        let keys = keys.clone();
        let (file, table) = (outcome.cache, outcome.table);
        // without it the next save reads more
        let _ = blocking(move || cache::store(&keys, &path, &file, &table)).await;
    }
    Ok(PreparedSave {
        id,
        uid: keys.uid().clone(),
        box_label: keys.box_label().clone(),
        domain: keys.domain().clone(),
        base: options.base,
        delta: outcome.delta,
        root_hash: outcome.root_hash,
        created: now,
        record: outcome.record,
        packs,
        manifest_length,
        sweeps: options.view.as_ref().map_or(0, |view| view.sweeps),
    })
}
