//! Holding processes still, by holding one still, and limiting them, by limiting one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Check;

pub(super) const NAME: &str = "freezing";

const REMEDY: &str = "nothing has to be done: boxes are held still by signals; for the kernel's freezer use cgroup v2 \
                      (boot with systemd.unified_cgroup_hierarchy=1) and, as an ordinary user, a delegated cgroup \
                      (systemd-run --user --scope -p Delegate=yes cocoonbox up)";

pub(super) const LIMITS: &str = "limits";

const LIMITS_REMEDY: &str = "run as root, or with a delegated cgroup (systemd-run --user --scope -p Delegate=yes cocoonbox up); \
                             where a controller is not listed in /sys/fs/cgroup/cgroup.controllers, boot with it \
                             (Debian, memory: cgroup_enable=memory)";

/// Limits a child by each controller, just as boxes are.
pub(super) fn limits() -> Check {
    let nth = NTH.fetch_add(1, Ordering::Relaxed);
    let found = crate::bwrap::controllers(&format!("probe-{}-{nth}", std::process::id()));
    let say = |(name, version): &(&str, Option<&str>)| match version {
        Some(version) => format!("{name} by cgroup {version}"),
        None => format!("{name} not enforced"),
    };
    let detail = found.iter().map(say).collect::<Vec<_>>().join(", ");
    let missing: Vec<_> =
        found.iter().filter(|(_, version)| version.is_none()).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Check::yes(LIMITS, detail);
    }
    let reason = format!(
        "no cgroup with the controller {} can be made here: a box can use up the machine's",
        missing.join(", ")
    );
    Check::no(LIMITS, detail, reason, LIMITS_REMEDY).degraded()
}

/// Probes side by side must not meet in one cgroup.
static NTH: AtomicU32 = AtomicU32::new(0);

/// Freezes a child in a fresh cgroup, where one can be made.
pub(super) fn check() -> Check {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let (v2, v1) = (mounted(&mounts, "cgroup2"), mounted(&mounts, "cgroup"));
    let Some(root) = v2 else {
        let (detail, reason) = if v1.is_some() {
            ("cgroup v1 only", "there is no cgroup v2 mount to freeze in")
        } else {
            ("no cgroup", "no cgroup is mounted here")
        };
        return Check::no(NAME, detail, reason, REMEDY).degraded();
    };
    // at the mount itself, as root does; else below this process's own cgroup, where one was delegated
    match freeze_a_child(&root).or_else(|_| freeze_a_child(&root.join(own_path(&own)))) {
        Ok(took) => Check::yes(NAME, format!("cgroup v2 froze a process in {} µs", took.as_micros())),
        Err((step, error)) => {
            let reason = format!("{step} below {}: {error}", root.display());
            Check::no(NAME, "cgroup v2 is there and cannot be used", reason, REMEDY).degraded()
        }
    }
}

/// Returns where a file system of this kind is mounted; with several the one that comes first.
fn mounted(mountinfo: &str, kind: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        (system.split(' ').next() == Some(kind)).then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// Returns this process's own v2 cgroup, relative to the mount.
fn own_path(cgroups: &str) -> &str {
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    own.trim_start_matches('/')
}

type Step = (&'static str, io::Error);

/// A cgroup and a child that go away whatever happens.
struct Trial {
    folder: PathBuf,
    child: Option<Child>,
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("cgroup.freeze"), "0");
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // the cgroup is busy until the kernel has let go of the child
        for _ in 0..100 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => break,
            }
        }
    }
}

fn freeze_a_child(parent: &Path) -> Result<Duration, Step> {
    let nth = NTH.fetch_add(1, Ordering::Relaxed);
    let folder = parent.join(format!("cocoonbox-probe-{}-{nth}", std::process::id()));
    fs::create_dir(&folder).map_err(|error| ("no cgroup can be made", error))?;
    let mut trial = Trial { folder, child: None };
    let mut sleep = Command::new("sleep");
    sleep.arg("10").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = sleep.spawn().map_err(|error| ("no child can be started", error))?;
    let pid = child.id().to_string();
    trial.child = Some(child);
    let write = |name: &str, text: &str| fs::write(trial.folder.join(name), text);
    write("cgroup.procs", &pid).map_err(|error| ("no process can be moved", error))?;
    let began = Instant::now();
    write("cgroup.freeze", "1").map_err(|error| ("nothing can be frozen", error))?;
    while began.elapsed() < Duration::from_secs(2) {
        let events = fs::read_to_string(trial.folder.join("cgroup.events")).unwrap_or_default();
        if events.lines().any(|line| line == "frozen 1") {
            return Ok(began.elapsed());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(("a process does not freeze", io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_the_own_cgroup_are_read() {
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\nbad line\n";
        assert_eq!(mounted(hybrid, "cgroup2"), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mounted(hybrid, "cgroup"), Some("/sys/fs/cgroup/cpu".into()));
        assert_eq!(mounted("", "cgroup2"), None);
        assert_eq!(own_path("4:memory:/a\n0::/user.slice/b\n"), "user.slice/b");
        assert_eq!(own_path(""), "");
    }

    #[test]
    fn where_nothing_can_be_made_the_step_is_named() {
        let Err((step, _)) = freeze_a_child(Path::new("/nowhere")) else { panic!("it cannot work") };
        assert_eq!(step, "no cgroup can be made");
    }
}
