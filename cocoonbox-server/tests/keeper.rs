//! The keeper of sealed saves passes the suite of every keeper, with the guest's agent in real boxes of both kinds.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cocoonbox_boxes::state::{MemoryStateKeys, SealedKeeper, StateDoor};
use cocoonbox_boxes::store::MemoryStore;
use cocoonbox_boxes::testkit::keeper::{KeptBox, KeptWorld};
use cocoonbox_boxes::{Engine, EngineConfig, Guest, Limits, Started, StateKeeper};
use cocoonbox_core::backend::{ClaimFilter, HibernateTo, SandboxBackend, SandboxId, Target};
use cocoonbox_core::machine::{BoxRecord, Phase};
use cocoonbox_core::{BoxId, Clock, Entropy, ImageName, SystemClock, SystemEntropy, UserId};
use cocoonbox_sandbox::doors::EdgeDoor;
use cocoonbox_sandbox::testkit::{EngineForTests as _, PodmanForTests, image};
use cocoonbox_sandbox::{BwrapBackend, BwrapConfig, ContainerBackend};
use cocoonbox_seal::Key;
use cocoonbox_state::{MemoryCatalog, MemoryObjects};
use ed25519_dalek::SigningKey;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

/// No limits.
const FREE: Limits = Limits { max_boxes: None, max_running: None };
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
        let router = door.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let call_key = Arc::new(SigningKey::from_bytes(&[9; 32]));
        let keeper = Arc::new(SealedKeeper::new(
            objects,
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
        Ok(Self { engine, backend, keeper, _data: data })
    }

    async fn end(&self) {
        for claim in self.backend.find(&ClaimFilter::all()).await.expect("boxes are listed") {
            self.backend.release(&claim.id).await.expect("a box is released");
        }
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
        Guest { owner: self.owner.clone(), box_id: self.id.clone(), wake_id, stream }
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

mod bwrap {
    use super::*;

    cocoonbox_boxes::state_keeper_conformance!(ended => World::new(Kind::Bwrap).await, ended.end().await);
}

mod podman {
    use super::*;

    cocoonbox_boxes::state_keeper_conformance!(ended => World::new(Kind::Podman).await, ended.end().await);
}
