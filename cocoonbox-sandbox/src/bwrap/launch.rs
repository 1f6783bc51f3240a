//! From the node's process to bwrap's: everything between `fork` and `exec`.
//!
//! ```text
//!  fork ── own session ── own cgroup ──┬── as root: private mounts, sources staged, uid dropped ────────────┐
//!                                      ├── as a user with more ids: their user namespace, then as root ─────┤
//!                                      └── as a user with one: nothing ─────────────────────────────────────┤
//!  exec bwrap ── lo up, 10.203.0.1 added, every port free to bind ── user + net namespace, map ───┘
//! ```
//!
//! The child of a process with threads may do nothing but raw system calls on memory that was made before, so this
//! is the one place of the backend that is unsafe.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::libc;

use super::advice::Advice;
use super::config::BwrapConfig;
use super::defence::Defence;
use super::stage::Stage;

/// What a launch needs, made before the fork.
#[derive(Debug)]
pub(super) struct Launch {
    /// The program bwrap.
    pub(super) program: std::path::PathBuf,
    /// The descriptor with bwrap's options; bwrap closes it when it has read them.
    pub(super) options: OwnedFd,
    /// Where bwrap says what it made, and its standard input.
    pub(super) info: OwnedFd,
    /// What bwrap is called in a list of processes.
    pub(super) name: String,
    /// What runs in the box.
    pub(super) command: [&'static str; 2],
    /// Descriptors that bwrap and the guest's first process get, under the numbers they have.
    pub(super) handed: Vec<OwnedFd>,
    /// Where bwrap's complaints go.
    pub(super) log: std::fs::File,
    /// The box's cgroups, to join.
    pub(super) cgroups: Vec<OwnedFd>,
    /// What it starts with instead of what the node has.
    pub(super) advice: Advice,
    /// Where the node can give uids: the one to drop to, and the sources to bring along.
    pub(super) drop_to: Option<(u32, Stage)>,
    /// As an ordinary user that can: the user namespace in which it can.
    pub(super) enter: Option<OwnedFd>,
    /// There: what is given to the uid.
    pub(super) give: Vec<CString>,
    /// The uid that the box's outer user namespace maps.
    pub(super) uid: u32,
    /// The gid.
    pub(super) gid: u32,
    /// Which of the defences of a launch are left out; none but in tests.
    pub(super) without: Without,
}

/// Defences that are steps of the launch and that a test left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Without {
    session: bool,
    keyring: bool,
    network: bool,
}

impl Without {
    pub(super) fn of(config: &BwrapConfig) -> Self {
        Self {
            session: !config.holds(Defence::NewSession),
            keyring: !config.holds(Defence::Keyring),
            network: !config.holds(Defence::NetworkNamespace),
        }
    }
}

/// The steps of the child, in a form that needs no memory.
struct Steps {
    handed: Vec<RawFd>,
    cgroups: Vec<RawFd>,
    advice: Advice,
    drop_to: Option<(u32, Stage)>,
    enter: Option<RawFd>,
    give: Vec<CString>,
    uid_map: Vec<u8>,
    gid_map: Vec<u8>,
    without: Without,
}

impl Launch {
    /// Starts bwrap; every descriptor of the launch is closed on this side when it returns.
    pub(super) fn start(self, spawn: impl FnOnce(Command) -> io::Result<()>) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command
            .arg0(&self.name)
            .arg("--args")
            .arg(self.options.as_raw_fd().to_string())
            .arg("--")
            .args(self.command)
            .env_clear()
            .current_dir("/")
            .stdin(self.info)
            .stdout(Stdio::null())
            .stderr(self.log);
        let mut handed: Vec<_> = self.handed.iter().map(OwnedFd::as_raw_fd).collect();
        handed.push(self.options.as_raw_fd());
        let steps = Steps {
            handed,
            cgroups: self.cgroups.iter().map(OwnedFd::as_raw_fd).collect(),
            advice: self.advice,
            drop_to: self.drop_to,
            enter: self.enter.as_ref().map(OwnedFd::as_raw_fd),
            give: self.give,
            uid_map: format!("0 {} 1\n", self.uid).into_bytes(),
            gid_map: format!("0 {} 1\n", self.gid).into_bytes(),
            without: self.without,
        };
        prepare(&mut command, steps);
        spawn(command)
    }
}

/// Has `command` take `steps` between fork and exec.
#[expect(unsafe_code, reason = "what a child does before exec has no safe form")]
fn prepare(command: &mut Command, steps: Steps) {
    // SAFETY: `run` makes raw system calls on memory that exists already, takes no lock and allocates nothing, which
    // is what the child of a process with threads may do.
    unsafe { command.pre_exec(move || run(&steps)) };
}

/// Says on the log which step failed, and passes the error on.
fn step(what: &'static CStr, result: libc::c_long) -> io::Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    let error = io::Error::last_os_error();
    let bytes = what.to_bytes();
    #[expect(unsafe_code, reason = "the log's descriptor is all that is left to speak on")]
    // SAFETY: writes bytes of a static text to standard error.
    unsafe {
        libc::write(2, bytes.as_ptr().cast(), bytes.len());
    }
    Err(error)
}

