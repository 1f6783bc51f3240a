//! An ordinary user's other ids: those that `/etc/subuid` and `/etc/subgid` give to it.
//!
//! ```text
//!  the node's user namespace      the map's            a box's
//!  uid of the node ────────────── 0
//!  first .. first + count ─────── the same numbers ──── one of them: 0, then 1000
//! ```
//!
//! One user namespace holds the whole map as long as the node lives. A launch enters it and goes on there as root's
//! does; work on files that belong to a box is done by a program in it.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::libc;

use super::launch::find_program;
use super::usage::Usage;

/// The most ids that are mapped.
const MOST: u32 = 65_536;

/// Why an ordinary user's node has one uid only.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum MapError {
    /// The files give this user nothing.
    #[error("/etc/subuid and /etc/subgid give {who} no range")]
    NoRange { who: String },
    /// The programs are not there.
    #[error("newuidmap and newgidmap are not installed")]
    NoProgram,
    /// They, or the system, refuse.
    #[error("the ids of /etc/subuid cannot be mapped ({what})")]
    Refused {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// The user namespace that maps a user's other ids.
#[derive(Debug)]
pub(crate) struct Map {
    space: OwnedFd,
    uids: Range<u32>,
    /// What the programs that work on files are called on this machine.
    remove: PathBuf,
    mode: PathBuf,
    size: PathBuf,
}

impl Map {
    /// Finds the ids that this process's user may map, and maps them: what the files promise is seen by doing.
    pub(crate) fn find() -> Result<Self, MapError> {
        let refused = |what| move |source| MapError::Refused { what, source };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let name = nix::unistd::User::from_uid(uid.into()).ok().flatten().map(|user| user.name);
        let ranges = |path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            largest_range(&text, name.as_deref(), uid)
        };
        let none = || MapError::NoRange { who: name.clone().unwrap_or_else(|| uid.to_string()) };
        let uids = ranges("/etc/subuid").ok_or_else(none)?;
        let gids = ranges("/etc/subgid").ok_or_else(none)?;
        let program = |name| find_program(Path::new(name)).ok_or(MapError::NoProgram);
        let maps = [(program("newuidmap")?, uid, uids.start), (program("newgidmap")?, gid, gids.start)];
        let tool = |name: &'static str| {
            let missing = || MapError::Refused { what: name, source: io::ErrorKind::NotFound.into() };
            find_program(Path::new(name)).ok_or_else(missing)
        };
        let (remove, mode, size) = (tool("rm")?, tool("chmod")?, tool("du")?);

        let count = (uids.len() as u32).min(gids.len() as u32).min(MOST);
        let holder = Holder::start().map_err(refused("a user namespace cannot be made"))?;
        for (program, own, first) in maps {
            // a box has one number for both its uid and its gid
            let words = [holder.pid, 0, own.cast_signed(), 1, uids.start.cast_signed(), first.cast_signed()];
            let words = words.iter().map(|word| word.cast_unsigned().to_string());
            let mut command = Command::new(program);
            command.args(words).arg(count.to_string());
            run(command).map_err(refused("newuidmap or newgidmap failed"))?;
        }
        let space = fs::File::open(format!("/proc/{}/ns/user", holder.pid));
        let space = space.map_err(refused("its user namespace cannot be opened"))?.into();
        Ok(Self { space, uids: uids.start..uids.start + count, remove, mode, size })
    }

    /// The uids that are mapped, each with a gid of the same number inside.
    pub(crate) fn uids(&self) -> Range<u32> {
        self.uids.clone()
    }

    /// Whether a box may have these uids.
    pub(super) fn covers(&self, uids: &Range<u32>) -> bool {
        self.uids.start <= uids.start && uids.end <= self.uids.end
    }

    /// The namespace, for a launch to enter.
    pub(super) fn space(&self) -> io::Result<OwnedFd> {
        self.space.try_clone()
    }

    /// Removes `path` and everything below it, whoever of the map owns it; what is not there is removed.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let words = ["-rf", "--one-file-system", "--"].map(OsStr::new);
        self.work(&self.remove, &words, path)
    }

    /// Lets a directory's owner in again, whoever of the map that is.
    pub(super) fn let_in(&self, path: &Path) -> io::Result<()> {
        self.work(&self.mode, &["u+rwx", "--"].map(OsStr::new), path)
    }

    /// Adds up what is below `path`, whoever of the map owns it.
    pub(super) fn measure(&self, path: &Path) -> io::Result<Usage> {
        let sum = |what| {
            let words = ["--summarize", "--one-file-system", what, "--"].map(OsStr::new);
            let ran = output(self.command(&self.size, &words, path))?;
            // it complains of what went while it looked; the sum stands all the same
            let said = String::from_utf8_lossy(&ran.stdout);
            let number = said.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
            number.ok_or_else(|| complaint(&ran))
        };
        Ok(Usage { bytes: sum("--block-size=1")?, files: sum("--inodes")? })
    }

    /// Adds up the files of the file system `device` that processes have open and that have no name any more, whoever
    /// of the map owns the processes.
    pub(super) fn removed(&self, processes: &[i32], device: u64) -> io::Result<u64> {
        if processes.is_empty() {
            return Ok(0);
        }
        let find = find_program(Path::new("find")).ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(find);
        command.arg("-L").args(processes.iter().map(|pid| format!("/proc/{pid}/fd")));
        command.args(["-maxdepth", "1", "-type", "f", "-links", "0", "-printf", r"%D %i %b\n"]);
        enter(&mut command, self.space.as_raw_fd());
        // it complains of what went while it looked
        Ok(removed_bytes(&String::from_utf8_lossy(&output(command)?.stdout), device))
    }

    /// Runs a program as the map's root on a path of this node's.
    fn work(&self, program: &Path, words: &[&OsStr], path: &Path) -> io::Result<()> {
        run(self.command(program, words, path))
    }

    fn command(&self, program: &Path, words: &[&OsStr], path: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(words).arg(path);
        enter(&mut command, self.space.as_raw_fd());
        command
    }
}

