//! Terminals: words put into somebody's mouth.

use std::fs::File;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::libc;

use crate::sys::{Stop, Try, argument, at, at_mut, call, own};

/// `TEXT`: typed into every terminal that can be reached.
pub(crate) fn inject(arguments: &[&str]) -> Try {
    let text = argument(arguments, 0)?;
    let mut last = Stop::Nothing("no terminal".to_owned());
    let mut seen = Vec::new();
    match File::options().read(true).write(true).open("/dev/tty") {
        Ok(terminal) => seen.push(terminal),
        Err(error) => last = Stop::of("open /dev/tty")(error),
    }
    for number in 0..64 {
        // SAFETY: a number that is no open descriptor makes the copy fail, and nothing else.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        seen.extend(descriptor.try_clone_to_owned().map(File::from));
    }
    for terminal in seen {
        match type_into(&terminal, text) {
            Ok(()) => return Ok(format!("{} letters", text.len())),
            Err(Stop::Refused { errno: nix::errno::Errno::ENOTTY, .. }) => {}
            Err(stop) => last = stop,
        }
    }
    Err(last)
}

fn type_into(terminal: &File, text: &str) -> Result<(), Stop> {
    for letter in text.as_bytes() {
        let words = [terminal.as_raw_fd() as usize, libc::TIOCSTI as usize, at(letter)];
        call("TIOCSTI", libc::SYS_ioctl, &words)?;
    }
    Ok(())
}

/// The same on a terminal of its own making, where nothing but a filter of system calls is in the way.
pub(crate) fn inject_own(_: &[&str]) -> Try {
    let near =
        File::options().read(true).write(true).open("/dev/ptmx").map_err(Stop::of("open /dev/ptmx"))?;
    let near_word = near.as_raw_fd() as usize;
    let mut locked = 0_i32;
    call("unlock", libc::SYS_ioctl, &[near_word, libc::TIOCSPTLCK as usize, at_mut(&mut locked)])?;
    let flags = libc::O_RDWR | libc::O_NOCTTY;
    let peer = [near_word, libc::TIOCGPTPEER as usize, flags as usize];
    let far = File::from(own(call("peer", libc::SYS_ioctl, &peer)?));
    // a child: who leads a group already makes no session
    let child = call("fork", libc::SYS_clone, &[libc::SIGCHLD as usize, 0, 0, 0, 0])?;
    if child == 0 {
        let own_it = [far.as_raw_fd() as usize, libc::TIOCSCTTY as usize, 0];
        let done = call("setsid", libc::SYS_setsid, &[])
            .and_then(|_| call("TIOCSCTTY", libc::SYS_ioctl, &own_it))
            .and_then(|_| type_into(&far, "x"));
        std::process::exit(match done {
            Ok(()) => 0,
            Err(Stop::Refused { errno, .. }) => errno as i32,
            Err(_) => 255,
        });
    }
    let mut status = 0_i32;
    call("wait", libc::SYS_wait4, &[child, at_mut(&mut status), 0, 0])?;
    match libc::WEXITSTATUS(status) {
        0 => Ok("a letter".to_owned()),
        errno => Err(Stop::Refused { what: "TIOCSTI", errno: nix::errno::Errno::from_raw(errno) }),
    }
}
