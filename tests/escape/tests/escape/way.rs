//! The ways out: what is tried, what a box answers, and where the same program gets through.

use cocoonbox_sandbox::Defence::{
    self, CapabilityDrop, IpcNamespace, Keyring, Landlock, NetworkNamespace, PidNamespace, PrivateShm,
    PrivateTmp, ProcMasks, ReadOnlyRoot, SystemCallFilter, UserNamespaceDenial,
};

use crate::scene::Scene;

/// Where the same program must get through, so that a box is what stops it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// On the host, as the box's user there.
    Host,
    /// The same, with other words.
    HostWith(&'static [&'static str]),
    /// On the host, as whoever runs the node.
    Node,
    /// On the host as root.
    Root,
    /// On the host as root, with other words.
    RootWith(Vec<String>),
    /// On the host as root of namespaces of its own.
    OwnNamespaces,
    /// There, with other words.
    OwnNamespacesWith(&'static [&'static str]),
    /// In a box that lacks these defences and has all others.
    Without(&'static [Defence]),
    /// In a box that lacks these, with other words.
    WithoutWith(&'static [Defence], &'static [&'static str]),
    /// In the very box that stops it, with other words: where it should work.
    Here(&'static [&'static str]),
}

/// How it shows that a way led out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The attacker's word.
    Word,
    /// It knows the secret.
    Secret,
    /// The victim feels it; whether the attacker's call was answered tells nothing, as it may have met its own.
    Victim,
}

/// One way out.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// The attacker's words, the way's name first.
    pub(crate) words: Vec<String>,
    pub(crate) proof: Proof,
    pub(crate) controls: Vec<Control>,
}

fn way<const N: usize>(words: [&str; N], controls: &[Control]) -> Way {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    Way { words, proof: Proof::Word, controls: controls.to_vec() }
}

impl Way {
    const fn gets_the_secret(mut self) -> Self {
        self.proof = Proof::Secret;
        self
    }
    const fn harms_the_victim(mut self) -> Self {
        self.proof = Proof::Victim;
        self
    }
}

use Control::{
    Here, Host, HostWith, Node, OwnNamespaces, OwnNamespacesWith, Root, RootWith, Without, WithoutWith,
};

/// Filter, capabilities and the ban on user namespaces stand one behind the other before everything that asks for
/// rights over the box's own namespaces.
const RIGHTS: &[Defence] = &[CapabilityDrop, SystemCallFilter, UserNamespaceDenial];
const FILTER: &[Defence] = &[SystemCallFilter];

/// Returns every way, aimed at what is in `scene`.
pub(crate) fn ways(scene: &Scene) -> Vec<Way> {
    let mut ways = processes(scene);
    ways.extend(sockets(scene));
    ways.extend(mounts(scene));
    ways.extend(files(scene));
    ways.extend(kernel(scene));
    ways
}

fn processes(scene: &Scene) -> Vec<Way> {
    let [pid, address, length] = ["pid", "address", "length"].map(|name| scene.fact(name));
    let secret = scene.secret_file("own");
    let seen = Without(&[PidNamespace]);
    let touched = Without(&[PidNamespace, Landlock]);
    let child = |way: &'static [&'static str]| WithoutWith(FILTER, way);
    vec![
        way(["find-process", &scene.marker], &[Host, seen.clone()]),
        way(["process-root", &secret], &[Host]).gets_the_secret(),
        way(["process-file", &pid, "environ"], &[Host]),
        way(["process-file", &pid, "maps"], &[Host]),
        way(["process-file", &pid, "cmdline"], &[Host, seen.clone()]),
        way(["process-memory", &pid, &address, &length], &[Host]).gets_the_secret(),
        way(["process-descriptors", &pid], &[Host]),
        way(["take-descriptor", &pid], &[Host]),
        way(["ptrace", &pid, &address, &length], &[Host]).gets_the_secret(),
        way(["vm-read", &pid, &address, &length], &[Host]).gets_the_secret(),
        way(["vm-write", &pid, &address, &length], &[Host]).harms_the_victim(),
        way(["signal", &pid], &[Host, touched.clone()]).harms_the_victim(),
        way(["signal-thread", &pid], &[Host, touched.clone()]).harms_the_victim(),
        way(["signal-pidfd", &pid], &[Host, touched.clone()]).harms_the_victim(),
        way(["signal-all"], &[Host, touched]).harms_the_victim(),
        way(["priority"], &[Host]).harms_the_victim(),
        way(["resource-limit", &pid], &[Host, seen]).harms_the_victim(),
        // the box's own first process has the guest channel, the lock and the doors
        way(["process-memory", "1"], &[Here(&["process-memory", "child"])]),
        way(["process-file", "1", "environ"], &[Here(&["process-file", "child", "environ"])]),
        way(["process-descriptors", "1"], &[Here(&["process-descriptors", "child"])]),
        way(["take-descriptor", "1"], &[child(&["take-descriptor", "child"])]),
        way(["ptrace", "1"], &[child(&["ptrace", "child"])]),
    ]
}