/// Adds up lines of device, inode and blocks, each file of `device` once.
fn removed_bytes(text: &str, device: u64) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let blocks = text.lines().filter_map(|line| {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let (on, inode, blocks) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        (on == device && seen.insert(inode)).then_some(blocks)
    });
    blocks.fold(0_u64, |sum, blocks| sum.saturating_add(blocks.saturating_mul(512)))
}

/// Has `command` enter the user namespace `space` between fork and exec.
#[expect(unsafe_code, reason = "what a child does before exec has no safe form")]
fn enter(command: &mut Command, space: i32) {
    use std::os::unix::process::CommandExt as _;
    let step = move || {
        // SAFETY: a system call on two integers; the descriptor is open until `run` returns.
        match unsafe { libc::setns(space, libc::CLONE_NEWUSER) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: the step makes one system call, takes no lock and allocates nothing.
    unsafe { command.pre_exec(step) };
}

/// Runs a program to its end; what it complains of is the error.
fn run(command: Command) -> io::Result<()> {
    let ran = output(command)?;
    if ran.status.success() { Ok(()) } else { Err(complaint(&ran)) }
}

fn output(mut command: Command) -> io::Result<Output> {
    command.env_clear().current_dir("/").stdin(Stdio::null());
    super::serve::run(command)
}

fn complaint(ran: &Output) -> io::Error {
    let said: String = String::from_utf8_lossy(&ran.stderr).chars().take(300).collect();
    let said = said.trim().replace(|letter: char| letter.is_control(), " ");
    io::Error::other(if said.is_empty() { ran.status.to_string() } else { said })
}

/// A process that does nothing but be in a user namespace of its own, until this value goes.
struct Holder {
    pid: i32,
    _until: OwnedFd,
}

impl Holder {
    fn start() -> io::Result<Self> {
        let (ready, say) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (wait, until) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let ends = [ready.as_raw_fd(), until.as_raw_fd(), say.as_raw_fd(), wait.as_raw_fd()];
        // SAFETY: the child makes raw system calls on memory that exists already, takes no lock, allocates nothing, and
        // leaves by `_exit`.
        #[expect(unsafe_code, reason = "a user namespace is made by a process that has one thread")]
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                hold(ends);
            }
            pid
        };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        let holder = Self { pid, _until: until };
        drop((say, wait));
        let mut word = Vec::new();
        fs::File::from(ready).take(4).read_to_end(&mut word)?;
        match <[u8; 4]>::try_from(word).map(i32::from_ne_bytes) {
            Ok(0) => Ok(holder),
            Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
            Err(_) => Err(io::Error::other("the process that makes it ended")),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(pid, None);
    }
}

/// The child of [`Holder::start`]: makes the namespace, says how that went, and waits.
#[expect(unsafe_code, reason = "raw system calls in a forked child")]
fn hold([ready, until, say, wait]: [i32; 4]) -> ! {
    // SAFETY: system calls on integers and on buffers of this function's own.
    unsafe {
        libc::close(ready);
        libc::close(until);
        // whoever maps ids into a namespace must own the process
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        let errno = if libc::unshare(libc::CLONE_NEWUSER) == 0 { 0 } else { *libc::__errno_location() };
        let word = errno.to_ne_bytes();
        libc::write(say, word.as_ptr().cast(), word.len());
        let mut byte = 0_u8;
        // ends with the node, too
        while libc::read(wait, (&raw mut byte).cast(), 1) > 0 {}
        libc::_exit(0)
    }
}

/// Returns the largest range that `text`, in the form of `/etc/subuid`, gives the user.
pub(crate) fn largest_range(text: &str, name: Option<&str>, uid: u32) -> Option<Range<u32>> {
    let uid = uid.to_string();
    let ranges = text.lines().filter_map(|line| {
        let (owner, range) = line.split_once(':')?;
        let (first, count) = range.split_once(':')?;
        let (first, count): (u32, u32) = (first.trim().parse().ok()?, count.trim().parse().ok()?);
        // nobody's root, and no number that means none
        let range = first..first.checked_add(count).filter(|end| *end < u32::MAX)?;
        ((Some(owner) == name || owner == uid) && first > 0 && !range.is_empty()).then_some(range)
    });
    ranges.max_by_key(Range::len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_removed_file_counts_once() {
        let text = "65024 7 8\n65024 7 8\n66 9 100\n65024 8 2\nnonsense\n65024 1\n";
        assert_eq!(removed_bytes(text, 65024), 10 * 512);
        assert_eq!(removed_bytes("1 1 18446744073709551615\n1 2 18446744073709551615\n", 1), u64::MAX);
    }

    #[test]
    fn ranges_are_found_by_name_and_by_number() {
        let text = "root:1:5\nana:100000:65536\nana:300000:7\n1001:200000:12\nbad\nana:x:y\nana:1:4294967295\n\
                    eve:0:70000\neve:5:0\n";
        for (name, uid, expected) in [
            (Some("ana"), 1000, Some(100_000..165_536)),
            (None, 1001, Some(200_000..200_012)),
            (Some("bob"), 1002, None),
            (Some("eve"), 1003, None),
        ] {
            assert_eq!(largest_range(text, name, uid), expected, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,200}", uid: u32) {
            if let Some(range) = largest_range(&text, Some("a"), uid) {
                prop_assert!(range.start > 0 && range.start < range.end);
            }
        }
    }
}
