//! The options that bwrap gets for a box.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cocoonbox_core::backend::Nesting;

use super::config::BwrapConfig;
use super::defence::Defence;
use super::image::{OWN_ETC_LINKS, Part};

/// The guest's binary as the guest sees it.
pub(super) const AGENT: &str = "/opt/cocoonbox/bin/cocoonbox-agent";

/// Entries of `/proc` that tell of the host or reach into it.
const MASKED_FILES: &[&str] = &[
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "kpagecount",
    "kpageflags",
    "kpagecgroup",
    "latency_stats",
    "mtrr",
    "sched_debug",
    "slabinfo",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
];
const MASKED_DIRECTORIES: &[&str] = &["acpi", "asound", "bus", "driver", "fs", "irq", "scsi", "tty"];

/// Everything that makes one box differ from another.
#[derive(Debug)]
pub(super) struct Box_<'a> {
    pub(super) config: &'a BwrapConfig,
    pub(super) hostname: &'a str,
    pub(super) nesting: Nesting,
    pub(super) parts: &'a BTreeMap<PathBuf, Part>,
    /// Where the launch sees a copy of the image's `/etc`.
    pub(super) etc_copy: Option<&'a Path>,
    /// Where the launch sees the directory of the box's own files of `/etc`, and their names.
    pub(super) etc: (&'a Path, &'a [&'a str]),
    pub(super) home: &'a Path,
    pub(super) workspace: &'a Path,
    pub(super) temporary: &'a Path,
    pub(super) identity: &'a Path,
    pub(super) bin: &'a Path,
    pub(super) doors: Option<&'a Path>,
    pub(super) channel: RawFd,
    pub(super) agent: RawFd,
    pub(super) lock: RawFd,
    /// The programs of the system call filter.
    pub(super) filters: &'a [RawFd],
}

/// Returns the options, without the command.
pub(super) fn options(of: &Box_<'_>) -> Vec<Vec<u8>> {
    let mut list = List(Vec::new());
    let holds = |defence| of.config.holds(defence);
    list.words(&[
        "--unshare-user",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--unshare-uts",
        "--unshare-cgroup",
        "--hostname",
        of.hostname,
    ]);
    if holds(Defence::IpcNamespace) {
        list.words(&["--unshare-ipc"]);
    }
    if holds(Defence::PidNamespace) {
        list.words(&["--unshare-pid", "--as-pid-1"]);
    }
    list.words(&[if holds(Defence::CapabilityDrop) { "--cap-drop" } else { "--cap-add" }, "ALL"]);
    if of.nesting == Nesting::Denied && holds(Defence::UserNamespaceDenial) {
        list.words(&["--disable-userns"]);
    }
    for filter in of.filters {
        list.words(&["--add-seccomp-fd", &filter.to_string()]);
    }
    list.words(&["--info-fd", "0", "--clearenv"]);
    if holds(Defence::Landlock) {
        // under rules for files nobody mounts anything, which a sandbox further in must
        let fence = if of.nesting == Nesting::Allowed { "scopes" } else { "files" };
        list.words(&["--setenv", "COCOONBOX_FENCE", fence]);
    }
    list.words(&["--setenv", "COCOONBOX_GUEST_FD", &of.channel.to_string()]);
    list.words(&["--setenv", "COCOONBOX_AGENT_NODE_FD", &of.agent.to_string()]);
    list.words(&["--setenv", "COCOONBOX_LOCK_FD", &of.lock.to_string()]);

    if let Some(copy) = of.etc_copy {
        // first: parts lie over it
        list.pair("--ro-bind", copy, Path::new("/etc"));
    }
    for (path, part) in of.parts {
        match part {
            Part::Bind(source) => list.pair("--ro-bind", source, path),
            Part::Link(target) => list.add(&[b"--symlink", target, path.as_os_str().as_bytes()]),
        }
    }
    if of.etc_copy.is_none() {
        for (name, target) in OWN_ETC_LINKS {
            list.words(&["--symlink", target, &format!("/etc/{name}")]);
        }
    }
    for name in of.etc.1 {
        list.pair("--ro-bind", &of.etc.0.join(name), &Path::new("/etc").join(name));
    }
    if holds(Defence::PidNamespace) {
        list.words(&["--proc", "/proc"]);
    } else {
        list.words(&["--bind", "/proc", "/proc"]);
    }
    if of.nesting == Nesting::Denied && holds(Defence::ProcMasks) {
        // a mask makes the kernel refuse a fresh /proc further in, so that a box that nests has none
        for name in MASKED_FILES.iter().filter(|name| Path::new("/proc").join(name).is_file()) {
            list.words(&["--ro-bind", "/dev/null", &format!("/proc/{name}")]);
        }
        for name in MASKED_DIRECTORIES.iter().filter(|name| Path::new("/proc").join(name).is_dir()) {
            let path = format!("/proc/{name}");
            list.words(&["--perms", "0555", "--size", "4096", "--tmpfs", &path, "--remount-ro", &path]);
        }
    }
    list.words(&["--dev", "/dev"]);
    if holds(Defence::PrivateShm) {
        list.words(&["--perms", "1777", "--size", "268435456", "--tmpfs", "/dev/shm"]);
    } else {
        list.words(&["--bind", "/dev/shm", "/dev/shm"]);
    }
    list.words(&["--remount-ro", "/dev"]);
    list.words(&["--size", "67108864", "--tmpfs", "/run", "--perms", "1777", "--dir", "/run/lock"]);
    list.words(&["--perms", "0700", "--dir", "/run/user/1000", "--perms", "0700", "--dir", "/root"]);
    list.words(&[
        "--dir",
        "/mnt",
        "--dir",
        "/media",
        "--dir",
        "/srv",
        "--dir",
        "/var/lib",
        "--dir",
        "/var/cache",
    ]);
    list.words(&[
        "--symlink",
        "/tmp",
        "/var/tmp",
        "--symlink",
        "/run",
        "/var/run",
        "--symlink",
        "/run/lock",
        "/var/lock",
    ]);
    list.pair("--bind", of.home, Path::new("/home/user"));
    list.pair("--bind", of.workspace, Path::new("/workspace"));
    let temporary = if holds(Defence::PrivateTmp) { of.temporary } else { Path::new("/tmp") };
    list.pair("--bind", temporary, Path::new("/tmp"));
    list.pair("--ro-bind", of.identity, Path::new("/run/cocoonbox-identity"));
    list.pair("--ro-bind", of.bin, Path::new("/opt/cocoonbox/bin"));
    if let Some(doors) = of.doors {
        list.pair("--ro-bind", doors, Path::new("/run/cocoonbox-doors"));
        list.words(&["--setenv", "COCOONBOX_DOOR_SOCKET", "/run/cocoonbox-doors/door.sock"]);
    }
    if holds(Defence::ReadOnlyRoot) {
        list.words(&["--remount-ro", "/"]);
    }
    list.words(&["--chdir", "/home/user"]);
    list.0
}

struct List(Vec<Vec<u8>>);

impl List {
    fn add(&mut self, words: &[&[u8]]) {
        self.0.extend(words.iter().map(|word| word.to_vec()));
    }
    fn words(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|word| word.as_bytes().to_vec()));
    }
    fn pair(&mut self, option: &str, source: &Path, target: &Path) {
        self.add(&[option.as_bytes(), source.as_os_str().as_bytes(), target.as_os_str().as_bytes()]);
    }
}