#[expect(unsafe_code, reason = "raw system calls between fork and exec")]
fn run(steps: &Steps) -> io::Result<()> {
    let flags = |flags: libc::c_int| libc::c_long::from(flags);
    // SAFETY: each call gets integers, or pointers to memory of `steps` or to static texts that end in a zero byte;
    // the child has one thread, so that raw set*id calls reach all of it.
    unsafe {
        libc::umask(0o022);
        if !steps.without.session {
            step(c"launch: cannot leave the node's session\n", libc::c_long::from(libc::setsid()))?;
        }
        for cgroup in &steps.cgroups {
            step(
                c"launch: cannot join the box's cgroups\n",
                libc::write(*cgroup, c"0".as_ptr().cast(), 1) as libc::c_long,
            )?;
        }
        steps.advice.take();
        if let Some(space) = steps.enter {
            step(
                c"launch: cannot enter the user namespace of the node's ids\n",
                libc::c_long::from(libc::setns(space, libc::CLONE_NEWUSER)),
            )?;
        }
        if let Some((uid, stage)) = &steps.drop_to {
            for path in &steps.give {
                let given = libc::lchown(path.as_ptr(), *uid, *uid);
                step(c"launch: cannot give the box its files\n", libc::c_long::from(given))?;
            }
            step(
                c"launch: cannot make a mount namespace\n",
                libc::syscall(libc::SYS_unshare, flags(libc::CLONE_NEWNS)),
            )?;
            mount(
                c"launch: cannot make mounts private\n",
                None,
                c"/",
                None,
                libc::MS_REC | libc::MS_PRIVATE,
                None,
            )?;
            let options = c"mode=0711,size=64k,nr_inodes=64";
            let kind = Some(c"tmpfs");
            mount(
                c"launch: cannot stage\n",
                kind,
                stage.point(),
                kind,
                libc::MS_NOSUID | libc::MS_NODEV,
                Some(options),
            )?;
            for (source, target) in stage.binds() {
                step(
                    c"launch: cannot stage a source\n",
                    libc::c_long::from(libc::mkdir(target.as_ptr(), 0o755)),
                )?;
                mount(c"launch: cannot stage a source\n", Some(source), target, None, libc::MS_BIND, None)?;
            }
            // other boxes' file systems would stay mounted as long as this launch lives; where there are none, the data
            // directory is no mount, and nothing happens
            libc::umount2(stage.data().as_ptr(), libc::MNT_DETACH);
            // bwrap reads the list of mounts for each mount that it makes, and a box sees nothing of these
            libc::umount2(c"/sys".as_ptr(), libc::MNT_DETACH);
            let id = libc::c_long::from(*uid);
            let none = std::ptr::null::<libc::gid_t>();
            step(c"launch: cannot drop groups\n", libc::syscall(libc::SYS_setgroups, 0_usize, none))?;
            step(c"launch: cannot drop the gid\n", libc::syscall(libc::SYS_setresgid, id, id, id))?;
            step(c"launch: cannot drop the uid\n", libc::syscall(libc::SYS_setresuid, id, id, id))?;
        }
        if !steps.without.keyring {
            own_keyring()?;
        }
        // who changed its uid is not dumpable, and its /proc/self/uid_map is root's
        step(c"launch: prctl\n", libc::c_long::from(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0)))?;
        let network = if steps.without.network { 0 } else { libc::CLONE_NEWNET };
        let spaces = libc::CLONE_NEWUSER | network;
        step(c"launch: cannot make a user namespace\n", libc::syscall(libc::SYS_unshare, flags(spaces)))?;
        steps.advice.take_processes();
        write(c"launch: setgroups\n", c"/proc/self/setgroups", b"deny")?;
        write(c"launch: uid_map\n", c"/proc/self/uid_map", &steps.uid_map)?;
        write(c"launch: gid_map\n", c"/proc/self/gid_map", &steps.gid_map)?;
        if !steps.without.network {
            loopback()?;
            write(c"launch: ports\n", c"/proc/sys/net/ipv4/ip_unprivileged_port_start", b"0")?;
        }
        // the node may itself have inherited descriptors that nobody marked
        let (from, to) = (libc::c_long::from(3), libc::c_long::from(u32::MAX));
        let mark = libc::c_long::from(libc::CLOSE_RANGE_CLOEXEC);
        step(c"launch: close_range\n", libc::syscall(libc::SYS_close_range, from, to, mark))?;
        for descriptor in &steps.handed {
            step(c"launch: descriptors\n", libc::c_long::from(libc::fcntl(*descriptor, libc::F_SETFD, 0)))?;
        }
    }
    Ok(())
}

