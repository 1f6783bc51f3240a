//! What tests of other crates need to make boxes with podman: an engine that touches nothing of the machine's.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use cocoonbox_core::ImageName;

use crate::{ContainerConfig, EngineChoice};

/// A podman service with storage, images and containers of its own, for the tests of one process. All of it is ended
/// and removed when the process ends, however it ends.
#[derive(Debug)]
pub struct PodmanForTests {
    directory: PathBuf,
    /// What keeps it: when this is closed, and be it by the end of this process, a script outside of it cleans up.
    _keeper: ChildStdin,
}

/// Makes the engine, waits until nobody needs it, and removes it.
const SCRIPT: &str = r#"
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
(cd "$dir" && exec podman $own system service --time=0 "unix://$dir/podman.sock") &
service=$!
for turn in $(seq 1500); do
    [ ! -S "$dir/podman.sock" ] || break
    kill -0 "$service" || { clean; exit 1; }
    sleep 0.02
done
: > "$dir/ready"
read -r nothing
clean
"#;

impl PodmanForTests {
    /// Returns the engine of this process, made when it is first asked for.
    ///
    /// # Errors
    /// Why there is none: podman or busybox is not installed, or podman does not work here.
    pub fn shared() -> Result<&'static Self, String> {
        static SHARED: OnceLock<Result<PodmanForTests, String>> = OnceLock::new();
        SHARED.get_or_init(|| Self::start().map_err(|error| error.to_string())).as_ref().map_err(Clone::clone)
    }

    fn start() -> io::Result<Self> {
        let directory = directory()?;
        rootfs(&directory.join("rootfs"))?;
        fs::write(directory.join("containers.conf"), configuration())?;
        let log = fs::File::create(directory.join("log"))?;
        // a session of its own: what ends the tests must not end the one who cleans up after them
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", SCRIPT, "podman-for-tests"]).arg(&directory);
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
                return Err(io::Error::other(format!("podman does not work here ({status}): {said}")));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "podman's service does not answer"))
    }

    /// Returns where it answers.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("podman.sock")
    }

    /// Returns an image that it has: busybox and its names, and nothing else.
    ///
    /// # Panics
    /// Never: the name is good.
    pub fn image() -> ImageName {
        "cocoonbox-test:1".parse().expect("the name is good")
    }

    /// Configures a backend of this engine with a data directory of its own.
    pub fn config(&self, data: impl Into<PathBuf>, agent: impl Into<PathBuf>) -> ContainerConfig {
        ContainerConfig::new(data, agent, EngineChoice::Socket(self.socket()))
    }

    /// Runs podman on this engine's storage, past its service.
    pub fn podman(&self) -> Command {
        let mut command = Command::new("podman");
        command.arg("--root").arg(self.directory.join("storage"));
        command.arg("--runroot").arg(self.directory.join("run"));
        command.arg("--tmpdir").arg(self.directory.join("tmp"));
        command.env("CONTAINERS_CONF", self.directory.join("containers.conf"));
        command.env("HOME", &self.directory).env("XDG_RUNTIME_DIR", &self.directory);
        command
    }
}

/// A directory for this user alone, with a short name: sockets lie in it.
fn directory() -> io::Result<PathBuf> {
    for number in 0..1000_u32 {
        let path = PathBuf::from(format!("/tmp/cbx-podman-{}-{number}", std::process::id()));
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
