//! A child that does one dangerous thing and tells how it went.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a child says: the step it reached, the error number of that step (0: none), and a byte of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) step: u8,
    pub(super) errno: i32,
    pub(super) byte: u8,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It told its word.
    Said(Word),
    /// It ended without one.
    Died,
    /// It was ended, out of time.
    Late,
    /// There was none.
    NoChild(i32),
}

/// Runs `act` in a forked child for at most `limit`.
///
/// The child has this thread alone, so `act` must not allocate, lock or touch anything that another thread may hold:
/// system calls on values made before, and nothing else.
pub(super) fn in_child(limit: Duration, act: impl FnOnce() -> Word) -> End {
    let Ok((reader, writer)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else {
        return End::NoChild(0);
    };
    // SAFETY: the child makes system calls only (the contract of `act` above), writes to a pipe and leaves by `_exit`,
    // so that no destructor or handler of the parent runs twice.
    #[expect(unsafe_code, reason = "a namespace or a guest that hangs is tried in a process of its own")]
    match unsafe { fork() } {
        Err(errno) => End::NoChild(errno as i32),
        Ok(ForkResult::Child) => {
            let word = act();
            let mut bytes = [0_u8; 6];
            bytes[0] = word.step;
            bytes[1..5].copy_from_slice(&word.errno.to_le_bytes());
            bytes[5] = word.byte;
            let _ = rustix::io::write(&writer, &bytes);
            // SAFETY: `_exit` is async-signal-safe and does not return.
            unsafe { nix::libc::_exit(0) }
        }
        Ok(ForkResult::Parent { child }) => {
            drop(writer);
            let said = listen(&reader, limit);
            // whatever it said, it has nothing more to do, and a killed child cannot linger
            let _ = kill(child, Signal::SIGKILL);
            reap(child);
            said
        }
    }
}

fn listen(reader: &OwnedFd, limit: Duration) -> End {
    let wait = Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(1),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let descriptor = reader.as_fd();
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    match poll(&mut polled, Some(&wait)) {
        Ok(0) => return End::Late,
        Ok(_) => {}
        Err(errno) => return End::NoChild(errno.raw_os_error()),
    }
    let mut bytes = [0_u8; 6];
    match rustix::io::read(reader, &mut bytes) {
        Ok(6) => {
            let errno = i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
            End::Said(Word { step: bytes[0], errno, byte: bytes[5] })
        }
        _ => End::Died,
    }
}

/// Waits for a killed child, but not for ever: one stuck in the kernel is left to the parent's own end.
fn reap(child: nix::unistd::Pid) {
    let until = Instant::now() + Duration::from_secs(1);
    while matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns an error number in words.
pub(super) fn words(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}
