//! Signals by number, real-time ones included.

use std::io;

use rustix::process::Pid;

/// Sends signal `number`, 1 to 64, to the process group that `leader` leads.
pub(crate) fn to_group(leader: Pid, number: i32) -> io::Result<()> {
    if !(1..=64).contains(&number) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    crate::sys::kill_group(leader, number)
}
