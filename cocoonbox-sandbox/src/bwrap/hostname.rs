//! A running box's host name, set from outside: nothing in the box may.
//!
//! The name is the uts namespace's, and setting it is up to the user namespace that owns that. The host's root has a say
//! there as everywhere; an ordinary user has it in the namespaces that he made, once he is inside. Entering a user
//! namespace takes a process with one thread, so that a child of a few system calls does it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::journal::Process;
use super::process;

/// What the child needs of stack, and more.
const STACK: usize = 64 * 1024;

/// Gives the box whose first process is `process` the host name `name`.
pub(super) fn set(process: &Process, name: &str) -> io::Result<()> {
    let space = File::open(format!("/proc/{}/ns/uts", process.pid))?;
    // checked after opening: what is open stays what it is
    if !process::is_alive(process) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let owner = owner(&space)?;
    let mut stack = vec![0; STACK];
    let act = || match rename(&space, &owner, name) {
        Ok(()) => 0,
        Err(error) => error as isize,
    };
    // the memory is shared and this thread waits until the child is over, so that nothing is copied
    let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
    #[expect(unsafe_code, reason = "a child that shares this memory has no safe form")]
    // SAFETY: the child makes system calls on what it borrows and ends; this thread stands still meanwhile, so that the
    // borrows and the stack outlive it.
    let child = unsafe { nix::sched::clone(Box::new(act), &mut stack, flags, Some(libc::SIGCHLD)) }?;
    loop {
        match waitpid(child, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(_, 0)) => return Ok(()),
            Ok(WaitStatus::Exited(_, code)) => return Err(io::Error::from_raw_os_error(code)),
            Ok(other) => return Err(io::Error::other(format!("the child ended by {other:?}"))),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the child does: nothing here takes a lock or memory.
fn rename(space: &File, owner: &OwnedFd, name: &str) -> nix::Result<()> {
    if setns(space, CloneFlags::CLONE_NEWUTS).is_err() {
        setns(owner, CloneFlags::CLONE_NEWUSER)?;
        setns(space, CloneFlags::CLONE_NEWUTS)?;
    }
    nix::unistd::sethostname(name)
}

/// Opens the user namespace that owns another.
fn owner(space: &File) -> io::Result<OwnedFd> {
    #[expect(unsafe_code, reason = "the request answers with a descriptor")]
    // SAFETY: the request takes no argument, and what it answers is a new descriptor that nobody else has.
    unsafe {
        let descriptor = libc::ioctl(space.as_raw_fd(), libc::NS_GET_USERNS);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}