fn sockets(scene: &Scene) -> Vec<Way> {
    // one set for all: boxes without a network of their own would fight over their agents' ports
    let net = Without(&[NetworkNamespace, Landlock]);
    let victim = format!("{}/victim.sock", scene.fact("folder"));
    let port = format!("127.0.0.1:{}", scene.fact("port"));
    let mut ways = vec![
        way(["unix", &victim], &[Host]),
        way(["abstract", &scene.marker], &[Host, net.clone()]),
        way(["tcp", &port], &[Host, net.clone()]).gets_the_secret(),
        way(["socket-diag", &scene.marker], &[Host]),
        way(["add-address"], &[OwnNamespaces]),
        // raw IPv4 and IPv6, packets, the machine under a virtual machine, the kernel's ciphers, its keys, its log of
        // decisions
        way(["socket", "2", "3", "1"], &[OwnNamespaces]),
        way(["socket", "10", "3", "58"], &[OwnNamespaces]),
        way(["socket", "17", "3", "768"], &[OwnNamespaces]),
        way(["socket", "40", "1", "0"], &[Without(FILTER)]),
        way(["socket", "38", "5", "0"], &[Without(FILTER)]),
    ];
    if has_interfaces() {
        ways.push(way(["interfaces"], &[Host, net]));
    }
    for socket in &scene.sockets {
        ways.push(way(["unix", &socket.display().to_string()], &[Node]));
    }
    for file in &scene.files {
        let file = file.display().to_string();
        ways.push(way(["open-writable", &file], &[Node]));
    }
    ways
}

/// Whether this machine has anything but a loopback to find.
fn has_interfaces() -> bool {
    nix::net::if_::if_nameindex().is_ok_and(|names| names.iter().any(|one| one.name().to_bytes() != b"lo"))
}

fn mounts(scene: &Scene) -> Vec<Way> {
    let pid = scene.fact("pid");
    let own = &[OwnNamespaces];
    let rights = &[OwnNamespaces, Without(RIGHTS)];
    let user = &[Without(&[UserNamespaceDenial, SystemCallFilter, Landlock])];
    let mut ways = vec![
        way(["mount-tmpfs", "/tmp"], own),
        way(["mount-bind", "/dev", "/tmp"], &[OwnNamespacesWith(&["mount-bind", "/usr", "/tmp"])]),
        way(["mount-proc", "/tmp"], &[OwnNamespaces]),
        way(["mount-cgroup", "/tmp", "cgroup2"], &[Root]),
        way(["mount-new", "/tmp"], own),
        way(["mount-clone", "/dev"], own),
        way(
            ["mount-writable", "/run/cocoonbox-identity"],
            &[OwnNamespacesWith(&["mount-writable", "/mnt", "prepare"])],
        ),
        way(["unmount", "/tmp"], &[OwnNamespacesWith(&["unmount", "/mnt", "prepare"])]),
        way(["unmount", "/proc/kcore"], &[OwnNamespacesWith(&["unmount", "/mnt", "prepare"])]),
        way(["pivot-root", "/tmp"], &[OwnNamespacesWith(&["pivot-root", "/mnt", "prepare"])]),
        way(["chroot", "/tmp"], rights),
        way(["unshare", "user"], user),
        way(["unshare-and-mount", "/tmp"], user),
        way(["clone-user"], user),
        way(["set-namespace", &pid, "mnt"], &[Root]),
        way(["set-namespace", &pid, "uts"], &[Root]),
        way(["parent-namespace", "self", "user"], &[HostWith(&["parent-namespace", "child", "user"])]),
        way(["parent-namespace", "self", "net"], &[HostWith(&["parent-namespace", "child", "net"])]),
        way(["host-name"], own),
        way(["capability"], &[OwnNamespaces, Without(&[CapabilityDrop])]),
        way(["become", "0"], &[Root]),
        way(["become", "4242"], &[Root]),
    ];
    for kind in ["mnt", "net", "pid", "ipc", "uts", "cgroup"] {
        ways.push(way(["unshare", kind], rights));
    }
    if let Some((kind, bytes)) = &scene.handle {
        let kind = kind.to_string();
        let words = |mount: &str| ["open-by-handle", mount, &kind, bytes].map(str::to_owned).to_vec();
        let outside = RootWith(words(&scene.fact("folder")));
        for place in ["/home/user", "/tmp"] {
            ways.push(
                way(["open-by-handle", place, &kind, bytes], std::slice::from_ref(&outside))
                    .gets_the_secret(),
            );
        }
    }
    ways
}

