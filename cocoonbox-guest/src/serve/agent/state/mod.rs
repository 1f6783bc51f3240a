//! `cocoonbox.agent.v1.State`: saves the box and brings saves into it, for the edge.

mod granted;

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::{Clock, Entropy};
use cocoonbox_state::{
    BoxKeys, Browser, Excludes, Fetch, GrantedFetch, GrantedUpload, PackView, Progress, ReadError,
    RestoreContext, RestoreError, RestoreOptions, Restored, Root, SaveContext, SaveId, SaveOptions, TreePath,
    Upload, hash_tree, load_neighbours,
};
use cocoonbox_wire::agent::v1::state_request::Message as Told;
use cocoonbox_wire::agent::v1::state_response::Message as Say;
use cocoonbox_wire::agent::v1::state_server::State;
use cocoonbox_wire::agent::v1::{
    Asks, RestoreFilesStart, RestoredState, SaveStart, StageStart, StateProgress, StateRequest, StateResponse,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Answer;
use crate::{HOOK_LIMIT, StateHook, swap};
use granted::{DoorHttp, EdgeGrants};

/// How long the edge has to say what it wants.
const FIRST: Duration = Duration::from_secs(30);
/// How long a call waits for the one before it, which may have been given up and not be at its end.
const TURN: Duration = Duration::from_secs(10);
/// How often it is told how far it is.
const PROGRESS: Duration = Duration::from_millis(250);
/// Asks that go out together.
const BATCH: usize = 64;
/// The most bytes of the list of what is left out.
const MAX_EXCLUDES: u64 = 1 << 20;
/// Where offloaded repositories list what they can make anew.
const EXCLUDES: &str = "home/user/.local/share/cocoonbox/offload/excludes";
/// Where the scan cache is: in a folder that no save holds.
const CACHE: &str = "home/user/.cache/cocoonbox";
/// What a save holds, from the base.
const ROOTS: [&str; 2] = ["home/user", "workspace"];

type Sender = mpsc::Sender<Result<StateResponse, Status>>;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    /// The root of the file system, but for tests.
    base: PathBuf,
    door: SocketAddr,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    /// One thing at a time: two saves of one box do not interleave.
    turn: Arc<Semaphore>,
    hooks: Arc<[Arc<dyn StateHook>]>,
}

impl Keeper {
    pub(super) fn new(
        base: PathBuf,
        door: SocketAddr,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { base, door, clock, entropy, turn: Arc::new(Semaphore::new(1)), hooks: Arc::default() }
    }

    pub(super) fn with_hooks(mut self, hooks: Vec<Arc<dyn StateHook>>) -> Self {
        self.hooks = hooks.into();
        self
    }

    /// Tells whoever wants to know that what was saved is back.
    pub(super) async fn restored(&self) {
        tell_hooks(&self.hooks, StateHook::after_restore).await;
    }

    /// Returns where home and workspace are.
    pub(super) fn roots(&self) -> Vec<PathBuf> {
        ROOTS.map(|root| self.base.join(root)).into()
    }

