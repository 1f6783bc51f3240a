//! What the tests of the backend share: a data directory, a guest to talk to, and a second run as an ordinary user.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::print_stdout, reason = "tests say what they leave out")]

pub mod containers;

use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use cocoonbox_core::backend::{Claim, ClaimRequest, SandboxBackend, SandboxId, Target};
use cocoonbox_core::{ImageName, SystemClock, SystemEntropy};
use cocoonbox_sandbox::{BwrapBackend, BwrapConfig, OpenError};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

pub type Outcome = Result<(), Box<dyn Error>>;

/// The uid of the second run; no account of the machine has it, and so no ids beside its own.
pub const ORDINARY: &str = "61234";

/// The uid of the third run, which has an account and [`IDS`] in namespaces of the test's own.
pub const WITH_IDS: &str = "61235";

/// The ids that the third run's `/etc/subuid` and `/etc/subgid` give it.
pub const IDS: std::ops::Range<u32> = 1_700_000_000..1_700_065_536;

/// Says to a test that it is the third run.
const HAS_IDS: &str = "COCOONBOX_TEST_HAS_IDS";

/// Runs `story` as whoever runs the tests and, where that is root, once more as an ordinary user and once as one with
/// ids to give.
pub fn as_root_and_as_a_user<F: Future<Output = Outcome>>(name: &str, story: impl FnOnce() -> F) -> Outcome {
    run(story)?;
    if is_root() {
        let words = ["--exact", name, "--nocapture", "--test-threads=1"];
        as_an_ordinary_user(&words)?;
        as_a_user_with_ids(&words)?;
    }
    Ok(())
}

/// Runs this test program once more as an ordinary user.
pub fn as_an_ordinary_user(words: &[&str]) -> Outcome {
    let mut again = Command::new("setpriv");
    again.args(["--reuid", ORDINARY, "--regid", ORDINARY, "--clear-groups", "--"]);
    again.arg(std::env::current_exe()?);
    passes(again.args(words), "as an ordinary user")
}

/// Runs this test program once more as an ordinary user with ids to give. The machine's accounts stay as they are: the
/// run sees other files in their place.
pub fn as_a_user_with_ids(words: &[&str]) -> Outcome {
    const MOUNTED: &str = "for name in passwd subuid subgid; do mount --bind \"$1/$name\" /etc/$name || exit 1; done; \
        user=$2; shift 2; exec setpriv --reuid $user --regid $user --clear-groups -- \"$@\"";
    if !Path::new("/usr/bin/newuidmap").exists() {
        return Err("newuidmap is not there: `scripts/need.sh test` installs it".into());
    }
    // removed by root, who may: what a failed test leaves belongs to ids that nobody else has
    let place = tempfile::tempdir()?;
    let temporary = place.path().join("tmp");
    std::fs::create_dir(&temporary)?;
    for path in [place.path(), &temporary] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
    }
    let accounts = std::fs::read_to_string("/etc/passwd")?;
    let accounts = format!("{accounts}cocoonbox-test:x:{WITH_IDS}:{WITH_IDS}::/nonexistent:/bin/sh\n");
    std::fs::write(place.path().join("passwd"), accounts)?;
    for name in ["subuid", "subgid"] {
        let line = format!("cocoonbox-test:{}:{}\n", IDS.start, IDS.len());
        std::fs::write(place.path().join(name), line)?;
    }
    let mut again = Command::new("unshare");
    again.args(["--mount", "--propagation", "private", "sh", "-c", MOUNTED, "sh"]);
    again.arg(place.path()).arg(WITH_IDS).arg(std::env::current_exe()?);
    passes(again.args(words).env(HAS_IDS, "1").env("TMPDIR", &temporary), "as a user with ids")
}

fn passes(again: &mut Command, who: &str) -> Outcome {
    let again = again.output()?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
    let passed = again.status.success() && said.contains(" passed; 0 failed") && !said.contains(" 0 passed");
    if passed { Ok(()) } else { Err(format!("{who}:\n{said}").into()) }
}

/// Where boxes see what [`with_shown`] shows them: a directory of the host's image that every machine has.
pub const SHOWN: &str = "/usr/local/games";

