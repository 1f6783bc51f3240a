//! Boxes by podman or Docker.

mod config;
mod engine;
mod error;
mod handoff;
mod image;
mod inspection;
mod journal;
mod open;
mod plan;
mod registry;
mod serve;
mod service;
mod socket;
mod start;
mod stop;
mod work;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::backend::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, Enforcement, Freeze,
    HibernateTo, HostFile, LimitCapabilities, Memory, NetworkMode, SandboxBackend, SandboxId, Target,
    Tenants,
};
use cocoonbox_core::{Clock, Entropy, TenantName};
use sha2::{Digest as _, Sha256};

pub use config::{ContainerConfig, EngineChoice};
pub use socket::EngineSockets;

use engine::{Engine, Flavor};
use error::{BACKEND, refused};
use journal::{Phase, Process, Record};
use plan::SHARE;
use registry::{Entry, Registry, hold};
use service::Service;
use start::Places;
use work::conflict;

use crate::bwrap::{self, OpenError, channel, disk, process};

/// How long an earlier backend of this process has for its last work.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(30);
/// How many boxes have host ids of their own.
const SHARES: u32 = 4096;

/// Sandboxes made by a container engine of this machine, podman or Docker.
///
/// Dropping it leaves every box as it is: containers go on, and opening the same data directory finds them.
#[derive(Debug)]
pub struct ContainerBackend {
    inner: Arc<Inner>,
}

/// What calls and the work beside them share.
#[derive(Debug)]
struct Inner {
    config: ContainerConfig,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    data: PathBuf,
    /// What this node is called among others of the engine.
    node: String,
    /// This process's uid and gid.
    own: (u32, u32),
    /// The first host id of the first box, where the engine maps ids.
    first: u32,
    /// How many boxes have ids of their own there.
    shares: Option<u32>,
    /// The name of the present copy of the guest's binary.
    agent: String,
    engine: Engine,
    registry: Mutex<Registry>,
    /// Held by who brings an image into the engine.
    image_turn: tokio::sync::Mutex<()>,
    /// Held by who writes the tenants' caps.
    tenants_turn: tokio::sync::Mutex<()>,
    /// Ends with this value.
    service: Option<Service>,
    /// Held as long as this value lives: one server per data directory.
    _lock: fs::File,
}

