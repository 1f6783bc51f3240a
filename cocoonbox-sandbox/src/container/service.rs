//! Finding an engine, and a podman service of the backend's own.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::config::EngineChoice;
use super::engine::Engine;
use super::registry::hold;
use super::serve::{self, Child};
use crate::bwrap::{OpenError, disk, find_program};

/// How long a service has until it answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long an orphan has to end.
const ORPHAN_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// The most open files that a box's user may have.
const MOST_FILES: u64 = 1 << 20;
/// The most processes that a box's user may have: podman lets its containers have no more where it may not raise it.
const MOST_PROCESSES: u64 = 32768;

/// A podman service that ends with its owner.
#[derive(Debug)]
pub(super) struct Service {
    program: PathBuf,
    place: PathBuf,
    run: PathBuf,
    child: Mutex<Option<Child>>,
    /// Held by who starts it.
    turn: tokio::sync::Mutex<()>,
}

/// Reaches the engine of a choice; a service that was started for it ends with the second value.
pub(super) async fn reach(
    choice: &EngineChoice,
    data: &Path,
    node: &str,
) -> Result<(Engine, Option<Service>), OpenError> {
    match choice {
        EngineChoice::Socket(socket) => Ok((connect(socket).await?, None)),
        EngineChoice::Podman { program } => {
            let service = Service::new(program, data, node)?;
            service.ensure().await?;
            Ok((connect(&service.socket()).await?, Some(service)))
        }
    }
}

async fn connect(socket: &Path) -> Result<Engine, OpenError> {
    Engine::connect(socket).await.map_err(|error| OpenError::Engine {
        place: socket.display().to_string(),
        reason: super::error::words(&error),
    })
}

impl Service {
    fn new(program: &Path, data: &Path, node: &str) -> Result<Self, OpenError> {
        let program = find_program(program).ok_or_else(|| OpenError::Engine {
            place: program.display().to_string(),
            reason: "there is no such program: `apt-get install podman runc uidmap`".to_owned(),
        })?;
        let place = data.join("engine");
        disk::directory(&place, 0o700).map_err(OpenError::unusable(&place, "making it"))?;
        let run = run_directory(node)?;
        Ok(Self { program, place, run, child: Mutex::new(None), turn: tokio::sync::Mutex::default() })
    }

    fn socket(&self) -> PathBuf {
        self.run.join("podman.sock")
    }

    /// Starts the service where it does not run, and waits until it answers.
    pub(super) async fn ensure(&self) -> Result<(), OpenError> {
        let _turn = self.turn.lock().await;
        if hold(&self.child).as_mut().is_some_and(|child| !child.is_over()) && self.answers().await {
            return Ok(());
        }
        *hold(&self.child) = None;
        self.end_orphan().await;
        let log = self.place.join("service.log");
        let child = self.start(&log).map_err(OpenError::unusable(&log, "starting podman's service"))?;
        let pid = child.id().unwrap_or_default().to_string();
        let _ = disk::replace(&self.place, "service.pid", pid.as_bytes(), 0o600);
        *hold(&self.child) = Some(child);
        let socket = self.socket();
        let answers = async {
            while Engine::connect(&socket).await.is_err() {
                if hold(&self.child).as_mut().is_none_or(Child::is_over) {
                    return false;
                }
                serve::pause(PAUSE).await;
            }
            true
        };
        if serve::within(ANSWER_LIMIT, answers).await == Some(true) {
            return Ok(());
        }
        *hold(&self.child) = None;
        let said = fs::read_to_string(&log).unwrap_or_default();
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        Err(OpenError::Engine {
            place: self.program.display().to_string(),
            reason: format!("its service does not answer: {}", super::error::shown(last)),
        })
    }

    /// Returns whether it answers: a service that was just killed may still be a process that listens.
    async fn answers(&self) -> bool {
        let socket = self.socket();
        serve::within(ANSWER_LIMIT, Engine::answers(&socket)).await == Some(true)
    }

