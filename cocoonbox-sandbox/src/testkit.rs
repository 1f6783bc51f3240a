//! What tests of other crates need to make boxes in containers: engines that touch nothing of the machine's.

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use cocoonbox_core::ImageName;

use crate::{ContainerConfig, EngineChoice};

/// An engine of the tests' own.
pub trait EngineForTests: fmt::Debug + Send + Sync {
    /// Returns where it answers.
    fn socket(&self) -> PathBuf;

    /// Configures a backend of this engine with a data directory of its own.
    fn config(&self, data: &Path, agent: &Path) -> ContainerConfig {
        ContainerConfig::new(data, agent, EngineChoice::Socket(self.socket()))
    }
}

/// Returns an image that each of these engines has: busybox and its names, and nothing else.
///
/// # Panics
/// Never: the name is good.
pub fn image() -> ImageName {
    "cocoonbox-test:1".parse().expect("the name is good")
}

/// What runs an engine: a script, and the directory that is all it has. All of it is ended and removed when this
/// process ends, however it ends.
#[derive(Debug)]
struct Kept {
    directory: PathBuf,
    /// What keeps it: when this is closed, and be it by the end of this process, the script cleans up.
    _keeper: ChildStdin,
}

impl Kept {
    fn start(name: &str, script: &str) -> io::Result<Self> {
        let directory = directory(name)?;
        rootfs(&directory.join("rootfs"))?;
        fs::write(directory.join("containers.conf"), configuration())?;
        let log = fs::File::create(directory.join("log"))?;
        // a session of its own: what ends the tests must not end the one who cleans up after them
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", script, &format!("{name}-for-tests")]).arg(&directory);
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        let mut script = command.spawn()?;
        let keeper = script.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        for _ in 0..3000 {
            if directory.join("ready").exists() {
                return Ok(Self { directory, _keeper: keeper });
            }
            if let Some(status) = script.try_wait()? {
                let mut said = String::new();
                let _ = fs::File::open(directory.join("log"))
                    .and_then(|file| file.take(4096).read_to_string(&mut said));
                let _ = fs::remove_dir_all(&directory);
                return Err(io::Error::other(format!("{name} does not work here ({status}): {said}")));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("{name} does not answer")))
    }
}

/// Makes podman's service, waits until nobody needs it, and removes it.
const PODMAN: &str = r#"
dir=$1
export CONTAINERS_CONF=$dir/containers.conf HOME=$dir XDG_RUNTIME_DIR=$dir
unset DOCKER_HOST CONTAINER_HOST XDG_CONFIG_HOME XDG_DATA_HOME
own="--root $dir/storage --runroot $dir/run --tmpdir $dir/tmp"
clean() {
    [ -z "${service-}" ] || kill -9 "$service"
    podman $own rm -fa -t 0
    mount | grep -F "$dir/" | cut -d ' ' -f 3 | sort -r | while read -r point; do umount -l "$point"; done
    [ "$(id -u)" = 0 ] || podman $own unshare rm -rf "$dir/storage"
    rm -rf "$dir"
} >/dev/null 2>&1
trap '' HUP INT TERM
tar -C "$dir/rootfs" -c . | podman $own import - localhost/cocoonbox-test:1 || { clean; exit 1; }
(cd "$dir" && exec podman $own system service --time=0 "unix://$dir/engine.sock") &
service=$!
for turn in $(seq 1500); do
    [ ! -S "$dir/engine.sock" ] || break
    kill -0 "$service" || { clean; exit 1; }
    sleep 0.02
done
: > "$dir/ready"
read -r nothing
clean
"#;

/// The same for a daemon of Docker.
const DOCKER: &str = r#"
dir=$1
export HOME=$dir DOCKER_HOST=unix://$dir/engine.sock
unset DOCKER_CONTEXT DOCKER_CONFIG
clean() {
    docker ps -aq | while read -r container; do docker rm -f "$container"; done
    [ -z "${daemon-}" ] || { kill "$daemon"; wait "$daemon"; }
    mount | grep -F "$dir/" | cut -d ' ' -f 3 | sort -r | while read -r point; do umount -l "$point"; done
    rm -rf "$dir"
} >/dev/null 2>&1
trap '' HUP INT TERM
dockerd --data-root "$dir/storage" --exec-root "$dir/run" --pidfile "$dir/pid" -H "$DOCKER_HOST" \
    --bridge=none --iptables=false &