impl ContainerBackend {
    /// Opens the data directory, takes in every claim in it again and settles what was left half done.
    ///
    /// Runs on a tokio runtime with IO and time, and stays on it.
    ///
    /// # Errors
    /// Any of [`OpenError`]; nothing is then changed, but for half-done work that was settled.
    pub async fn open(
        config: ContainerConfig,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Arc<Self>, OpenError> {
        let (data, lock) = directory(&config.data).await?;
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let agent = bwrap::open::agent(&data, &config.agent)?;
        let digest = Sha256::digest(data.as_os_str().as_encoded_bytes());
        let node: String = bwrap::open::hex(&digest[..6]);
        let (engine, service) = service::reach(&config.engine, &data, &node).await?;
        check(&engine, own.0, &config)?;
        // nodes on one machine start from different places, as their boxes should not share ids; none is a place where
        // boxes of other backends begin
        let base = 0x7200_0000 + u32::from(digest[6] % 48) * (SHARES * SHARE);
        let ids = config.ids.clone().unwrap_or(base..base + SHARES * SHARE);
        let maps = engine.facts.flavor == Flavor::Podman && !engine.facts.rootless;
        let shares = (maps && own.0 == 0 && bwrap::open::may_give(&ids)?).then_some(ids.len() as u32 / SHARE);
        let mut registry = Registry::default();
        registry.tenants.extend(bwrap::open::tenants(&data)?);
        let inner = Arc::new(Inner {
            config,
            clock,
            entropy,
            data,
            node,
            own,
            first: ids.start,
            shares,
            agent,
            engine,
            registry: Mutex::new(registry),
            image_turn: tokio::sync::Mutex::new(()),
            tenants_turn: tokio::sync::Mutex::new(()),
            service,
            _lock: lock,
        });
        open::adopt(&inner).await?;
        Ok(Arc::new(Self { inner }))
    }

    /// Brings an image into the engine before a claim needs it; pulls it where a registry is configured.
    ///
    /// # Errors
    /// [`BackendError::UnknownImage`], or what the engine says.
    pub async fn prepare_image(&self, image: &cocoonbox_core::ImageName) -> Result<(), BackendError> {
        let (inner, image) = (Arc::clone(&self.inner), image.clone());
        serve::to_the_end(async move { image::bring(&inner, &image).await.map(|_| ()) }).await
    }
}

/// Takes the data directory. An earlier backend of this very process has it until its last work is done: an engine
/// takes its time to remove a container.
async fn directory(path: &std::path::Path) -> Result<(PathBuf, fs::File), OpenError> {
    let own = format!("process {}", std::process::id());
    let take = async {
        loop {
            match bwrap::open::directory(path).await {
                Err(OpenError::InUse { holder, .. }) if holder == own => {}
                other => return other,
            }
        }
    };
    match serve::within(PREDECESSOR_LIMIT, take).await {
        Some(taken) => taken,
        None => bwrap::open::directory(path).await,
    }
}

/// Refuses engines whose boxes' files this process could not give to them.
fn check(engine: &Engine, own: u32, config: &ContainerConfig) -> Result<(), OpenError> {
    let facts = &engine.facts;
    let refuse = |reason: String| Err(OpenError::Engine { place: facts.flavor.name().to_owned(), reason });
    match (facts.flavor, facts.rootless) {
        (Flavor::Docker, true) => refuse(
            "it runs rootless, and its boxes could not be given their files: use podman, which can"
                .to_owned(),
        ),
        (Flavor::Podman, true) if own == 0 => {
            refuse("it is an ordinary user's and this process is root: start this as that user".to_owned())
        }
        (_, false) if own != 0 && own != plan::USER => refuse(format!(
            "it is root's and this process has uid {own}: use a service of your own (`systemctl --user start \
             podman.socket`), or start this as root"
        )),
        _ if facts.remapped => refuse(
            "it maps ids in a way of its own (userns-remap), which its boxes' files cannot follow".to_owned(),
        ),
        _ => match &config.runtime {
            Some(runtime) if !facts.runtimes.contains(runtime) => refuse(format!(
                "it has no runtime {}: it has {}",
                error::shown(runtime),
                error::shown(&facts.runtimes.join(", "))
            )),
            _ => Ok(()),
        },
    }
}

#[async_trait]
impl SandboxBackend for ContainerBackend {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        let inner = Arc::clone(&self.inner);
        serve::to_the_end(async move { inner.claim(request).await }).await
    }

    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        Ok(hold(&self.inner.registry).find(filter))
    }

    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        let (inner, entry) = self.inner.of(id)?;
        serve::to_the_end(async move {
            let mut record = entry.turn.lock().await;
            // another release may have come first
            hold(&inner.registry).entry(&entry.id)?;
            inner.ready().await?;
            record.phase = Phase::Releasing;
            inner.remove(&entry, &record).await
        })
        .await
    }

    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        let (inner, entry) = self.inner.of(id)?;
        serve::to_the_end(async move {
            let mut record = inner.turn(&entry).await?;
            inner.ready().await?;
            inner.hibernate(&entry, &mut record, to).await
        })
        .await
    }

    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        let (inner, entry) = self.inner.of(id)?;
        serve::to_the_end(async move {
            let mut record = inner.turn(&entry).await?;
            inner.ready().await?;
            inner.wake(&entry, &mut record).await
        })
        .await
    }

    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        let (inner, entry) = self.inner.of(id)?;
        let port = match target {
            Target::Channel => None,
            Target::Port(port) => Some(port.get()),
            _ => {
                return Err(BackendError::Unsupported {
                    backend: BACKEND,
                    what: format!("connect to {target:?}"),
                });
            }
        };
        let work = async {
            // the turn covers opening alone: a guest that never answers holds up nobody but its caller
            let stream = {
                let record = inner.turn(&entry).await?;
                if record.phase != Phase::Running {
                    return Err(conflict(&record, "it does not run"));
                }
                channel::dial(&Places::of(&entry.directory).channel).await
            };
            let stream = stream.map_err(|source| BackendError::Unreachable {
                id: id.clone(),
                target: "the guest channel".to_owned(),
                source: Some(Box::new(source)),
            })?;
            match port {
                None => Ok(Box::new(stream) as BoxedDuplex),
                Some(port) => Ok(Box::new(channel::relay(id, stream, port).await?) as BoxedDuplex),
            }
        };
        match serve::within(channel::ANSWER_LIMIT, work).await {
            Some(result) => result,
            None => Err(channel::misbehaved(id, "it did not answer within 10 s")),
        }
    }

    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError> {
        file.check()?;
        let (inner, entry) = self.inner.of(id)?;
        serve::to_the_end(async move {
            let _record = inner.turn(&entry).await?;
            let identity = Places::of(&entry.directory).identity;
            serve::blocking(move || {
                disk::replace(&identity, file.name.as_str(), &file.bytes, 0o644)
                    .map_err(refused("cannot write a host file"))
            })
            .await
        })
        .await
    }

    fn tenants(&self) -> Option<&dyn Tenants> {
        Some(self)
    }
}