    fn start(&self, log: &Path) -> io::Result<Child> {
        disk::replace(&self.place, "containers.conf", configuration().as_bytes(), 0o600)?;
        match fs::remove_file(self.socket()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(self.place.join("storage"));
        command.arg("--runroot").arg(self.run.join("storage"));
        command.arg("--tmpdir").arg(self.run.join("libpod"));
        command.args(["system", "service", "--time=0"]).arg(format!("unix://{}", self.socket().display()));
        // conmon leaves a file where it stands when a box runs out of memory
        command.current_dir(&self.place);
        command.env("CONTAINERS_CONF", self.place.join("containers.conf"));
        command.env_remove("DOCKER_HOST").env_remove("CONTAINER_HOST").env_remove("NOTIFY_SOCKET");
        Child::start(command, fs::File::create(log)?)
    }

    /// Ends the service that an owner left who was killed.
    async fn end_orphan(&self) {
        let pid = disk::read(&self.place.join("service.pid"), 32);
        let pid = pid.ok().and_then(|bytes| String::from_utf8(bytes).ok()?.trim().parse().ok());
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { return };
        let Ok(handle) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
            return;
        };
        // the number may be another's by now: the service names its socket
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let socket = format!("unix://{}", self.socket().display());
        if String::from_utf8_lossy(&line).contains(&socket) {
            let _ = rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::TERM);
            let _ = serve::within(ORPHAN_LIMIT, serve::ended(handle)).await;
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        *hold(&self.child) = None;
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(self.place.join("service.pid"));
    }
}

/// A directory in memory for what must not outlive the machine's boot, with a short name: sockets lie in it.
fn run_directory(node: &str) -> Result<PathBuf, OpenError> {
    let own = rustix::process::geteuid();
    let base = if own.is_root() {
        PathBuf::from("/run")
    } else {
        PathBuf::from(format!("/run/user/{}", own.as_raw()))
    };
    let base = if base.is_dir() { base } else { std::env::temp_dir() };
    let path = base.join(format!("cocoonbox-{node}"));
    disk::directory(&path, 0o700).map_err(OpenError::unusable(&path, "making it"))?;
    let found = fs::symlink_metadata(&path).map_err(OpenError::unusable(&path, "looking at it"))?;
    if !found.is_dir() || found.uid() != own.as_raw() {
        return Err(OpenError::ForeignOwner { path, owner: found.uid(), own: own.as_raw() });
    }
    Ok(path)
}

/// The open files and processes that a box's user may have: what this process may have itself, since who has no
/// CAP_SYS_RESOURCE can give no more.
pub(super) fn ulimits() -> [(&'static str, i64); 2] {
    let most = |resource, most| getrlimit(resource).maximum.unwrap_or(most).min(most) as i64;
    [("nofile", most(Resource::Nofile, MOST_FILES)), ("nproc", most(Resource::Nproc, MOST_PROCESSES))]
}

/// The settings of the service: a runtime that takes cgroups as they are, and limits that can be given.
fn configuration() -> String {
    let [(_, files), (_, processes)] = ulimits();
    // crun refuses controllers of version 1 beside a mount of version 2
    let mixed = Path::new("/sys/fs/cgroup/unified").is_dir()
        && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let runc = (mixed && find_program(Path::new("runc")).is_some()).then_some("runtime=\"runc\"\n");
    let systemd = Path::new("/run/systemd/system").is_dir();
    format!(
        "# written by cocoonbox at each start\n[containers]\ndefault_ulimits=[\"nofile={files}:{files}\",\
         \"nproc={processes}:{processes}\"]\nhttp_proxy=false\n\n[engine]\nevents_logger=\"file\"\n{}{}",
        runc.unwrap_or_default(),
        if systemd { "" } else { "cgroup_manager=\"cgroupfs\"\n" },
    )
}
