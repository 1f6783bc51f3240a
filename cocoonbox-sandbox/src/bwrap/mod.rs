//! Boxes by bubblewrap.

mod advice;
mod arguments;
mod cgroup;
pub(crate) mod channel;
mod config;
mod control;
mod defence;
pub(crate) mod disk;
mod error;
mod etc;
mod hierarchy;
mod hostname;
pub(crate) mod image;
mod journal;
mod launch;
mod limit;
pub(crate) mod map;
mod meter;
pub(crate) mod open;
mod pool;
pub(crate) mod process;
mod registry;
pub(crate) mod serve;
mod stage;
mod start;
mod stop;
pub(crate) mod tree;
mod usage;
mod volume;
mod watch;
mod work;

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cocoonbox_core::backend::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, Freeze, HibernateTo, HostFile,
    Memory, Meter, NetworkMode, Pools, SandboxBackend, SandboxId, Target, Tenants,
};
use cocoonbox_core::{Clock, Entropy, TenantName};
use cocoonbox_wire::AGENT_PORT;
use sha2::{Digest as _, Sha256};

#[cfg(feature = "http")]
pub(crate) use channel::bind;
pub use config::BwrapConfig;
pub use defence::Defence;
pub use error::OpenError;
#[cfg(feature = "container")]
pub(crate) use journal::draw_id;
#[cfg(feature = "container")]
pub(crate) use launch::find_program;
pub use limit::{DiskLimit, Limits, ProcessLimit, Reserve, Tier};

use cgroup::Cgroups;
use control::Controller;
use error::{BACKEND, refused};
use journal::{Phase, Record};
use map::Map;
use registry::{Entry, Registry, check_uids, hold};
use start::Places;
use work::conflict;

use crate::filter;

/// Sandboxes made with bubblewrap on this machine, as root or as an ordinary user.
///
/// Dropping it leaves every claimed box as it is: running boxes go on, and opening the same data directory finds them.
/// Boxes that wait in pools end.
#[derive(Debug)]
pub struct BwrapBackend {
    inner: Arc<Inner>,
    _filling: serve::Filling,
}

impl Drop for BwrapBackend {
    fn drop(&mut self) {
        self.inner.end_warm();
    }
}

/// What calls and the work beside them share.
#[derive(Debug)]
struct Inner {
    config: BwrapConfig,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    data: PathBuf,
    /// What this node is called among others of the machine.
    node: String,
    /// This process's uid and gid.
    own: (u32, u32),
    /// The uids for boxes, where the node can give any.
    uids: Option<Range<u32>>,
    /// The ids beside its own that an ordinary user may give, where it may give any.
    map: Option<Arc<Map>>,
    /// The name of the present copy of the guest's binary.
    agent: String,
    cgroups: Cgroups,
    etc: etc::Copies,
    registry: Mutex<Registry>,
    /// Held by who writes the tenants' caps or the pools' targets.
    settings_turn: tokio::sync::Mutex<()>,
    /// Told when the pools may need something.
    refill: Arc<tokio::sync::Notify>,
    /// Held as long as this value lives: one server per data directory.
    _lock: fs::File,
}

