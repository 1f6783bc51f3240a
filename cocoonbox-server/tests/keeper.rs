//! The keeper of sealed saves passes the suite of every keeper, with the guest's agent in real boxes of both kinds.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cocoonbox_boxes::state::{MemoryStateKeys, SealedKeeper, StateDoor};
use cocoonbox_boxes::store::MemoryStore;
use cocoonbox_boxes::testkit::keeper::{KeptBox, KeptWorld};
use cocoonbox_boxes::{
    AgentGrant, Engine, EngineConfig, Guest, Limits, Moved, SaveReason, Started, StateKeeper,
};
use cocoonbox_core::backend::{ClaimFilter, HibernateTo, SandboxBackend, SandboxId, Target};
use cocoonbox_core::machine::{BoxRecord, Phase};
use cocoonbox_core::{BoxId, Clock, Entropy, GrantId, ImageName, SystemClock, SystemEntropy, UserId};
use cocoonbox_sandbox::doors::EdgeDoor;
use cocoonbox_sandbox::testkit::{EngineForTests as _, PodmanForTests, image};
use cocoonbox_sandbox::{BwrapBackend, BwrapConfig, ContainerBackend};
use cocoonbox_seal::Key;
use cocoonbox_state::{Label, MemoryCatalog, MemoryObjects, Objects as _, Prefix};
use ed25519_dalek::SigningKey;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::{Semaphore, watch};

/// No limits.
const FREE: Limits = Limits { max_boxes: None, max_running: None, max_agent_boxes: None };
/// How long a command may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// The agent's port in a box.
const AGENT: u16 = 7443;

/// The guest's binary, `make agent`.
fn agent() -> PathBuf {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/agent/cocoonbox-agent");
    let path = std::env::var_os("COCOONBOX_AGENT").map_or_else(beside, PathBuf::from);
    assert!(path.exists(), "no guest binary at {}: run `make agent` first", path.display());
    path
}

/// What boxes are made of.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Bwrap,
    Podman,
}

async fn backend(
    kind: Kind,
    data: &Path,
    edge: SocketAddr,
) -> Result<Arc<dyn SandboxBackend>, Box<dyn Error>> {
    let doors = Arc::new(EdgeDoor::here(edge));
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    Ok(match kind {
        Kind::Bwrap => {
            let config = BwrapConfig::new(data, agent()).with_doors(doors);
            BwrapBackend::open(config, clock, entropy).await?
        }
        Kind::Podman => {
            let config = PodmanForTests::shared()?.config(data, &agent()).with_doors(doors);
            ContainerBackend::open(config, clock, entropy).await?
        }
    })
}

/// An edge that serves its door, a node, and a keeper over objects in memory.
struct World {
    engine: Engine,
    backend: Arc<dyn SandboxBackend>,
    keeper: Arc<SealedKeeper>,
    objects: Arc<MemoryObjects>,
    /// What boxes read at the door waits for a permit each; there are plenty unless a test takes them away.
    gate: Arc<Semaphore>,
    _data: tempfile::TempDir,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}

impl World {
    async fn new(kind: Kind) -> Self {
        Self::open(kind).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn open(kind: Kind) -> Result<Self, Box<dyn Error>> {
        let data = tempfile::tempdir()?;
        let (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>) =
            (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let objects = Arc::new(MemoryObjects::new(Arc::clone(&clock)));
        let door = StateDoor::new(Arc::clone(&objects) as _, &Key::new([7; 32]), Arc::clone(&clock));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let backend = backend(kind, &data.path().join("data"), listener.local_addr()?).await?;
        let gate = Arc::new(Semaphore::new(OPEN));
        let router = door.router().layer(from_fn_with_state(Arc::clone(&gate), one_by_one));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let call_key = Arc::new(SigningKey::from_bytes(&[9; 32]));
        let keeper = Arc::new(SealedKeeper::new(
            Arc::clone(&objects) as _,
            Arc::new(door),
            Arc::new(MemoryCatalog::default()),
            Arc::new(MemoryStateKeys::new(Arc::clone(&entropy))),
            Arc::clone(&call_key),
            (Arc::clone(&clock), Arc::clone(&entropy)),
        ));
        let wanted = match kind {
            Kind::Bwrap => ImageName::host(),
            Kind::Podman => image(),
        };
        let config = EngineConfig::new(wanted, call_key.verifying_key());
        let store = Arc::new(MemoryStore::default());
        // it does not know the keeper: the suite alone saves
        let engine = Engine::new(store, Arc::clone(&backend), clock, entropy, config);
        engine.start().await?;
        Ok(Self { engine, backend, keeper, objects, gate, _data: data })
    }
}

/// As good as no gate.
const OPEN: usize = 1 << 20;

async fn one_by_one(State(gate): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    if request.method() == axum::http::Method::GET
        && let Ok(permit) = gate.acquire().await
    {
        permit.forget();
    }
    next.run(request).await
}

impl Drop for World {
    /// Boxes outlive what made them, and a test that failed is to leave none either.
    fn drop(&mut self) {
        let backend = Arc::clone(&self.backend);
        let end = async move {
            for claim in backend.find(&ClaimFilter::all()).await.unwrap_or_default() {
                // the next ones all the same
                let _ = backend.release(&claim.id).await;
            }
        };
        let ended = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| runtime.block_on(end))
        });
        let _ = ended.join();
    }
}

