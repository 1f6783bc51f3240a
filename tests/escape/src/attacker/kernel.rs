//! The kernel's own corners.

use nix::libc;

use crate::sys::{Stop, Try, argument, at, at_mut, call, number, own, printable, text, word};

/// `NAME PROGRAM…`: the program in a session whose keyring holds a key, as a login makes one.
pub(crate) fn keyed(arguments: &[&str]) -> ! {
    const SESSION_RING: i64 = -3;
    let make = || -> Result<(), Stop> {
        let (kind, name) = (text("user"), text(argument(arguments, 0)?));
        call("keyctl join", libc::SYS_keyctl, &[libc::KEYCTL_JOIN_SESSION_KEYRING as usize, 0])?;
        let secret = "secret of the node";
        let words =
            [kind.as_ptr() as usize, name.as_ptr() as usize, at(secret), secret.len(), word(SESSION_RING)];
        call("add_key", libc::SYS_add_key, &words).map(drop)
    };
    if let Err(stop) = make() {
        println!("cannot try: {stop:?}");
    } else if let Some(program) = arguments.get(1) {
        use std::os::unix::process::CommandExt as _;
        let error = std::process::Command::new(program).args(&arguments[2..]).exec();
        println!("cannot try: {error}");
    }
    std::process::exit(2)
}

/// `SERIAL`: what a key holds, by its number alone.
pub(crate) fn key_read(arguments: &[&str]) -> Try {
    let serial = number::<i32>(arguments, 0)? as usize;
    let mut bytes = vec![0; 64];
    let words = [libc::KEYCTL_READ as usize, serial, at_mut(bytes.as_mut_slice()), bytes.len(), 0];
    let count = call("keyctl read", libc::SYS_keyctl, &words)?;
    Ok(printable(&bytes[..count.min(64)]))
}

/// `RING NAME`: a key by its name, in one of the caller's rings (-3 session, -4 user, -5 user session).
pub(crate) fn key_search(arguments: &[&str]) -> Try {
    let (kind, name) = (text("user"), text(argument(arguments, 1)?));
    let ring = word(number(arguments, 0)?);
    let words = [libc::KEYCTL_SEARCH as usize, ring, kind.as_ptr() as usize, name.as_ptr() as usize, 0];
    call("keyctl search", libc::SYS_keyctl, &words).map(|serial| format!("key {serial}"))
}

/// A key that stays behind in the kernel.
pub(crate) fn key_add(_: &[&str]) -> Try {
    const PROCESS_RING: i64 = -2;
    let (kind, name) = (text("user"), text("attacker"));
    let words = [kind.as_ptr() as usize, name.as_ptr() as usize, at("secret"), 6, word(PROCESS_RING)];
    call("add_key", libc::SYS_add_key, &words).map(|serial| format!("key {serial}"))
}

/// A program of two instructions for sockets.
pub(crate) fn bpf(_: &[&str]) -> Try {
    const LOAD: usize = 5;
    const SOCKET_FILTER: u32 = 1;
    // r0 = 0; exit
    let program: [u64; 2] = [0xb7, 0x95];
    let license = text("GPL");
    let mut attributes = [0_u64; 16];
    attributes[0] = u64::from(SOCKET_FILTER) | 2 << 32;
    attributes[1] = at(&program) as u64;
    attributes[2] = license.as_ptr() as u64;
    drop(own(call("bpf", libc::SYS_bpf, &[LOAD, at(&attributes), size_of_val(&attributes)])?));
    Ok("a program in the kernel".to_owned())
}

/// A counter of its own processor time, the least that there is.
pub(crate) fn perf(_: &[&str]) -> Try {
    const SOFTWARE: u32 = 1;
    const TASK_CLOCK: u64 = 1;
    const NOT_KERNEL: u64 = 1 << 5;
    let mut attributes = [0_u64; 16];
    attributes[0] = u64::from(SOFTWARE) | (size_of_val(&attributes) as u64) << 32;
    attributes[1] = TASK_CLOCK;
    attributes[5] = NOT_KERNEL;
    let words = [at(&attributes), 0, word(-1), word(-1), 0];
    drop(own(call("perf_event_open", libc::SYS_perf_event_open, &words)?));
    Ok("a counter".to_owned())
}

pub(crate) fn io_uring(_: &[&str]) -> Try {
    let mut parameters = [0_u64; 15];
    drop(own(call("io_uring_setup", libc::SYS_io_uring_setup, &[2, at_mut(&mut parameters)])?));
    Ok("a ring".to_owned())
}

/// By the call, as far as everybody may, and by the device.
pub(crate) fn userfaultfd(_: &[&str]) -> Try {
    const USER_MODE_ONLY: usize = 1;
    match call("userfaultfd", libc::SYS_userfaultfd, &[USER_MODE_ONLY]) {
        Ok(descriptor) => drop(own(descriptor)),
        Err(stop) => {
            std::fs::File::open("/dev/userfaultfd").map_err(|_| stop)?;
        }
    }
    Ok("a descriptor".to_owned())
}

/// What the kernel has said.
pub(crate) fn log(_: &[&str]) -> Try {
    const READ_ALL: usize = 3;
    let mut bytes = vec![0; 4096];
    match call("syslog", libc::SYS_syslog, &[READ_ALL, at_mut(bytes.as_mut_slice()), bytes.len()]) {
        Ok(count) => Ok(format!("{count} bytes")),
        Err(stop) => match std::fs::File::open("/dev/kmsg") {
            Ok(_) => Ok("/dev/kmsg is open".to_owned()),
            Err(_) => Err(stop),
        },
    }
}

/// A module: asked for with a file that is none, so that the answer to who may is `ENOEXEC`.
pub(crate) fn module(_: &[&str]) -> Try {
    let file = std::fs::File::open("/proc/self/exe").map_err(Stop::of("open"))?;
    let none = text("");
    let words = [std::os::fd::AsRawFd::as_raw_fd(&file) as usize, none.as_ptr() as usize, 0];
    match call("finit_module", libc::SYS_finit_module, &words) {
        Ok(_) => Ok("a module".to_owned()),
        Err(Stop::Refused { errno, .. })
            if errno != nix::errno::Errno::EPERM && errno != nix::errno::Errno::ENOSYS =>
        {
            Ok(format!("it was read as a module ({errno:?})"))
        }
        Err(stop) => Err(stop),
    }
}

/// The machine's IO ports.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ports(_: &[&str]) -> Try {
    call("iopl", libc::SYS_iopl, &[3])?;
    Ok("all ports".to_owned())
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ports(_: &[&str]) -> Try {
    Err(Stop::Cannot("this processor has none".to_owned()))
}

/// The name of the machine: set to what it is.
pub(crate) fn host_name(_: &[&str]) -> Try {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(Stop::of("read"))?;
    let name = name.trim_end();
    call("sethostname", libc::SYS_sethostname, &[at(name), name.len()])?;
    Ok(name.to_owned())
}