    /// Reads the first message and gives it to `work`, with a store of granted URLs that lives as long as the work.
    async fn begin<W, F>(
        &self,
        mut told: Streaming<StateRequest>,
        work: impl FnOnce(Told) -> Option<W>,
        run: impl FnOnce(Self, W, Call) -> F + Send + 'static,
    ) -> Result<Response<Answer<StateResponse>>, Status>
    where
        W: Send + 'static,
        F: Future<Output = Result<Say, Status>> + Send + 'static,
    {
        let busy = || Status::aborted("the box is being saved or restored already");
        let turn = timeout(TURN, Arc::clone(&self.turn).acquire_owned()).await;
        let turn = turn.map_err(|_| busy())?.map_err(|_| busy())?;
        let first = timeout(FIRST, told.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no first message"))??;
        let work = first
            .and_then(|first| first.message)
            .and_then(work)
            .ok_or_else(|| Status::invalid_argument("the first message says what is to be done"))?;
        let (sender, receiver) = mpsc::channel(8);
        let (asks, asked) = mpsc::channel(BATCH);
        let granted = Arc::new(EdgeGrants::new(asks));
        let http = Arc::new(DoorHttp::new(self.door));
        let (progress, seen) = watch::channel(Progress::default());
        let keeper = self.clone();
        tokio::spawn(async move {
            let call = Call {
                fetch: Arc::new(GrantedFetch::new(Arc::clone(&granted) as _, Arc::clone(&http) as _)),
                upload: Arc::new(GrantedUpload::new(Arc::clone(&granted) as _, http)),
                progress,
            };
            let mut at_work = seen.clone();
            let done = tokio::select! {
                done = run(keeper, work, call) => done,
                () = grants(&granted, told) => Err(Status::cancelled("the edge left")),
                () = tell(&sender, asked, seen) => Err(Status::cancelled("the edge left")),
            };
            // threads that are in the middle of something come to its end, and write nothing into the next one's work
            while at_work.changed().await.is_ok() {}
            drop(turn);
            let _ = sender.send(done.map(|say| StateResponse { message: Some(say) })).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    fn excludes(&self) -> Excludes {
        let mut lines = String::new();
        if let Ok(file) = std::fs::File::open(self.base.join(EXCLUDES)) {
            // what cannot be read is left in
            let _ = file.take(MAX_EXCLUDES).read_to_string(&mut lines);
        }
        let own = |root| [swap::FOLDER, swap::REPLACED].map(|name| path(format!("{root}/{name}").as_bytes()));
        ROOTS
            .into_iter()
            .flat_map(own)
            .flatten()
            .fold(Excludes::of_box().with_lines(&lines), |all, path| all.with(&path))
    }

    async fn saved(self, start: SaveStart, call: Call) -> Result<Say, Status> {
        let keys = keys(start.keys)?;
        tell_hooks(&self.hooks, StateHook::before_save).await;
        let mut options = SaveOptions::new(Root::of_box(&self.base));
        let keeper = self.clone();
        options.excludes = blocking(move || keeper.excludes()).await?;
        options.base = if start.base.is_empty() { None } else { Some(save_id(&start.base)?) };
        let view: Option<PackView> =
            if start.view.is_empty() { None } else { serde_json::from_slice(&start.view).ok() };
        options.view = view;
        let mut others = Vec::new();
        for neighbour in start.neighbours {
            others.push((self::keys(neighbour.keys)?, save_id(&neighbour.save)?));
        }
        let fetch = Arc::clone(&call.fetch);
        options.neighbours = load_neighbours(&fetch, &others).await.map_err(read)?;
        let (home, cache) = (self.base.join(ROOTS[0]), self.base.join(CACHE));
        if blocking(move || make_cache(&home, &cache)).await?.is_ok() {
            options.cache = Some(self.base.join(CACHE).join("scan"));
        }
        options.progress = Some(call.progress.clone());
        let upload = Arc::clone(&call.upload);
        let context = SaveContext::new(fetch, upload, self.clock, self.entropy);
        let prepared =
            cocoonbox_state::save(&keys, &options, &context).await.map_err(|error| failed(&error))?;
        let bytes = serde_json::to_vec(&prepared.to_wire()).map_err(|error| failed(&error))?;
        Ok(Say::Prepared(bytes.into()))
    }

    async fn staged(self, start: StageStart, call: Call) -> Result<Say, Status> {
        let (keys, save) = (keys(start.keys)?, save_id(&start.save)?);
        let roots = self.roots();
        let (begun, of) = (roots.clone(), start.save);
        let prepare = move || begun.iter().try_for_each(|root| swap::begin(root, &of));
        blocking(prepare).await?.map_err(|error| failed(&error))?;
        let fetch = Arc::clone(&call.fetch);
        let context = RestoreContext::new(Arc::clone(&fetch), self.clock.clone(), self.entropy.clone());
        let mut all = RestoredState::default();
        let mut staged = Vec::new();
        for (name, root) in ROOTS.iter().zip(&roots) {
            // each onto the file system that it will be on
            let at = swap::new_of(root);
            let Some(prefix) = path(name.as_bytes()) else { continue };
            let target = at.join("part");
            staged.push(Root::new(prefix.clone(), &target.join(name)));
            if target.join(name).exists() {
                // one that was broken off came as far as this
                continue;
            }
            let mut options = RestoreOptions::default();
            options.progress = Some(call.progress.clone());
            std::fs::create_dir_all(&target).map_err(|error| failed(&error))?;
            let only = std::slice::from_ref(&prefix);
            match cocoonbox_state::restore_paths(&keys, &save, only, &target, &options, &context).await {
                Ok(done) => all.fetched_bytes += done.iter().map(|one| one.fetched).sum::<u64>(),
                // the save has no such folder: an empty one takes its place
                Err(RestoreError::Read(ReadError::NoSuchPath { .. })) => {
                    std::fs::create_dir_all(target.join(name)).map_err(|error| failed(&error))?;
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        // all of it, as it lies on the disk, against the save's own hash
        let mut whole = SaveOptions::new(staged.clone());
        whole.skip_tagged = false;
        let wanted = Browser::open(&keys, fetch, &save).await.map_err(read)?.summary();
        (all.files, all.bytes) = (wanted.record.stats.files, wanted.record.stats.bytes);
        let found = hash_tree(&keys, &whole).await.map_err(|error| failed(&error))?;
        if found != wanted.root_hash {
            // not gone on with
            let cleared = move || roots.iter().try_for_each(|root| swap::clear(root));
            blocking(cleared).await?.map_err(|error| failed(&error))?;
            return Err(Status::data_loss("what was restored is not what was saved"));
        }
        let finish = move || {
            roots.iter().zip(&staged).try_for_each(|(root, staged)| swap::settle_on(root, &staged.folder))?;
            swap::ready(&roots)
        };
        blocking(finish).await?.map_err(|error| failed(&error))?;
        Ok(Say::Restored(all))
    }

    async fn files_restored(self, start: RestoreFilesStart, call: Call) -> Result<Say, Status> {
        let (keys, save) = (keys(start.keys)?, save_id(&start.save)?);
        let mut paths = Vec::new();
        for asked in &start.paths {
            let wrong =
                || Status::invalid_argument("paths: use absolute paths under /home/user or /workspace");
            let path = path(asked).ok_or_else(wrong)?;
            let under = |root: &&str| {
                let rest = path.as_bytes().strip_prefix(root.as_bytes());
                rest.is_some_and(|rest| rest.starts_with(b"/"))
            };
            if !ROOTS.iter().any(under) {
                return Err(wrong());
            }
            paths.push(path);
        }
        let fetch = Arc::clone(&call.fetch);
        let context = RestoreContext::new(fetch, self.clock.clone(), self.entropy.clone());
        let mut options = RestoreOptions::default();
        options.progress = Some(call.progress.clone());
        let done = cocoonbox_state::restore_paths(&keys, &save, &paths, &self.base, &options, &context)
            .await
            .map_err(|error| failed(&error))?;
        let mut all = RestoredState::default();
        add(&mut all, &done);
        self.restored().await;
        Ok(Say::Restored(all))
    }
}

/// Tells one hook after the other; none of them holds up a save or restore for good.
async fn tell_hooks<'a, F>(hooks: &'a [Arc<dyn StateHook>], what: impl Fn(&'a dyn StateHook) -> F)
where
    F: Future<Output = Result<(), String>>,
{
    for hook in hooks {
        let name = hook.name();
        match timeout(HOOK_LIMIT, what(hook.as_ref())).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => {
                tracing::warn!(hook = name, reason, "a hook failed; the save or restore goes on");
            }
            Err(_) => tracing::warn!(hook = name, "a hook took too long; the save or restore goes on"),
        }
    }
}

/// What a call works with.
struct Call {
    fetch: Arc<dyn Fetch>,
    upload: Arc<dyn Upload>,
    /// Whoever still works holds one.
    progress: watch::Sender<Progress>,
}

/// Makes the folder of the scan cache; the home that is about to be saved does not become younger by it.
fn make_cache(home: &std::path::Path, cache: &std::path::Path) -> std::io::Result<()> {
    let modified = std::fs::metadata(home)?.modified()?;
    let new = !home.join(".cache").exists();
    std::fs::create_dir_all(cache)?;
    if new {
        std::fs::File::open(home)?.set_times(std::fs::FileTimes::new().set_modified(modified))?;
    }
    Ok(())
}

fn add(all: &mut RestoredState, done: &[Restored]) {
    for one in done {
        all.files += one.files;
        all.bytes += one.bytes;
        all.fetched_bytes += one.fetched;
    }
}

fn path(text: &[u8]) -> Option<TreePath> {
    TreePath::parse(text).ok().filter(|path| !path.as_bytes().is_empty())
}

fn keys(keys: Option<cocoonbox_wire::agent::v1::BoxKeys>) -> Result<BoxKeys, Status> {
    BoxKeys::from_bytes(&keys.unwrap_or_default().material)
        .map_err(|_| Status::invalid_argument("keys: not a box's keys"))
}

fn save_id(text: &str) -> Result<SaveId, Status> {
    text.parse().map_err(|_| Status::invalid_argument("save: not a save's id"))
}

fn read(error: ReadError) -> Status {
    failed(&error)
}

/// Says an error with its causes; the edge decides by its code whether to try again.
fn failed(error: &(dyn std::error::Error + 'static)) -> Status {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Status::internal(text)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Status::internal("the agent broke down"))
}

/// Hands the edge's answers on until it leaves.
async fn grants(store: &EdgeGrants, mut told: Streaming<StateRequest>) {
    while let Ok(Some(request)) = told.message().await {
        if let Some(Told::Grants(grants)) = request.message {
            grants.grants.into_iter().for_each(|grant| store.answer(grant));
        }
    }
}

/// Sends what is asked for and how far it is, until nobody listens.
async fn tell(
    sender: &Sender,
    mut asked: mpsc::Receiver<cocoonbox_wire::agent::v1::Ask>,
    mut seen: watch::Receiver<Progress>,
) {
    let mut ticks = interval(PROGRESS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut asks = Vec::new();
        let say = tokio::select! {
            count = asked.recv_many(&mut asks, BATCH) => {
                if count == 0 {
                    return;
                }
                Say::Asks(Asks { asks })
            }
            _ = ticks.tick() => {
                if !seen.has_changed().unwrap_or(false) {
                    continue;
                }
                let at = *seen.borrow_and_update();
                Say::Progress(StateProgress {
                    files: at.files,
                    files_total: at.files_total,
                    bytes: at.bytes,
                    bytes_total: at.bytes_total,
                    new_bytes: at.new_bytes,
                })
            }
            () = sender.closed() => return,
        };
        if sender.send(Ok(StateResponse { message: Some(say) })).await.is_err() {
            return;
        }
    }
}

#[tonic::async_trait]
impl State for Keeper {
    type SaveStream = Answer<StateResponse>;
    type StageStream = Answer<StateResponse>;
    type RestoreFilesStream = Answer<StateResponse>;

    async fn save(
        &self,
        request: Request<Streaming<StateRequest>>,
    ) -> Result<Response<Self::SaveStream>, Status> {
        let asked = |told| if let Told::Save(start) = told { Some(start) } else { None };
        self.begin(request.into_inner(), asked, Self::saved).await
    }

    async fn stage(
        &self,
        request: Request<Streaming<StateRequest>>,
    ) -> Result<Response<Self::StageStream>, Status> {
        let asked = |told| if let Told::Stage(start) = told { Some(start) } else { None };
        self.begin(request.into_inner(), asked, Self::staged).await
    }

    async fn restore_files(
        &self,
        request: Request<Streaming<StateRequest>>,
    ) -> Result<Response<Self::RestoreFilesStream>, Status> {
        let asked = |told| if let Told::RestoreFiles(start) = told { Some(start) } else { None };
        self.begin(request.into_inner(), asked, Self::files_restored).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    /// Writes down when it is told; fails, hangs or does neither.
    #[derive(Debug)]
    struct Noted(&'static str, Arc<Mutex<Vec<String>>>);

    impl Noted {
        async fn told(&self, what: &str) -> Result<(), String> {
            self.1.lock().unwrap().push(format!("{} {what}", self.0));
            match self.0 {
                "fails" => Err("there is no browser".to_owned()),
                "hangs" => std::future::pending().await,
                _ => Ok(()),
            }
        }
    }

    #[async_trait::async_trait]
    impl StateHook for Noted {
        fn name(&self) -> &'static str {
            self.0
        }
        async fn before_save(&self) -> Result<(), String> {
            self.told("before").await
        }
        async fn after_restore(&self) -> Result<(), String> {
            self.told("after").await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hooks_are_told_in_their_order_and_none_holds_up_a_save() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let hooks = ["fails", "hangs", "works"]
            .map(|name| Arc::new(Noted(name, Arc::clone(&log))) as Arc<dyn StateHook>);
        let door = SocketAddr::from(([127, 0, 0, 1], 1));
        let keeper = Keeper::new(
            "/nowhere".into(),
            door,
            Arc::new(cocoonbox_core::SystemClock),
            Arc::new(cocoonbox_core::SystemEntropy),
        )
        .with_hooks(hooks.into());
        let start = Instant::now();
        tell_hooks(&keeper.hooks, StateHook::before_save).await;
        assert_eq!(start.elapsed(), HOOK_LIMIT);
        keeper.restored().await;
        let told =
            ["fails before", "hangs before", "works before", "fails after", "hangs after", "works after"];
        assert_eq!(*log.lock().unwrap(), told);
    }
}