daemon=$!
for turn in $(seq 1500); do
    ! docker version >/dev/null 2>&1 || break
    kill -0 "$daemon" || { clean; exit 1; }
    sleep 0.02
done
tar -C "$dir/rootfs" -c . | docker import - cocoonbox-test:1 || { clean; exit 1; }
: > "$dir/ready"
read -r nothing
clean
"#;

/// A podman service with storage, images and containers of its own, for the tests of one process.
#[derive(Debug)]
pub struct PodmanForTests(Kept);

impl PodmanForTests {
    /// Returns the engine of this process, made when it is first asked for.
    ///
    /// # Errors
    /// Why there is none: podman or busybox is not installed, or podman does not work here.
    pub fn shared() -> Result<&'static Self, String> {
        static SHARED: OnceLock<Result<PodmanForTests, String>> = OnceLock::new();
        let start = || Kept::start("podman", PODMAN).map(Self).map_err(|error| error.to_string());
        SHARED.get_or_init(start).as_ref().map_err(Clone::clone)
    }

    /// Runs podman on this engine's storage, past its service.
    pub fn podman(&self) -> Command {
        let directory = &self.0.directory;
        let mut command = Command::new("podman");
        command.arg("--root").arg(directory.join("storage"));
        command.arg("--runroot").arg(directory.join("run"));
        command.arg("--tmpdir").arg(directory.join("tmp"));
        command.env("CONTAINERS_CONF", directory.join("containers.conf"));
        command.env("HOME", directory).env("XDG_RUNTIME_DIR", directory);
        command
    }
}

impl EngineForTests for PodmanForTests {
    fn socket(&self) -> PathBuf {
        self.0.directory.join("engine.sock")
    }
}

/// A Docker daemon with storage, images and containers of its own, for the tests of one process; root alone can have
/// one.
#[derive(Debug)]
pub struct DockerForTests(Kept);

impl DockerForTests {
    /// Returns the engine of this process, made when it is first asked for.
    ///
    /// # Errors
    /// Why there is none: dockerd or busybox is not installed, or the daemon does not run here.
    pub fn shared() -> Result<&'static Self, String> {
        static SHARED: OnceLock<Result<DockerForTests, String>> = OnceLock::new();
        let start = || Kept::start("docker", DOCKER).map(Self).map_err(|error| error.to_string());
        SHARED.get_or_init(start).as_ref().map_err(Clone::clone)
    }
}

impl EngineForTests for DockerForTests {
    fn socket(&self) -> PathBuf {
        self.0.directory.join("engine.sock")
    }
}

/// A directory for this user alone, with a short name: sockets lie in it.
fn directory(name: &str) -> io::Result<PathBuf> {
    for number in 0..1000_u32 {
        let path = PathBuf::from(format!("/tmp/cbx-{name}-{}-{number}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn rootfs(path: &Path) -> io::Result<()> {
    for folder in ["bin", "etc", "usr"] {
        fs::create_dir_all(path.join(folder))?;
    }
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "apt-get install busybox-static"));
    }
    fs::copy(busybox, path.join("bin/busybox"))?;
    fs::set_permissions(path.join("bin/busybox"), fs::Permissions::from_mode(0o755))?;
    let names = Command::new(busybox).arg("--list").output()?;
    for name in String::from_utf8_lossy(&names.stdout).lines().filter(|name| *name != "busybox") {
        std::os::unix::fs::symlink("busybox", path.join("bin").join(name))?;
    }
    std::os::unix::fs::symlink("/run/cocoonbox-identity/machine-id", path.join("etc/machine-id"))
}

fn configuration() -> String {
    let most = |resource| rustix::process::getrlimit(resource).maximum.unwrap_or(20000).min(20000);
    let (files, processes) =
        (most(rustix::process::Resource::Nofile), most(rustix::process::Resource::Nproc));
    format!(
        "[containers]\ndefault_ulimits=[\"nofile={files}:{files}\",\"nproc={processes}:{processes}\"]\n\
         [engine]\nruntime=\"runc\"\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\n"
    )
}