#[async_trait]
impl KeptWorld for World {
    fn keeper(&self) -> Arc<dyn StateKeeper> {
        Arc::clone(&self.keeper) as _
    }
    async fn make(&self, owner: &UserId) -> Box<dyn KeptBox> {
        let number = self.engine.list(owner, None, 100).await.expect("boxes are listed").boxes.len();
        let name = format!("box-{number}").parse().expect("a name");
        let started = self.engine.create(owner, FREE, Some(name), None, None).await.expect("a box is made");
        done(&self.engine, &started).await;
        let made = Made {
            engine: self.engine.clone(),
            backend: Arc::clone(&self.backend),
            owner: owner.clone(),
            id: started.box_id.clone(),
        };
        Box::new(made)
    }
}

async fn done(engine: &Engine, started: &Started) {
    let last = engine.wait(started).await.expect("the operation is there");
    assert!(last.as_ref().is_none_or(|last| last.phase == Phase::Done), "{last:?}");
}

#[derive(Debug)]
struct Made {
    engine: Engine,
    backend: Arc<dyn SandboxBackend>,
    owner: UserId,
    id: BoxId,
}

impl Made {
    async fn record(&self) -> BoxRecord {
        let found = self.engine.get(&self.owner, self.id.as_str()).await;
        found.expect("boxes are read").expect("the box is there")
    }

    async fn sandbox(&self) -> SandboxId {
        self.record().await.sandbox.expect("it has a sandbox")
    }

    /// Runs a shell command; none when it fails.
    async fn sh(&self, command: &str) -> Option<String> {
        let ran = tokio::time::timeout(PATIENCE, self.run(command)).await;
        ran.expect("the box answers: one that writes is held still where the disk is nearly full")
    }

    async fn run(&self, command: &str) -> Option<String> {
        let stream = self.backend.connect(&self.sandbox().await, Target::Channel).await.expect("it runs");
        let (read, mut write) = tokio::io::split(stream);
        let asked = serde_json::json!({ "v": 1, "op": "exec", "argv": ["/bin/sh", "-c", command] });
        write.write_all(format!("{asked}\n").as_bytes()).await.expect("the guest listens");
        let (mut lines, mut said) = (BufReader::new(read).lines(), Vec::new());
        while let Some(line) = lines.next_line().await.expect("the guest answers") {
            let frame: serde_json::Value = serde_json::from_str(&line).expect("a frame");
            match frame["type"].as_str() {
                Some("stdout") => {
                    said.extend(STANDARD.decode(frame["data"].as_str().unwrap_or_default()).expect("base64"));
                }
                Some("exit") => {
                    let text = String::from_utf8(said).expect("text");
                    return (frame["code"] == 0).then_some(text);
                }
                _ => {}
            }
        }
        panic!("the guest hung up");
    }
}

#[async_trait]
impl KeptBox for Made {
    fn owner(&self) -> UserId {
        self.owner.clone()
    }
    fn id(&self) -> BoxId {
        self.id.clone()
    }
    async fn guest(&self) -> Guest {
        let record = self.record().await;
        let sandbox = record.sandbox.expect("it has a sandbox");
        let target = Target::Port(AGENT.try_into().expect("a port"));
        let stream = self.backend.connect(&sandbox, target).await.expect("its agent listens");
        let wake_id = record.wake_id.expect("it runs");
        let agent = record.agent;
        Guest { owner: self.owner.clone(), box_id: self.id.clone(), agent, wake_id, stream }
    }
    async fn write(&self, path: &str, text: &str) {
        let written = self.sh(&format!("mkdir -p \"$(dirname {path})\" && printf %s {text} > {path}")).await;
        assert!(written.is_some(), "{path} was not written");
    }
    async fn read(&self, path: &str) -> Option<String> {
        self.sh(&format!("cat {path}")).await
    }
    async fn restart(&self) {
        let to = HibernateTo::Disk;
        let asleep = self.engine.hibernate(&self.owner, self.id.as_str(), to, None).await;
        done(&self.engine, &asleep.expect("it goes to sleep")).await;
        let awake = self.engine.ensure(&self.owner, FREE, self.id.as_str(), None).await;
        done(&self.engine, &awake.expect("it starts")).await;
    }
}