/// Runs `story` as root and as an ordinary user, in a mount namespace that has `what` at [`SHOWN`]: programs that lie
/// where no box sees them are brought to where boxes look, and the machine stays as it is.
pub fn with_shown<F: Future<Output = Outcome>>(
    name: &str,
    what: &Path,
    story: impl FnOnce() -> F,
) -> Outcome {
    const INSIDE: &str = "COCOONBOX_TEST_SHOWN";
    const MOUNTED: &str = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    if std::env::var_os(INSIDE).is_some() {
        return run(story);
    }
    if !is_root() || !Path::new(SHOWN).is_dir() {
        println!("showing {} to a box takes root and {SHOWN}: not tried", what.display());
        return Ok(());
    }
    for user in [&[][..], &["setpriv", "--reuid", ORDINARY, "--regid", ORDINARY, "--clear-groups", "--"]] {
        let mut again = Command::new("unshare");
        again.args(["--mount", "--propagation", "private", "sh", "-c", MOUNTED, "sh"]).arg(what).arg(SHOWN);
        again.args(user).arg(std::env::current_exe()?).args(["--exact", name, "--nocapture"]);
        passes(again.env(INSIDE, "1"), "with more programs")?;
    }
    Ok(())
}

/// Held by who gives boxes the host's network: two such boxes on one machine want the same port.
pub fn host_network() -> Result<std::fs::File, Box<dyn Error>> {
    // any place that every test of the machine finds, and nobody else locks
    let file = std::fs::File::open("/usr")?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Whether boxes have a host uid each: as root, and in the third run.
pub fn has_ids() -> bool {
    is_root() || std::env::var_os(HAS_IDS).is_some()
}

/// Runs `story` on a runtime of its own.
pub fn run<F: Future<Output = Outcome>>(story: impl FnOnce() -> F) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_mins(2), story()).await.map_err(|_| "the test took over 120 s")?
    })
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The guest's binary, `make agent`.
pub fn agent() -> PathBuf {
    let path = std::env::var_os("COCOONBOX_AGENT").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/agent/cocoonbox-agent"),
        PathBuf::from,
    );
    assert!(path.exists(), "no guest binary at {}: run `make agent` first", path.display());
    path
}

/// A data directory whose boxes are ended when the test ends, however it ends.
pub struct Data {
    directory: Option<tempfile::TempDir>,
}

impl Data {
    pub fn new() -> Result<Self, Box<dyn Error>> {
        Ok(Self { directory: Some(tempfile::tempdir()?) })
    }
    pub fn path(&self) -> PathBuf {
        self.directory.as_ref().expect("lives").path().join("data")
    }
    pub fn config(&self) -> BwrapConfig {
        BwrapConfig::new(self.path(), agent())
    }
    pub async fn open(&self) -> Result<Arc<BwrapBackend>, OpenError> {
        open(self.config()).await
    }
}

pub async fn open(config: BwrapConfig) -> Result<Arc<BwrapBackend>, OpenError> {
    BwrapBackend::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await
}

impl Drop for Data {
    fn drop(&mut self) {
        let mut cgroups = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let left = processes_of(&self.path());
            cgroups.extend(left.iter().flat_map(|pid| cgroups_of(*pid)));
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(kill);
            std::thread::sleep(Duration::from_millis(10));
        }
        for cgroup in cgroups {
            // the kernel may see a moment later that nobody is left in it
            for _ in 0..100 {
                match std::fs::remove_dir(&cgroup) {
                    Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    _ => break,
                }
            }
            let _ = cgroup.parent().map(std::fs::remove_dir);
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
        let points: Vec<_> = points.filter(|point| point.starts_with(self.path())).collect();
        for point in points.into_iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
        self.directory = None;
    }
}

/// The directory of a box process's cgroup of version 2, where the backend made one.
pub fn cgroup_of(pid: i32) -> Option<PathBuf> {
    cgroups_of(pid).into_iter().find(|path| path.join("cgroup.freeze").exists())
}

