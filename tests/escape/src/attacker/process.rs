//! Other people's processes: seeing them, reading them, moving them.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};

use nix::libc;

use crate::sys::{Stop, Try, argument, at, at_mut, call, contents, number, own, printable, word};

/// Waits until its input ends: somebody to try things on.
pub(crate) fn idle() -> ! {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

/// Whom a way is tried on: a pid, or a child of the attacker's own.
struct Target {
    pid: usize,
    child: Option<Child>,
}

impl Target {
    fn of(arguments: &[&str]) -> Result<Self, Stop> {
        if argument(arguments, 0)? != "child" {
            return Ok(Self { pid: number(arguments, 0)?, child: None });
        }
        let cannot = |error| Stop::Cannot(format!("no child: {error}"));
        let mut child = Command::new("/proc/self/exe")
            .arg("idle")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        if let Some(out) = &mut child.stdout {
            out.read(&mut [0; 16]).map_err(cannot)?;
        }
        Ok(Self { pid: child.id() as usize, child: Some(child) })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(move |pid| *pid != own)
}

/// `MARKER`: a process whose command line holds it.
pub(crate) fn find(arguments: &[&str]) -> Try {
    let marker = argument(arguments, 0)?;
    let mut seen = 0;
    for pid in processes() {
        seen += 1;
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(marker) {
            return Ok(format!("process {pid}"));
        }
    }
    Err(Stop::Nothing(format!("none of {seen} processes")))
}

/// `PATH`: a file, by the root directory of any process that there is.
pub(crate) fn root(arguments: &[&str]) -> Try {
    let path = argument(arguments, 0)?;
    let mut seen = 0;
    for pid in processes() {
        seen += 1;
        for door in ["root", "cwd/../../../../../.."] {
            if let Ok(file) = fs::File::open(format!("/proc/{pid}/{door}{path}")) {
                let got = contents(file)?;
                let got = if got.contains("secret of") { got } else { format!("{} bytes", got.len()) };
                return Ok(format!("by process {pid}: {got}"));
            }
        }
    }
    Err(Stop::Nothing(format!("by none of {seen} processes")))
}

/// `PID NAME`: what `/proc` tells of it.
pub(crate) fn file(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    let path = format!("/proc/{}/{}", target.pid, argument(arguments, 1)?);
    contents(fs::File::open(path).map_err(Stop::of("open"))?)
}

/// `PID ADDRESS LENGTH`: its memory, as a file.
pub(crate) fn memory(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    let file = fs::File::open(format!("/proc/{}/mem", target.pid)).map_err(Stop::of("open"))?;
    if target.child.is_some() || arguments.len() < 3 {
        return Ok("its memory is open".to_owned());
    }
    let mut bytes = vec![0; number(arguments, 2)?];
    file.read_exact_at(&mut bytes, number(arguments, 1)?).map_err(Stop::of("read"))?;
    Ok(printable(&bytes))
}

/// `PID`: the list of what it has open.
pub(crate) fn descriptors(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    let entries = fs::read_dir(format!("/proc/{}/fd", target.pid)).map_err(Stop::of("list"))?;
    let mut first = Stop::Nothing("an empty list".to_owned());
    for entry in entries.flatten() {
        match fs::read_link(entry.path()) {
            Ok(target) => return Ok(target.display().to_string()),
            Err(error) => first = Stop::of("readlink")(error),
        }
    }
    Err(first)
}

/// `PID`: a copy of anything that it has open.
pub(crate) fn take_descriptor(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    let handle = own(call("pidfd_open", libc::SYS_pidfd_open, &[target.pid, 0])?);
    let mut last = None;
    for number in 0..32 {
        let handle = std::os::fd::AsRawFd::as_raw_fd(&handle) as usize;
        match call("pidfd_getfd", libc::SYS_pidfd_getfd, &[handle, number, 0]) {
            Ok(copy) => {
                drop(own(copy));
                return Ok(format!("descriptor {number}"));
            }
            Err(stop) => last = Some(stop),
        }
    }
    Err(last.unwrap_or_else(|| Stop::Cannot("nothing was asked for".to_owned())))
}

/// `PID [ADDRESS LENGTH]`: holding it and reading a piece of it.
pub(crate) fn ptrace(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    let ask = |what, request: libc::c_uint, address: usize, data: usize| {
        call(what, libc::SYS_ptrace, &[request as usize, target.pid, address, data])
    };
    ask("attach", libc::PTRACE_ATTACH, 0, 0)?;
    let mut status = 0_i32;
    let all = libc::__WALL as usize;
    call("wait", libc::SYS_wait4, &[target.pid, at_mut(&mut status), all, 0])?;
    let mut bytes = Vec::new();
    if arguments.len() > 2 {
        let (address, length): (usize, usize) = (number(arguments, 1)?, number(arguments, 2)?);
        for offset in (0..length).step_by(8) {
            let mut piece = 0_u64;
            ask("peek", libc::PTRACE_PEEKDATA, address + offset, at_mut(&mut piece))?;
            bytes.extend_from_slice(&piece.to_ne_bytes());
        }
        bytes.truncate(length);
    }
    ask("detach", libc::PTRACE_DETACH, 0, 0)?;
    Ok(format!("held it: {}", printable(&bytes)))
}

/// `PID ADDRESS LENGTH`: its memory, by `process_vm_readv`.
pub(crate) fn vm_read(arguments: &[&str]) -> Try {
    vm("process_vm_readv", libc::SYS_process_vm_readv, arguments)
}

/// `PID ADDRESS LENGTH`: the same bytes back into it.
pub(crate) fn vm_write(arguments: &[&str]) -> Try {
    vm("process_vm_writev", libc::SYS_process_vm_writev, arguments)
}

fn vm(what: &'static str, call_number: libc::c_long, arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    // a child is the attacker over again, at the same places but for where they are moved to: any address will do
    let (address, length) = match target.child {
        Some(_) => (stack_of(target.pid)?, 8),
        None => (number(arguments, 1)?, number(arguments, 2)?),
    };
    let mut bytes = vec![b'x'; length];
    let local = [at_mut(bytes.as_mut_slice()), length];
    let remote = [address, length];
    let words = [target.pid, at(&local), 1, at(&remote), 1, 0];
    match call(what, call_number, &words)? {
        count if count == length => Ok(printable(&bytes)),
        count => Err(Stop::Nothing(format!("{count} bytes"))),
    }
}

fn stack_of(pid: usize) -> Result<usize, Stop> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(Stop::of("maps"))?;
    let line = maps.lines().find(|line| line.ends_with("[stack]"));
    let end = line.and_then(|line| line.split(['-', ' ']).nth(1));
    let end = end.and_then(|end| usize::from_str_radix(end, 16).ok());
    end.map(|end| end - 64).ok_or_else(|| Stop::Cannot("it has no stack".to_owned()))
}

const HARMLESS: usize = libc::SIGWINCH as usize;

/// `PID`
pub(crate) fn signal(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    call("kill", libc::SYS_kill, &[target.pid, HARMLESS])?;
    Ok("signalled".to_owned())
}

/// `PID`
pub(crate) fn signal_thread(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    call("tgkill", libc::SYS_tgkill, &[target.pid, target.pid, HARMLESS])?;
    Ok("signalled".to_owned())
}

/// Everybody who can be reached.
pub(crate) fn signal_all(_: &[&str]) -> Try {
    call("kill", libc::SYS_kill, &[word(-1), HARMLESS])?;
    Ok("signalled".to_owned())
}

/// `PID`
pub(crate) fn signal_pidfd(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    let handle = own(call("pidfd_open", libc::SYS_pidfd_open, &[target.pid, 0])?);
    let handle = std::os::fd::AsRawFd::as_raw_fd(&handle) as usize;
    call("pidfd_send_signal", libc::SYS_pidfd_send_signal, &[handle, HARMLESS, 0, 0])?;
    Ok("signalled".to_owned())
}

/// Everybody of the attacker's user gets less of the processor.
pub(crate) fn priority(_: &[&str]) -> Try {
    call("setpriority", libc::SYS_setpriority, &[libc::PRIO_USER as usize, 0, 7])?;
    Ok("set".to_owned())
}

/// `PID`: a limit that it has to live with.
pub(crate) fn resource_limit(arguments: &[&str]) -> Try {
    let target = Target::of(arguments)?;
    let limit = [77_u64, 77];
    let what = libc::RLIMIT_MSGQUEUE as usize;
    call("prlimit", libc::SYS_prlimit64, &[target.pid, what, at(&limit), 0])?;
    Ok("set".to_owned())
}
