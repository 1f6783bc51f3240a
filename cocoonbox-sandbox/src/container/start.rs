//! From a record to a box that answers.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::{BackendError, Doors, HostFile, Nesting, SandboxId};

use super::Inner;
use super::engine::{Engine, Flavor, Standing};
use super::error::{failed, refused, unavailable, words};
use super::handoff::{Handoff, Met};
use super::image as images;
use super::inspection::{self, Demand};
use super::journal::{Process, Record};
use super::plan::{Ids, Limits, Mount, Plan, USER};
use super::registry::{Entry, hold};
use super::work::left_behind;
use super::{serve, service};
use crate::bwrap::{channel, disk, image, process};
use crate::filter;

/// How long a container's first process has to come for its descriptors, and then for its first answer.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How often a container is looked at that does not come.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// The directories of a claim.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) lock: PathBuf,
    pub(super) channel: PathBuf,
    pub(super) doors: PathBuf,
    pub(super) identity: PathBuf,
    handoff: PathBuf,
    etc: PathBuf,
    home: PathBuf,
    workspace: PathBuf,
}

impl Places {
    pub(super) fn of(directory: &Path) -> Self {
        let files = directory.join("files");
        Self {
            lock: directory.join("lock"),
            channel: directory.join("channel"),
            doors: directory.join("doors"),
            identity: directory.join("identity"),
            handoff: directory.join("handoff"),
            etc: directory.join("etc"),
            home: files.join("home"),
            workspace: files.join("workspace"),
        }
    }
}

/// Makes the directories of a new claim and writes its host files; `owner` is the box's user on the host.
pub(super) fn make_places(directory: &Path, owner: Option<u32>, host_files: &[HostFile]) -> io::Result<()> {
    let places = Places::of(directory);
    disk::directory(&places.channel, 0o700)?;
    for path in [&places.doors, &places.identity, &places.etc, &places.handoff] {
        disk::directory(path, 0o755)?;
    }
    disk::directory(&directory.join("files"), 0o700)?;
    for path in [&places.home, &places.workspace] {
        disk::owned_directory(path, 0o755, owner)?;
    }
    for (name, content) in image::new_home() {
        let path = places.home.join(name);
        fs::write(&path, content)?;
        disk::give(&path, owner)?;
    }
    for file in host_files {
        disk::replace(&places.identity, file.name.as_str(), &file.bytes, 0o644)?;
    }
    Ok(())
}

/// Starts the container of a claim and waits until its guest answers.
///
/// On failure nothing of it is left. The record's phase is the caller's affair.
pub(super) async fn start(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    record: &mut Record,
) -> Result<(), BackendError> {
    let Err(error) = attempt(inner, entry, record).await else { return Ok(()) };
    let said = inner.engine.log(&inner.container(&entry.id)).await;
    match inner.end(entry, record).await {
        Ok(()) => record.process = None,
        Err(left) => left_behind(&entry.id, &left),
    }
    Err(match error {
        BackendError::StartFailed { reason, source } if !said.is_empty() => {
            BackendError::StartFailed { reason: format!("{reason}; it said: {said}"), source }
        }
        other => other,
    })
}

async fn attempt(inner: &Arc<Inner>, entry: &Arc<Entry>, record: &mut Record) -> Result<(), BackendError> {
    let image = images::bring(inner, &record.image).await?;
    let (here, wanted) = (entry.directory.clone(), record.clone());
    let prepared = serve::blocking(move || {
        prepare(&here, &wanted).map_err(|error| failed("its files could not be prepared", Some(error)))
    });
    let (handoff, doors) = prepared.await?;
    if let Some(listener) = doors {
        let handle = serve::doors(inner, entry, listener).map_err(refused("cannot serve the doors"))?;
        *hold(&entry.doors) = Some(handle);
    }
    let plan = plan(inner, &entry.directory, record, image);
    let demand = Demand { seccomp: inner.engine.facts.seccomp, limits: plan.limits };
    let made = async {
        let id = inner.engine.create(&plan).await?;
        inner.engine.start(&id).await.map(|()| id)
    };
    let container = made.await.map_err(|error| {
        failed(format!("the engine did not start it: {}", words(&error)), Some(io::Error::other(error)))
    })?;

    let met = met(&inner.engine, &container, handoff).await?;
    let pid = met.pid;
    let stat = process::stat(pid).ok_or_else(|| failed("the guest's first process ended at once", None))?;
    let pid_namespace = process::pid_namespace(pid);
    let process = Process {
        container,
        pid,
        start_time: stat.start_time,
        pid_namespace: pid_namespace
            .filter(|found| process::pid_namespace(std::process::id() as i32) != Some(*found))
            .ok_or_else(|| failed("the guest's first process is in no pid namespace of its own", None))?,
        agent: inner.agent.clone(),
    };
    inspection::inspect(pid, demand)
        .map_err(|told| failed(format!("the engine did not confine it as asked: {told}"), None))?;
    record.process = Some(process.clone());
    entry.store(record).await?;
    met.give().map_err(|error| failed("its channel could not be handed over", Some(error)))?;
    let handle =
        inner.open(&process).ok_or_else(|| failed("the guest's first process ended at once", None))?;

    let channel = Places::of(&entry.directory).channel;
    match serve::within(START_LIMIT, first_answer(&entry.id, &channel)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            return Err(failed(
                "its first process does not answer as it should",
                Some(io::Error::other(error)),
            ));
        }
        None => return Err(failed("its first process did not answer in time", None)),
    }
    serve::watch(inner, entry, handle, process);
    Ok(())
}