/// The directories of a box process's cgroups, of either version, as far as the backend made them.
pub fn cgroups_of(pid: i32) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let path = path.strip_prefix('/').filter(|path| path.contains("cocoonbox-"))?;
        let mount = mounts.lines().find(|line| {
            let Some((_, system)) = line.split_once(" - ") else { return false };
            match controllers.split(',').next() {
                None | Some("") => system.starts_with("cgroup2 "),
                Some(first) => {
                    let options = system.split(' ').nth(2).unwrap_or_default();
                    system.starts_with("cgroup ") && options.split(',').any(|option| option == first)
                }
            }
        })?;
        Some(Path::new(mount.split(' ').nth(4)?).join(path))
    });
    found.collect()
}

/// The processes of a data directory's boxes: those that see a home of theirs, and those that launched them.
pub fn processes_of(data: &Path) -> Vec<i32> {
    let ids: Vec<String> = std::fs::read_dir(data.join("claims"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let inside = ["claims", "trash"].map(|part| format!("{}/{part}/sb_", data.display()));
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let mounts = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        let name = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        // what is mounted, not where: all of the host sees where the node mounts its boxes' file systems
        let mut mounted = mounts.lines().filter_map(|line| line.split(' ').nth(3));
        if mounted.any(|root| inside.iter().any(|inside| root.starts_with(inside)))
            || ids.iter().any(|id| name.starts_with(&format!("cocoonbox-box {id}")))
        {
            found.push(pid);
        }
    }
    found
}

/// Ends a process.
pub fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Asks for a box of the host's image.
pub fn request(label: &str) -> ClaimRequest {
    ClaimRequest::new(label.parse().expect("a label"), ImageName::host())
}

/// What a command in a box did.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub code: i64,
    pub out: String,
    pub err: String,
}

/// Runs a shell command in a box.
pub async fn sh(backend: &dyn SandboxBackend, id: &SandboxId, command: &str) -> Result<Ran, Box<dyn Error>> {
    exec(backend, id, &["/bin/sh", "-c", command], false).await
}

/// Starts a shell command in a box and leaves it running.
pub async fn sh_detached(backend: &dyn SandboxBackend, id: &SandboxId, command: &str) -> Outcome {
    exec(backend, id, &["/bin/sh", "-c", command], true).await.map(|_| ())
}

async fn exec(
    backend: &dyn SandboxBackend,
    id: &SandboxId,
    argv: &[&str],
    detach: bool,
) -> Result<Ran, Box<dyn Error>> {
    let stream = backend.connect(id, Target::Channel).await?;
    let (read, mut write) = tokio::io::split(stream);
    let request = serde_json::json!({ "v": 1, "op": "exec", "argv": argv, "detach": detach });
    write.write_all(format!("{request}\n").as_bytes()).await?;
    let mut lines = BufReader::new(read).lines();
    let mut ran = Ran { code: -1, out: String::new(), err: String::new() };
    while let Some(line) = lines.next_line().await? {
        let frame: serde_json::Value = serde_json::from_str(&line)?;
        let data = || -> Result<String, Box<dyn Error>> {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(frame["data"].as_str().unwrap_or_default())?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        match frame["type"].as_str().unwrap_or_default() {
            "stdout" => ran.out.push_str(&data()?),
            "stderr" => ran.err.push_str(&data()?),
            "started" if detach => return Ok(ran),
            "started" => {}
            "exit" => {
                ran.code = frame["code"].as_i64().unwrap_or(-1);
                return Ok(ran);
            }
            _ => return Err(format!("the guest answered {line}").into()),
        }
    }
    Err("the guest hung up".into())
}

/// What a command printed; one that fails is an error.
pub async fn printed(
    backend: &dyn SandboxBackend,
    id: &SandboxId,
    command: &str,
) -> Result<String, Box<dyn Error>> {
    let ran = sh(backend, id, command).await?;
    if ran.code == 0 { Ok(ran.out.trim_end().to_owned()) } else { Err(format!("{command}: {ran:?}").into()) }
}

/// Waits until `holds` does, for at most ten seconds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Outcome {
    let start = Instant::now();
    while !holds().await {
        if start.elapsed() > Duration::from_secs(10) {
            return Err(format!("not within 10 s: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Claims a box of the host's image.
pub async fn claim(backend: &dyn SandboxBackend) -> Result<Claim, Box<dyn Error>> {
    Ok(backend.claim(request("test")).await?)
}
