//! The few system calls that need unsafe code: taking over descriptors, and what a child does before it becomes a program.

#![expect(
    unsafe_code,
    reason = "inherited descriptors and the moments between fork and exec have no safe door"
)]

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Takes over descriptor `fd`, which was inherited for us alone, and closes it to programs we start.
///
/// # Errors
/// It is a standard stream, or not open.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a standard stream is no inherited descriptor",
        ));
    }
    // SAFETY: borrowed for one call, which answers EBADF when it is not open
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) })?;
    // SAFETY: it is open, and the contract of the environment gives it to us alone
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&owned, flags | FdFlags::CLOEXEC)?;
    Ok(owned)
}

/// A program to start.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// What the program is told its name is, when not `argv[0]`.
    pub arg0: Option<OsString>,
    /// Where it starts.
    pub directory: PathBuf,
    /// All its variables.
    pub env: Vec<(OsString, OsString)>,
}

/// A terminal's size in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Its width.
    pub columns: u16,
    /// Its height.
    pub rows: u16,
}

/// This side of a started program's input and output.
#[derive(Debug)]
pub(crate) enum Ends {
    /// Three pipes.
    Pipes { stdin: OwnedFd, stdout: OwnedFd, stderr: OwnedFd },
    /// The master of its terminal.
    Terminal(OwnedFd),
}

/// Starts a program as the leader of a session of its own, on pipes or on a terminal. The caller waits for it.
pub(crate) fn launch(launch: &Launch, terminal: Option<Size>) -> io::Result<(Pid, Ends)> {
    let (program, arguments) = launch.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.current_dir(&launch.directory);
    if let Some(name) = &launch.arg0 {
        command.arg0(name);
    }
    let master = match terminal {
        None => {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            None
        }
        Some(size) => {
            let (master, slave) = open_terminal(size)?;
            command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
            Some(master)
        }
    };
    let on_terminal = master.is_some();
    // SAFETY: setsid, signal and ioctl are async-signal-safe, and nothing is allocated
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            // who started the box may ignore SIGHUP or SIGINT (nohup, a job in the background); programs must not
            for number in 1..=64 {
                nix::libc::signal(number, nix::libc::SIG_DFL);
            }
            if on_terminal {
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    let pid =
        Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("a child without a process id"))?;
    let ends = match (master, child.stdin.take(), child.stdout.take(), child.stderr.take()) {
        (Some(master), ..) => Ends::Terminal(master),
        (None, Some(stdin), Some(stdout), Some(stderr)) => {
            Ends::Pipes { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() }
        }
        _ => return Err(io::Error::other("a child without pipes")),
    };
    Ok((pid, ends))
}

fn open_terminal(size: Size) -> io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let slave = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty())?;
    resize(master.as_fd(), size)?;
    Ok((master, slave))
}

/// Gives a terminal another size; the programs on it are told.
pub(crate) fn resize(master: BorrowedFd<'_>, size: Size) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}

/// Starts a helper of our own that inherits descriptors under their numbers, each named in a variable.
pub(crate) fn launch_helper(helper: &Command, inherited: &[(&str, BorrowedFd<'_>)]) -> io::Result<Pid> {
    use std::os::fd::AsRawFd as _;
    let numbers: Vec<RawFd> = inherited.iter().map(|(_, descriptor)| descriptor.as_raw_fd()).collect();
    // made anew each time: what a command does before the exec adds up over its starts
    let mut command = Command::new(helper.get_program());
    command.args(helper.get_args()).env_clear();
    command.envs(helper.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(directory) = helper.get_current_dir() {
        command.current_dir(directory);
    }
    command.envs(inherited.iter().zip(&numbers).map(|((name, _), number)| (name, number.to_string())));
    command.stdin(Stdio::null());
    // SAFETY: setsid and fcntl are async-signal-safe; the descriptors outlive the spawn, which waits for the exec
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            for number in &numbers {
                fcntl_setfd(BorrowedFd::borrow_raw(*number), FdFlags::empty())?;
            }
            Ok(())
        });
    }
    let child = command.spawn()?;
    Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("a child without a process id"))
}

/// Sends signal `number` to a process group; the libraries know no real-time signals.
pub(crate) fn kill_group(leader: Pid, number: i32) -> io::Result<()> {
    // SAFETY: a system call on two integers
    if unsafe { nix::libc::kill(-leader.as_raw_nonzero().get(), number) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives memory that was freed back to the system; the allocator keeps it otherwise.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks and nothing of ours
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Keeps other programs of the same user from looking into this process, and what it starts from gaining rights.
///
/// # Errors
/// As the system calls.
pub fn harden() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Puts a descriptor into the runtime.
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor is the same one for as long as it is held
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