/// One restore is given up when so many bytes have come; the next brings the rest.
const GIVEN_UP_AT: u64 = 8 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_was_given_up_is_gone_on_with() {
    let world = World::new(Kind::Bwrap).await;
    let owner = UserId::random(&SystemEntropy).expect("entropy");
    let kept = world.make(&owner).await;
    let made = Made {
        engine: world.engine.clone(),
        backend: Arc::clone(&world.backend),
        owner: owner.clone(),
        id: kept.id(),
    };
    let fill = "for nth in $(seq 64); do head -c 1000000 /dev/urandom >/workspace/$nth; done";
    let look = "cd /workspace && sha256sum *";
    made.sh(fill).await.expect("it is written");
    let before = made.sh(look).await.expect("it is read");
    let keeper = Arc::clone(&world.keeper);
    let quiet = || watch::Sender::new(Moved::default());
    let save = keeper.save(kept.guest().await, SaveReason::Asked, quiet()).await.expect("it is saved");
    made.sh("rm /workspace/*; echo other >/workspace/other").await.expect("it is changed");

    let told = watch::Sender::new(Moved::default());
    let mut seen = told.subscribe();
    let guest = kept.guest().await;
    let first = keeper.stage(guest, &save.id, told);
    // what is read comes one by one, so that it cannot be over before it is given up
    world.gate.forget_permits(OPEN);
    let slowly = async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            world.gate.add_permits(1);
        }
    };
    tokio::select! {
        done = first => panic!("it was too quick to be given up: {done:?}"),
        far = seen.wait_for(|moved| moved.bytes.done > GIVEN_UP_AT) => drop(far.expect("it goes on")),
        () = slowly => {}
    }
    world.gate.add_permits(OPEN);
    let done = keeper.stage(kept.guest().await, &save.id, quiet()).await.expect("it is gone on with");
    assert_eq!(done.files, save.files);
    assert!(done.fetched > 0 && done.fetched < 60_000_000, "{done:?}");
    assert_eq!(made.sh("cat /workspace/other").await.as_deref(), Some("other\n"));
    kept.restart().await;
    assert_eq!(made.sh(look).await, Some(before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agents_box_saves_is_shared_with_no_other() {
    let world = World::new(Kind::Bwrap).await;
    let owner = UserId::random(&SystemEntropy).expect("entropy");
    let own = world.make(&owner).await;
    let grant = GrantId::random(&SystemEntropy).expect("entropy");
    let agent = AgentGrant { id: grant, max_boxes: 1, max_running: 1 };
    let engine = world.engine.acting_for(Some(&agent));
    let started = engine.create(&owner, FREE, None, None, None).await.expect("a box is made");
    done(&engine, &started).await;
    let foreign = Made {
        engine: world.engine.clone(),
        backend: Arc::clone(&world.backend),
        owner: owner.clone(),
        id: started.box_id.clone(),
    };
    // the same bytes in both, which one domain would keep once
    let boxes: [&dyn KeptBox; 2] = [&*own, &foreign];
    let mut packs = Vec::new();
    for kept in boxes {
        kept.write("/workspace/same", &"what-both-have-".repeat(200)).await;
        let quiet = watch::Sender::new(Moved::default());
        world.keeper.save(kept.guest().await, SaveReason::Asked, quiet).await.expect("it is saved");
        let all = world.objects.list(&Prefix::all_packs(&Label::from(&owner))).await.expect("a list");
        packs.push(all.into_iter().map(|listed| listed.key.as_str().to_owned()).collect::<Vec<_>>());
    }
    assert!(packs[0].iter().all(|name| name.contains("/packs/user/")), "{packs:?}");
    let domain = format!("/packs/agent-{}/", foreign.id);
    assert!(packs[1].iter().any(|name| name.contains(&domain)), "{packs:?}");
    assert_eq!(packs[1].iter().filter(|name| name.contains("/packs/user/")).count(), packs[0].len());
}

mod bwrap {
    use super::*;

    cocoonbox_boxes::state_keeper_conformance!(World::new(Kind::Bwrap).await);
}

mod podman {
    use super::*;

    cocoonbox_boxes::state_keeper_conformance!(World::new(Kind::Podman).await);
}