fn files(scene: &Scene) -> Vec<Way> {
    let key = scene.segment_key.to_string();
    let queue = scene.marker.clone();
    let root_write = &[Without(&[ReadOnlyRoot, Landlock])];
    let knobs = [
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sysrq-trigger",
    ];
    let mut ways = vec![
        way(["read", &scene.secret_file("own")], &[Host]).gets_the_secret(),
        way(["read", &scene.secret_file("/tmp")], &[Host, Without(&[PrivateTmp])]).gets_the_secret(),
        way(["read", &scene.secret_file("/dev/shm")], &[Host, Without(&[PrivateShm])]).gets_the_secret(),
        way(["read", "/etc/shadow"], &[Root]),
        way(["process-root", "/etc/shadow"], &[Root]),
        way(["create", "/"], root_write),
        way(["create", "/usr"], &[Root]),
        way(["create", "/opt/cocoonbox/bin"], &[Here(&["create", "/home/user"])]),
        way(["create", "/run/cocoonbox-identity"], &[Here(&["create", "/home/user"])]),
        way(["create", "/etc"], &[Root]),
        way(["create", "/srv"], root_write),
        way(["create", "/proc"], &[HostWith(&["create", "/tmp"])]),
        way(["make-device", "/home/user", "c", "1", "9"], &[RootWith(device_words(scene, "c", 1, 9))]),
        way(["make-device", "/tmp", "c", "1", "9"], &[RootWith(device_words(scene, "c", 1, 9))]),
        way(["make-device", "/dev/shm", "c", "1", "9"], &[RootWith(device_words(scene, "c", 1, 9))]),
    ];
    for knob in knobs.into_iter().filter(|knob| std::path::Path::new(knob).exists()) {
        ways.push(way(["open-writable", knob], &[Root]));
    }
    if let Some((major, minor)) = disk() {
        let [major, minor] = [major, minor].map(|number| number.to_string());
        let devices = RootWith(device_words(scene, "c", 1, 9));
        ways.push(way(["make-device", "/tmp", "b", &major, &minor], &[devices]));
    }
    if scene.fact("segment") == "true" {
        ways.push(way(["shared-memory", &key], &[Host, Without(&[IpcNamespace])]).gets_the_secret());
    }
    if scene.fact("queue") == "true" {
        ways.push(way(["message-queue", &queue], &[Host, Without(&[IpcNamespace])]));
    }
    ways
}

fn device_words(scene: &Scene, kind: &str, major: u64, minor: u64) -> Vec<String> {
    let folder = scene.folder.path().display().to_string();
    let numbers = [major.to_string(), minor.to_string()];
    ["make-device", &folder, kind, &numbers[0], &numbers[1]].map(str::to_owned).to_vec()
}

/// The disk under the root file system, where that is one.
fn disk() -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let device = std::fs::metadata("/").ok()?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    std::path::Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists().then_some((major, minor))
}

fn kernel(scene: &Scene) -> Vec<Way> {
    let serial = scene.fact("serial");
    let mut ways = vec![
        way(["bpf"], &[Root]),
        way(["perf"], &[Without(FILTER)]),
        way(["io-uring"], &[Without(FILTER)]),
        way(["userfaultfd"], &[Without(FILTER)]),
        way(["kernel-log"], &[Root]),
        way(["module"], &[Root]),
        way(["ports"], &[Root]),
        way(["inject-own-input"], &[Without(FILTER)]),
    ];
    if serial != "0" {
        ways.extend([
            way(["key-read", &serial], &[Host, Without(FILTER)]).gets_the_secret(),
            way(["key-search", "-3", crate::KEY], &[Node, Without(&[Keyring, SystemCallFilter])]),
            way(["key-add"], &[Without(FILTER)]),
            way(["read", "/proc/keys"], &[Host, Without(&[ProcMasks])]),
        ]);
    }
    ways
}
