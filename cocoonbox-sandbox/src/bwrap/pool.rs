//! Warm pools: boxes that run and answer before anybody claims them.
//!
//! ```text
//!  start, as any box ── an intent on disk ── in the pool ── taken: an entry of the registry that is a claim
//!                                                             │ host files, names, record written; it answers
//!                                                             └─ the record put in its place: it is somebody's
//! ```
//!
//! Until its record is put a warm box is what an unanswered claim is: a node that opens the directory ends it. So a node
//! that is killed at any point neither loses one nor hands it out twice.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::backend::{
    BackendError, Claim, ClaimRef, ClaimRequest, Doors, HostFile, Nesting, PoolKey, PoolStatus, PoolTarget,
    Pools, SandboxId,
};
use tokio::io::AsyncReadExt as _;

use super::error::{BACKEND, OpenError, invalid, refused};
use super::journal::{Phase, Record};
use super::registry::{Entry, Kind, hold};
use super::start::{self, Places};
use super::work::left_behind;
use super::{BwrapBackend, Inner, channel, disk, hostname, image, process, serve};

/// The file of the pools' targets.
const FILE: &str = "pools.json";
/// How long a warm box's agent has until it serves; one that does not is started by the first call.
const AGENT_LIMIT: Duration = Duration::from_secs(5);

/// What the boxes of one pool have in common beside the key: a box has doors and may nest from its start on, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    doors: Doors,
    nesting: Nesting,
}

impl Shape {
    /// What a person's box asks for, until claims tell otherwise.
    const FIRST: Self = Self { doors: Doors::Bound, nesting: Nesting::Denied };

    fn of(request: &ClaimRequest) -> Self {
        Self { doors: request.doors, nesting: request.nesting }
    }
}

/// One pool. It holds boxes of the shape that was asked for last.
#[derive(Debug)]
pub(super) struct Pool {
    target: PoolTarget,
    shape: Shape,
    warm: VecDeque<Warm>,
}

/// A box that waits, and what is known of it.
#[derive(Debug)]
struct Warm {
    entry: Arc<Entry>,
    record: Record,
}

/// All pools of a node.
#[derive(Debug, Default)]
pub(super) struct PoolSet {
    pools: Vec<Pool>,
    /// Those that nobody will get.
    retired: Vec<Arc<Entry>>,
    /// The node stops: none is started any more.
    closed: bool,
}

impl PoolSet {
    /// Sets the targets; what is too many is retired.
    pub(super) fn set(&mut self, targets: Vec<PoolTarget>) {
        let mut before = std::mem::take(&mut self.pools);
        for target in targets {
            let known = before.iter().position(|pool| pool.target.key == target.key);
            let mut pool = match known {
                Some(at) => before.swap_remove(at),
                None => Pool { target: target.clone(), shape: Shape::FIRST, warm: VecDeque::new() },
            };
            pool.target = target;
            while pool.warm.len() > pool.target.warm as usize {
                self.retired.extend(pool.warm.pop_back().map(|warm| warm.entry));
            }
            self.pools.push(pool);
        }
        self.retired.extend(before.into_iter().flat_map(|pool| pool.warm).map(|warm| warm.entry));
    }

    /// Takes a box that serves `request`.
    fn take(&mut self, request: &ClaimRequest) -> Option<Warm> {
        let serves = |pool: &&mut Pool| {
            let key = &pool.target.key;
            key.image == request.image && key.network == request.network && key.size == request.size
        };
        let pool = self.pools.iter_mut().find(serves)?;
        let asked = Shape::of(request);
        if pool.shape != asked {
            pool.shape = asked;
            self.retired.extend(pool.warm.drain(..).map(|warm| warm.entry));
        }
        pool.warm.pop_front()
    }

    /// Forgets a box that died.
    fn forget(&mut self, id: &SandboxId) {
        for pool in &mut self.pools {
            pool.warm.retain(|warm| warm.entry.id != *id);
        }
        self.retired.retain(|entry| entry.id != *id);
    }