/// Joins a session keyring of the box's own: the node's session may hold keys, and all boxes would share them.
#[expect(unsafe_code, reason = "raw system calls between fork and exec")]
fn own_keyring() -> io::Result<()> {
    // SAFETY: the call gets integers and no name; the error number is this thread's.
    unsafe {
        let joined = libc::syscall(
            libc::SYS_keyctl,
            libc::c_long::from(libc::KEYCTL_JOIN_SESSION_KEYRING),
            std::ptr::null::<libc::c_char>(),
        );
        // a kernel without keys, or a filter that keeps them from the node and so from the box
        if joined < 0 && !matches!(*libc::__errno_location(), libc::ENOSYS | libc::EPERM) {
            step(c"launch: cannot leave the node's session keyring\n", joined)?;
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "raw system calls between fork and exec")]
fn mount(
    what: &'static CStr,
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or leads to a text that ends in a zero byte and outlives the call.
    let result = unsafe {
        libc::mount(pointer(source), target.as_ptr(), pointer(kind), flags, pointer(options).cast())
    };
    step(what, libc::c_long::from(result)).map(|_| ())
}

#[expect(unsafe_code, reason = "raw system calls between fork and exec")]
fn write(what: &'static CStr, path: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the path ends in a zero byte, the buffer has the length that is given.
    unsafe {
        let file =
            step(what, libc::c_long::from(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC)))?;
        let file = file as libc::c_int;
        let result = step(what, libc::write(file, bytes.as_ptr().cast(), bytes.len()) as libc::c_long);
        libc::close(file);
        result.map(|_| ())
    }
}

/// Brings `lo` up and gives it 10.203.0.1/32 beside 127.0.0.1/8, in the network namespace of the caller.
#[expect(unsafe_code, reason = "raw system calls between fork and exec")]
fn loopback() -> io::Result<()> {
    const ALIAS: u32 = u32::from_be_bytes([10, 203, 0, 1]);
    // SAFETY: the requests are plain data of the size that the kernel expects, alive during each call.
    unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        let socket =
            step(c"launch: lo\n", libc::c_long::from(libc::socket(libc::AF_INET, kind, 0)))? as libc::c_int;
        let mut up: libc::ifreq = std::mem::zeroed();
        name(&mut up, b"lo");
        up.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_LOOPBACK) as libc::c_short;
        let result = step(
            c"launch: cannot bring lo up\n",
            libc::c_long::from(libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw mut up)),
        );
        let address = |request, what, address: u32| {
            let mut alias: libc::ifreq = std::mem::zeroed();
            name(&mut alias, b"lo:1");
            let mut place: libc::sockaddr_in = std::mem::zeroed();
            place.sin_family = libc::AF_INET as libc::sa_family_t;
            place.sin_addr.s_addr = address.to_be();
            std::ptr::copy_nonoverlapping((&raw const place).cast(), &raw mut alias.ifr_ifru.ifru_addr, 1);
            step(what, libc::c_long::from(libc::ioctl(socket, request, &raw mut alias)))
        };
        let result = result
            .and_then(|_| address(libc::SIOCSIFADDR as _, c"launch: cannot add 10.203.0.1\n", ALIAS))
            .and_then(|_| {
                address(libc::SIOCSIFNETMASK as _, c"launch: cannot narrow 10.203.0.1\n", u32::MAX)
            });
        libc::close(socket);
        result.map(|_| ())
    }
}

fn name(request: &mut libc::ifreq, name: &[u8]) {
    for (place, byte) in request.ifr_name.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
}

/// Finds the program `bwrap`: a path as it stands, a bare name where systems keep programs. The environment's PATH
/// does not count: as root it may be somebody else's.
pub(crate) fn find_program(program: &Path) -> Option<std::path::PathBuf> {
    if program.components().count() > 1 {
        return program.exists().then(|| program.to_owned());
    }
    ["/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin", "/run/current-system/sw/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.exists())
}

/// Makes a descriptor that reads as bwrap's options, each ended by a zero byte: on a command line they would show in
/// every list of processes.
pub(super) fn options_file(options: &[Vec<u8>]) -> io::Result<OwnedFd> {
    use std::io::{Seek as _, Write as _};
    let descriptor = rustix::fs::memfd_create("bwrap-options", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut bytes = Vec::new();
    for option in options {
        if option.contains(&0) {
            return Err(io::Error::other("an option holds a zero byte"));
        }
        bytes.extend_from_slice(option);
        bytes.push(0);
    }
    let mut file = std::fs::File::from(descriptor);
    file.write_all(&bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Makes what a launch and its guest's first process complain on: memory of a fixed size, so that a guest that never
/// stops complaining fills no disk, and there as long as either side has it open.
pub(super) fn log_file() -> io::Result<std::fs::File> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    const BYTES: u64 = 64 * 1024;
    let log = std::fs::File::from(memfd_create("box-log", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    log.set_len(BYTES)?;
    fcntl_add_seals(&log, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(log)
}

/// Makes the pair of sockets on which bwrap says what it made.
///
/// bwrap leaves the descriptor that it writes to open for the guest. It therefore is the standard input, on which
/// nothing ever comes, and its other end is closed when bwrap has spoken.
pub(super) fn info_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.shutdown(std::net::Shutdown::Write)?;
    ours.set_nonblocking(true)?;
    Ok((ours, theirs.into()))
}