impl BwrapBackend {
    /// Opens the data directory, takes in every claim in it again and settles what was left half done.
    ///
    /// Runs on a tokio runtime with IO and time, and stays on it.
    ///
    /// # Errors
    /// Any of [`OpenError`]; nothing is then changed, but for half-done work that was settled.
    pub async fn open(
        mut config: BwrapConfig,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Arc<Self>, OpenError> {
        let (data, lock) = open::directory(&config.data).await?;
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let agent = open::agent(&data, &config.agent)?;
        let digest = Sha256::digest(data.as_os_str().as_encoded_bytes());
        let node: String = open::hex(&digest[..6]);
        // nodes on one machine start from different places, as their boxes should not share a uid
        let base = 0x7000_0000 + ((u32::from(digest[6]) << 8 | u32::from(digest[7])) & 0x0fff) * 4096;
        let uids = config.uids.clone().unwrap_or(base..base + 4096);
        check_uids(&uids).map_err(OpenError::Settle)?;
        let map = if own.0 != 0 && config.holds(Defence::UidMap) { open::map().await } else { None };
        let uids = match &map {
            Some(map) => open::share(map, config.uids.as_ref(), &digest[6..8]),
            None if own.0 == 0 && config.holds(Defence::UidMap) => open::may_give(&uids)?.then_some(uids),
            None => None,
        };
        let mut registry = Registry::default();
        registry.tenants.extend(open::tenants(&data)?);
        if config.limits.disk == DiskLimit::Loop
            && let Err(error) = if own.0 == 0 { volume::check(&data) } else { Err(not_root()) }
        {
            tracing::warn!(%error, "boxes cannot have file systems of their own here: their disk is watched");
            config.limits.disk = DiskLimit::Watch;
        }
        let cgroups = Cgroups::find(&node, &config.limits);
        let inner = Arc::new(Inner {
            etc: etc::Copies::new(&data),
            config,
            clock,
            entropy,
            data,
            own,
            uids,
            map: map.map(Arc::new),
            agent,
            cgroups,
            node,
            registry: Mutex::new(registry),
            settings_turn: tokio::sync::Mutex::new(()),
            refill: Arc::default(),
            _lock: lock,
        });
        let targets = pool::load(&inner.data)?;
        open::adopt(&inner).await?;
        if inner.watches() {
            serve::watch_disks(&inner);
        }
        hold(&inner.registry).pools.set(targets);
        inner.refill.notify_one();
        let filling = serve::fill_pools(&inner);
        Ok(Arc::new(Self { inner, _filling: filling }))
    }

    /// Returns the defences that boxes of this node have on this machine: all, but for the system call filter on an
    /// architecture without one, Landlock where the kernel lacks it or has its first version, and a uid of a box's own
    /// where the node can give none.
    pub fn defences(&self) -> Vec<Defence> {
        let there = |defence: &Defence| match defence {
            Defence::SystemCallFilter => filter::is_there(),
            Defence::Landlock => {
                crate::probe::namespace::landlock_version().is_ok_and(|version| version >= 2)
            }
            Defence::UidMap => self.inner.uids.is_some(),
            _ => true,
        };
        let all = Defence::ALL.into_iter();
        all.filter(|defence| self.inner.config.holds(*defence) && there(defence)).collect()
    }
}

#[async_trait]
impl SandboxBackend for BwrapBackend {
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
            record.phase = Phase::Releasing;
            inner.remove(&entry, &record).await
        })
        .await
    }

    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        let (inner, entry) = self.inner.of(id)?;
        serve::to_the_end(async move {
            let mut record = inner.turn(&entry).await?;
            inner.hibernate(&entry, &mut record, to).await
        })
        .await
    }

    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        let (inner, entry) = self.inner.of(id)?;
        serve::to_the_end(async move {
            let mut record = inner.turn(&entry).await?;
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
                let channel = Places::of(&entry.directory).channel;
                match port {
                    // what a guest that answers on its channel says of this port it says itself
                    Some(AGENT_PORT) => match channel::dial_agent(&channel).await {
                        Ok(Some(stream)) => return Ok(Box::new(stream) as BoxedDuplex),
                        Ok(None) => channel::dial(&channel).await,
                        Err(error) => Err(error),
                    },
                    _ => channel::dial(&channel).await,
                }
            };
            let stream = stream.map_err(|source| BackendError::Unreachable {
                id: id.clone(),
                target: target.to_string(),
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

    fn meter(&self) -> Option<&dyn Meter> {
        Some(self)
    }

    fn pools(&self) -> Option<&dyn Pools> {
        Some(self)
    }
}

#[async_trait]
impl Tenants for BwrapBackend {
    async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), BackendError> {
        let (inner, tenant) = (Arc::clone(&self.inner), tenant.clone());
        serve::to_the_end(async move {
            // the registry is not held meanwhile: the disk may take its time, and every call looks into it
            let _turn = inner.settings_turn.lock().await;
            let mut tenants = hold(&inner.registry).tenants.clone();
            // what is in memory was written
            if tenants.insert(tenant, max_claims) == Some(max_claims) {
                return Ok(());
            }
            let list: Vec<_> = tenants.iter().map(|(tenant, cap)| (tenant.clone(), *cap)).collect();
            let data = inner.data.clone();
            serve::blocking(move || {
                open::store_tenants(&data, &list).map_err(refused("cannot write the tenants' caps"))
            })
            .await?;
            hold(&inner.registry).tenants = tenants;
            Ok(())
        })
        .await
    }
}

fn not_root() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::PermissionDenied, "only root can mount them")
}

/// Returns each controller that limits boxes and the version of its cgroups, where one could be used under the name
/// `node`. Nothing is left of it.
pub(crate) fn controllers(node: &str) -> Vec<(&'static str, Option<&'static str>)> {
    let found = Cgroups::find(node, &Limits::default());
    Controller::ALL.iter().map(|controller| (controller.name(), found.version(*controller))).collect()
}

#[cfg(fuzzing)]
pub(crate) fn fuzz_record(bytes: &[u8]) {
    if let Ok(record) = Record::parse(bytes) {
        let again = serde_json::to_vec(&record).expect("a record is always JSON");
        assert_eq!(Record::parse(&again).expect("what we write we read"), record);
        let _ = record.claim();
    }
}

impl Inner {
    fn capabilities(&self) -> Capabilities {
        let freeze = if self.cgroups.freezes() { Freeze::Kernel } else { Freeze::Signals };
        Capabilities::new(BACKEND)
            .with_network_modes(vec![NetworkMode::None, NetworkMode::Egress])
            .with_freeze(freeze)
            .with_survives_restart(true)
            .with_nesting(true)
            .with_tenants(true)
            .with_limits(self.limits())
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