    /// Puts a box that answers into its pool; gives it back when it is not wanted any more.
    fn put(&mut self, key: &PoolKey, shape: Shape, warm: Warm) -> Option<Warm> {
        let pool = self.pools.iter_mut().find(|pool| pool.target.key == *key && pool.shape == shape);
        match pool.filter(|pool| !self.closed && pool.warm.len() < pool.target.warm as usize) {
            Some(pool) => {
                pool.warm.push_back(warm);
                None
            }
            None => Some(warm),
        }
    }

    fn next(&mut self) -> Step {
        if let Some(entry) = self.retired.pop() {
            return Step::End(entry);
        }
        let short = self.pools.iter().find(|pool| pool.warm.len() < pool.target.warm as usize);
        match short.filter(|_| !self.closed) {
            Some(pool) => Step::Start(pool.target.key.clone(), pool.shape),
            None => Step::Rest,
        }
    }
}

/// What the pools need next.
enum Step {
    Start(PoolKey, Shape),
    End(Arc<Entry>),
    Rest,
}

#[async_trait]
impl Pools for BwrapBackend {
    async fn put_pools(&self, targets: Vec<PoolTarget>) -> Result<(), BackendError> {
        let inner = Arc::clone(&self.inner);
        serve::to_the_end(async move {
            inner.check_targets(&targets)?;
            let _turn = inner.settings_turn.lock().await;
            let (data, written) = (inner.data.clone(), targets.clone());
            serve::blocking(move || {
                let bytes = serde_json::to_vec(&written).map_err(io::Error::other);
                bytes
                    .and_then(|bytes| disk::replace(&data, FILE, &bytes, 0o600))
                    .map_err(refused("cannot write the pools' targets"))
            })
            .await?;
            hold(&inner.registry).pools.set(targets);
            inner.refill.notify_one();
            Ok(())
        })
        .await
    }

    async fn pools(&self) -> Result<Vec<PoolStatus>, BackendError> {
        let registry = hold(&self.inner.registry);
        let status = |pool: &Pool| {
            let warm = u32::try_from(pool.warm.len()).unwrap_or(u32::MAX);
            PoolStatus::new(pool.target.clone(), warm, pool.target.warm.saturating_sub(warm))
        };
        Ok(registry.pools.pools.iter().map(status).collect())
    }
}

/// Reads the pools' targets.
pub(super) fn load(data: &Path) -> Result<Vec<PoolTarget>, OpenError> {
    let path = data.join(FILE);
    let bytes = match disk::read(&path, 1024 * 1024) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(OpenError::Unusable { path, what: "reading it", source }),
    };
    serde_json::from_slice(&bytes).map_err(|error| OpenError::Journal { path, source: Box::new(error) })
}

impl Inner {
    fn check_targets(&self, targets: &[PoolTarget]) -> Result<(), BackendError> {
        let mut keys = BTreeSet::new();
        let mut all = 0_u32;
        for PoolTarget { key, warm } in targets {
            if image::find(&self.data, &key.image).is_none() {
                return Err(BackendError::UnknownImage { image: key.image.as_str().to_owned() });
            }
            request(key, Shape::FIRST)?.check(&self.capabilities())?;
            if !keys.insert(format!("{} {:?} {:?}", key.image, key.network, key.size)) {
                return Err(invalid(format!(
                    "two pools of {}, {:?}, {:?}",
                    key.image, key.network, key.size
                )));
            }
            all = all.saturating_add(*warm);
        }
        if all > self.config.max_claims {
            let most = self.config.max_claims;
            return Err(invalid(format!("pools of {all} sandboxes on a node of {most}")));
        }
        Ok(())
    }