/// Waits for the first process of a container to come for its descriptors.
async fn met(engine: &Engine, container: &str, handoff: Handoff) -> Result<Met, BackendError> {
    let over = async {
        loop {
            serve::pause(LOOK_AGAIN).await;
            match engine.look(container).await {
                Ok(Some(found)) if found.state != Standing::Over => {}
                _ => return,
            }
        }
    };
    let first = async {
        tokio::select! {
            met = handoff.met() => Some(met),
            () = over => None,
        }
    };
    let met = match serve::within(START_LIMIT, first).await {
        None => return Err(failed("its first process did not come for its channel in time", None)),
        Some(None) => return Err(failed("its first process ended at once", None)),
        Some(Some(met)) => {
            met.map_err(|error| failed("its channel could not be handed over", Some(error)))?
        }
    };
    // nothing but our own binary can have run in it yet; an engine in another pid namespace has other numbers
    let found = engine.look(container).await.ok().flatten();
    if found.is_some_and(|found| found.pid == i64::from(met.pid)) {
        Ok(met)
    } else {
        Err(failed(
            "somebody else than its first process came for its channel, or the engine is on another machine",
            None,
        ))
    }
}

/// Makes sure that the guest answers.
pub(super) async fn first_answer(id: &SandboxId, channel: &Path) -> Result<(), BackendError> {
    let stream =
        channel::dial(channel).await.map_err(|error| unavailable("the guest channel is closed", error))?;
    channel::ask_info(id, stream).await
}

type Prepared = (Handoff, Option<std::os::unix::net::UnixListener>);

fn prepare(directory: &Path, record: &Record) -> io::Result<Prepared> {
    let places = Places::of(directory);
    let lock = crate::bwrap::serve::lock_soon(&places.lock)?
        .ok_or_else(|| io::Error::other("processes of an earlier start still hold the box's lock"))?;
    for path in [&places.home, &places.workspace] {
        // a guest that locked itself out is let in again, or its box would never start
        let mode = fs::symlink_metadata(path)?.permissions().mode();
        if mode & 0o700 != 0o700 {
            fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o700))?;
        }
    }
    for (name, content) in image::own_etc(&record.hostname) {
        fs::write(places.etc.join(name), content)?;
        fs::set_permissions(places.etc.join(name), fs::Permissions::from_mode(0o644))?;
    }
    let channel: OwnedFd = channel::listen(&places.channel)?.into();
    let filters = filter::files(Nesting::Denied)?;
    let handoff = Handoff::bind(&places.handoff, channel, lock.into(), filters)?;
    let doors = if record.doors == Doors::Bound { Some(bind_doors(&places.doors)?) } else { None };
    Ok((handoff, doors))
}

/// Binds a box's door socket.
pub(super) fn bind_doors(directory: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let listener = channel::bind(directory, "door.sock")?;
    // the box's uid connects; the directory's mount keeps it from anything else
    fs::set_permissions(directory.join("door.sock"), fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

fn plan(inner: &Inner, directory: &Path, record: &Record, image: String) -> Plan {
    let places = Places::of(directory);
    let limits = Limits::of(record.size);
    let bind = |source: &Path, target: &str, writable| Mount::Bind {
        source: source.to_owned(),
        target: target.to_owned(),
        writable,
    };
    let memory = |target, bytes| Mount::Memory { target, bytes };
    const MIB: u64 = 1024 * 1024;
    // /run first: others lie in it
    let mut mounts = vec![
        memory("/run", 64 * MIB),
        memory("/tmp", limits.memory / 2),
        memory("/var/tmp", limits.memory / 2),
        memory("/dev/shm", 256 * MIB),
        bind(&places.home, "/home/user", true),
        bind(&places.workspace, "/workspace", true),
        bind(&places.identity, "/run/cocoonbox-identity", false),
        bind(&places.handoff, "/run/cocoonbox-handoff", false),
        bind(&inner.data.join("bin").join(&inner.agent), "/opt/cocoonbox/bin", false),
    ];
    if record.doors == Doors::Bound {
        mounts.push(bind(&places.doors, "/run/cocoonbox-doors", false));
    }
    for (name, _) in image::own_etc(&record.hostname) {
        mounts.push(bind(&places.etc.join(name), &format!("/etc/{name}"), false));
    }
    Plan {
        name: inner.container(&record.id),
        node: inner.node.clone(),
        sandbox: record.id.as_str().to_owned(),
        image,
        hostname: record.hostname.clone(),
        mounts,
        doors: record.doors == Doors::Bound,
        ids: inner.ids(record.share),
        limits: inner.holds_limits().then_some(limits),
        ulimits: service::ulimits(),
        runtime: inner.config.runtime.clone(),
    }
}

impl Inner {
    /// How the ids of a box with this share are the host's.
    pub(super) fn ids(&self, share: Option<u32>) -> Ids {
        match (share, self.engine.facts.flavor, self.engine.facts.rootless) {
            (Some(share), ..) => Ids::From(self.first_of(share)),
            (None, Flavor::Podman, true) => Ids::Own,
            _ => Ids::Engine,
        }
    }

    /// Returns the host's uid of a box's user, where its files must be given to it.
    pub(super) fn owner(&self, share: Option<u32>) -> Option<u32> {
        match self.ids(share) {
            Ids::From(first) => Some(first + USER),
            Ids::Own => None,
            Ids::Engine => Some(USER).filter(|_| self.own.0 == 0),
        }
    }
}