#[async_trait]
impl Tenants for ContainerBackend {
    async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), BackendError> {
        let (inner, tenant) = (Arc::clone(&self.inner), tenant.clone());
        serve::to_the_end(async move {
            // the registry is not held meanwhile: the disk may take its time, and every call looks into it
            let _turn = inner.tenants_turn.lock().await;
            let mut tenants = hold(&inner.registry).tenants.clone();
            tenants.insert(tenant, max_claims);
            let list: Vec<_> = tenants.iter().map(|(tenant, cap)| (tenant.clone(), *cap)).collect();
            let data = inner.data.clone();
            serve::blocking(move || {
                bwrap::open::store_tenants(&data, &list).map_err(refused("cannot write the tenants' caps"))
            })
            .await?;
            hold(&inner.registry).tenants = tenants;
            Ok(())
        })
        .await
    }
}

impl Inner {
    fn capabilities(&self) -> Capabilities {
        let facts = &self.engine.facts;
        let held = |held| if held { Enforcement::Enforced } else { Enforcement::Absent };
        let mut limits = LimitCapabilities::all(Enforcement::Absent);
        // all three or none: a start that does not see what it asked for is refused
        for limit in [&mut limits.memory, &mut limits.cpu, &mut limits.pids] {
            *limit = held(self.holds_limits());
        }
        Capabilities::new(facts.flavor.name())
            .with_network_modes(vec![NetworkMode::None, NetworkMode::Egress])
            .with_freeze(if self.freezes() { Freeze::Kernel } else { Freeze::Absent })
            .with_survives_restart(true)
            .with_tenants(true)
            .with_limits(limits)
    }

    const fn holds_limits(&self) -> bool {
        let facts = &self.engine.facts;
        facts.memory && facts.cpu && facts.pids
    }

    const fn freezes(&self) -> bool {
        self.engine.facts.cgroups
    }

    /// The name of a box's container.
    fn container(&self, id: &SandboxId) -> String {
        format!("cocoonbox-{}-{id}", self.node)
    }

    /// The first host id of a share.
    const fn first_of(&self, share: u32) -> u32 {
        self.first + share * SHARE
    }

    /// Makes sure that a service of our own answers.
    async fn ready(&self) -> Result<(), BackendError> {
        let Some(service) = &self.service else { return Ok(()) };
        service.ensure().await.map_err(|error| BackendError::Unavailable {
            backend: BACKEND,
            reason: error.to_string(),
            source: Some(Box::new(error)),
        })
    }

    /// Opens a recorded process; nothing when it is gone or its pid names another by now.
    #[expect(clippy::unused_self, reason = "a box's processes are this machine's")]
    fn open(&self, process: &Process) -> Option<OwnedFd> {
        process::open_started(process.pid, process.start_time)
    }

    fn of(self: &Arc<Self>, id: &SandboxId) -> Result<(Arc<Self>, Arc<Entry>), BackendError> {
        Ok((Arc::clone(self), hold(&self.registry).entry(id)?))
    }

    /// Waits for the caller's turn on a claim.
    async fn turn<'a>(&self, entry: &'a Entry) -> Result<tokio::sync::MutexGuard<'a, Record>, BackendError> {
        let record = entry.turn.lock().await;
        // it may have been released while the caller waited
        hold(&self.registry).entry(&entry.id)?;
        if record.phase == Phase::Releasing {
            return Err(BackendError::NotFound { id: entry.id.clone() });
        }
        Ok(record)
    }
}