    /// Serves a claim by a warm box; nothing when none fits.
    pub(super) async fn claim_warm(
        self: &Arc<Self>,
        request: &ClaimRequest,
    ) -> Result<Option<Claim>, BackendError> {
        while let Some(entry) = self.take_warm(request)? {
            let mut record = entry.turn.lock().await;
            match self.hand_over(&entry, &mut record, request).await {
                Ok(()) => {
                    entry.show(&record);
                    return Ok(Some(record.claim()));
                }
                Err(error) => {
                    not_handed_over(&entry.id, &error);
                    if let Err(left) = self.remove(&entry, &record).await {
                        left_behind(&entry.id, &left);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Takes a warm box out of its pool and makes it an entry of the claim to be, which counts from now on.
    fn take_warm(&self, request: &ClaimRequest) -> Result<Option<Arc<Entry>>, BackendError> {
        let mut registry = hold(&self.registry);
        registry.check_caps(self.config.max_claims, request.tenant.as_ref())?;
        let taken = registry.pools.take(request);
        // either one is missing now, or some of another shape are to go
        self.refill.notify_one();
        let Some(Warm { entry, record: before }) = taken else { return Ok(None) };
        let sequence = registry.next_sequence();
        let mut record = Record::new(before.id, sequence, request, self.clock.now(), before.uid);
        record.process = before.process;
        record.phase = Phase::Running;
        let claim = Arc::new(Entry::new(&self.data.join("claims"), record, Kind::Claim));
        *hold(&claim.doors) = hold(&entry.doors).take();
        registry.insert(Arc::clone(&claim));
        Ok(Some(claim))
    }

    /// Makes a warm box the claim's in all that it shows, last of all on disk.
    async fn hand_over(
        &self,
        entry: &Arc<Entry>,
        record: &mut Record,
        request: &ClaimRequest,
    ) -> Result<(), BackendError> {
        let answered = record.clone().answered();
        let directory = entry.directory.clone();
        let written = serve::blocking(move || {
            answered.prepare(&directory).map_err(refused("cannot write the claim's record"))
        });
        let (directory, named) = (entry.directory.clone(), record.clone());
        let names = serve::blocking(move || {
            rename(&directory, &named).map_err(refused("the box could not be given its name"))
        });
        let files = host_files(&entry.directory, &request.host_files);
        let channel = Places::of(&entry.directory).channel;
        let answers = serve::within(channel::ANSWER_LIMIT, start::first_answer(&entry.id, &channel));
        let (written, names, files, answers) = tokio::join!(written, names, files, answers);
        written.and(names).and(files)?;
        answers.unwrap_or_else(|| Err(channel::misbehaved(&entry.id, "it did not answer within 10 s")))?;
        entry.put(record, Phase::Running).await?;
        record.established = true;
        Ok(())
    }

    /// Does the next thing that the pools need; false when they need nothing.
    pub(super) async fn fill(self: Arc<Self>) -> Result<bool, BackendError> {
        let step = hold(&self.registry).pools.next();
        match step {
            Step::Rest => return Ok(false),
            Step::End(entry) => self.retire(&entry).await,
            Step::Start(key, shape) => self.warm_up(&key, shape).await?,
        }
        Ok(true)
    }

    /// Starts a box for a pool.
    async fn warm_up(self: &Arc<Self>, key: &PoolKey, shape: Shape) -> Result<(), BackendError> {
        let request = request(key, shape)?;
        if image::find(&self.data, &request.image).is_none() {
            return Err(BackendError::UnknownImage { image: request.image.as_str().to_owned() });
        }
        let entry = self.enter(&request, Kind::Warm)?;
        let mut record = entry.turn.lock().await;
        let made = async {
            self.make_directory(&entry, &record, Vec::new()).await?;
            let (directory, claims) = (entry.directory.clone(), self.data.join("claims"));
            let note = move |record: Record| {
                record
                    .store_intent(&directory)
                    .and_then(|()| disk::sync(&claims))
                    .map_err(refused("cannot write the claim's record"))
            };
            start::start(self, &entry, &mut record, note).await?;
            record.phase = Phase::Running;
            Ok(())
        };
        if let Err(error) = made.await {
            if let Err(left) = self.remove(&entry, &record).await {
                left_behind(&entry.id, &left);
            }
            return Err(error);
        }
        wait_for_agent(&entry).await;
        let warm = Warm { entry: Arc::clone(&entry), record: record.clone() };
        let first = record.process.clone();
        drop(record);
        let unwanted = {
            let mut registry = hold(&self.registry);
            let unwanted = registry.pools.put(key, shape, warm);
            // its death may have been seen before it was in the pool
            if !first.as_ref().is_some_and(process::is_alive) {
                registry.pools.forget(&entry.id);
            }
            unwanted
        };
        if let Some(unwanted) = unwanted {
            self.retire(&unwanted.entry).await;
        }
        Ok(())
    }

    /// Ends and removes a box that nobody will get.
    async fn retire(&self, entry: &Arc<Entry>) {
        let record = entry.turn.lock().await;
        if let Err(left) = self.remove(entry, &record).await {
            left_behind(&entry.id, &left);
        }
    }

    /// Takes a box that died by itself out of its pool and removes it; the answer is its entry when it is somebody's.
    pub(super) async fn warm_died(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        let entry = {
            let mut registry = hold(&self.registry);
            let entry = registry.entries.get(id).cloned()?;
            if entry.kind == Kind::Claim {
                return Some(entry);
            }
            // from here on nobody can take it
            registry.pools.forget(id);
            entry
        };
        tracing::warn!(sandbox = %id, "a warm box ended by itself");
        self.retire(&entry).await;
        self.refill.notify_one();
        None
    }

    /// Ends the boxes that wait, as the node ends: they are nobody's. What is left of them is removed when it opens
    /// again.
    pub(super) fn end_warm(&self) {
        let mut registry = hold(&self.registry);
        registry.pools.closed = true;
        for warm in registry.pools.pools.iter().flat_map(|pool| &pool.warm) {
            let Some(first) = &warm.record.process else { continue };
            if let Ok(Some(cgroup)) = self.cgroup_of(&warm.entry.id, first) {
                cgroup.kill();
            }
            if let Some(handle) = process::open(first) {
                process::kill(&handle);
            }
        }
    }
}

fn not_handed_over(id: &SandboxId, error: &BackendError) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(sandbox = %id, error, "a warm box could not be handed over");
}

/// What a warm box asks for.
fn request(key: &PoolKey, shape: Shape) -> Result<ClaimRequest, BackendError> {
    let claim_ref: ClaimRef =
        "warm".parse().map_err(|_| invalid(format!("{BACKEND}: a warm box's label")))?;
    Ok(ClaimRequest::new(claim_ref, key.image.clone())
        .with_network(key.network)
        .with_size(key.size)
        .with_doors(shape.doors)
        .with_nesting(shape.nesting))
}

/// Gives a box its host name, in the kernel and in its files.
fn rename(directory: &Path, record: &Record) -> io::Result<()> {
    start::write_names(directory, &record.hostname)?;
    let first = record.process.as_ref().ok_or(io::ErrorKind::NotFound)?;
    hostname::set(first, &record.hostname)
}

/// Writes host files, each beside the others, so that they last.
async fn host_files(directory: &Path, files: &[HostFile]) -> Result<(), BackendError> {
    if files.is_empty() {
        return Ok(());
    }
    let identity = Places::of(directory).identity;
    let prepared = files.iter().cloned().map(|file| {
        let identity = identity.clone();
        serve::blocking(move || {
            let name = file.name.as_str();
            disk::prepare(&identity, name, &file.bytes, 0o644, disk::Durable::Yes)
                .and_then(|()| disk::put(&identity, name))
                .map_err(refused("cannot write a host file"))
        })
    });
    futures::future::try_join_all(prepared).await?;
    serve::blocking(move || disk::sync(&identity).map_err(refused("cannot write a host file"))).await
}

/// Has the agent of a box started, and waits until it serves: it speaks first on a connection.
async fn wait_for_agent(entry: &Entry) {
    let channel = Places::of(&entry.directory).channel;
    let served = async { channel::dial_agent(&channel).await.ok()??.read_u8().await.ok() };
    if serve::within(AGENT_LIMIT, served).await.flatten().is_none() {
        tracing::debug!(sandbox = %entry.id, "a warm box's agent does not serve yet");
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::backend::{NetworkMode, Size};
    use cocoonbox_core::{ImageName, SeededEntropy, Timestamp};

    use super::*;
    use crate::bwrap::journal;

    fn key() -> PoolKey {
        PoolKey { image: ImageName::host(), network: NetworkMode::None, size: Size::Small }
    }

    fn warm(seed: u64) -> Warm {
        let asked = request(&key(), Shape::FIRST).unwrap();
        let id = journal::draw_id(&SeededEntropy::new(seed)).unwrap();
        let record = Record::new(id, 1, &asked, Timestamp::from_millis(1), None);
        Warm { entry: Arc::new(Entry::new(Path::new("/none"), record.clone(), Kind::Warm)), record }
    }

    fn claim() -> ClaimRequest {
        ClaimRequest::new("a".parse().unwrap(), ImageName::host()).with_doors(Doors::Bound)
    }

    #[test]
    fn a_pool_takes_what_it_lacks_and_gives_each_box_once() {
        let mut set = PoolSet::default();
        assert!(set.put(&key(), Shape::FIRST, warm(1)).is_some(), "nobody wants it");
        set.set(vec![PoolTarget { key: key(), warm: 2 }]);
        for seed in [1, 2] {
            assert!(matches!(set.next(), Step::Start(..)));
            assert!(set.put(&key(), Shape::FIRST, warm(seed)).is_none());
        }
        assert!(matches!(set.next(), Step::Rest));
        assert!(set.put(&key(), Shape::FIRST, warm(3)).is_some(), "it is full");
        let ids: Vec<_> = std::iter::from_fn(|| set.take(&claim())).map(|warm| warm.record.id).collect();
        assert_eq!(ids, [warm(1).record.id, warm(2).record.id]);
        assert!(set.take(&claim().with_size(Size::Large)).is_none());
    }

    #[test]
    fn a_pool_follows_the_shape_that_is_asked_for() {
        let mut set = PoolSet::default();
        set.set(vec![PoolTarget { key: key(), warm: 1 }]);
        assert!(set.put(&key(), Shape::FIRST, warm(1)).is_none());
        let plain = ClaimRequest::new("a".parse().unwrap(), ImageName::host());
        assert!(set.take(&plain).is_none());
        assert!(matches!(set.next(), Step::End(entry) if entry.id == warm(1).record.id));
        let Step::Start(_, shape) = set.next() else { panic!("one is missing") };
        assert_eq!(shape, Shape::of(&plain));
        assert!(set.put(&key(), Shape::FIRST, warm(2)).is_some(), "started for the earlier shape");
        assert!(set.put(&key(), shape, warm(2)).is_none());
        assert!(set.take(&plain).is_some());
    }

    #[test]
    fn what_a_lowered_target_leaves_over_is_ended() {
        let mut set = PoolSet::default();
        set.set(vec![PoolTarget { key: key(), warm: 3 }]);
        for seed in [1, 2, 3] {
            assert!(set.put(&key(), Shape::FIRST, warm(seed)).is_none());
        }
        set.forget(&warm(1).record.id);
        set.set(vec![PoolTarget { key: key(), warm: 1 }]);
        assert!(matches!(set.next(), Step::End(entry) if entry.id == warm(3).record.id));
        assert!(matches!(set.next(), Step::Rest));
        set.set(Vec::new());
        assert!(matches!(set.next(), Step::End(entry) if entry.id == warm(2).record.id));
        assert!(set.take(&claim()).is_none());
        set.closed = true;
        set.set(vec![PoolTarget { key: key(), warm: 1 }]);
        assert!(matches!(set.next(), Step::Rest));
    }
}
