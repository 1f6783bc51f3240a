//! Giving a container's first process what it cannot inherit.
//!
//! ```text
//!  node: binds channel/guest.sock, which no box sees, and takes the box's lock
//!        binds handoff/node.sock, which the box sees read-only ──▶ first process dials it
//!  node: who is it? the first process of the container that was just started ──▶ channel, lock, and the programs of
//!        the system call filter, which it is under before anything else of the box runs
//!        removes node.sock; nothing is handed over twice
//! ```
//!
//! From then on a container is like any other box: the node dials a socket of its own, and never a path that a guest
//! made; the box's lock is held exactly as long as its first process lives.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::net::UnixListener;

use crate::bwrap::channel;

/// The socket's name in the directory that a box sees.
pub(super) const SOCKET: &str = "node.sock";

/// What is to be handed over, and where.
#[derive(Debug)]
pub(super) struct Handoff {
    path: PathBuf,
    listener: std::os::unix::net::UnixListener,
    descriptors: Vec<OwnedFd>,
}

/// The most programs that a filter may have.
const MOST_FILTERS: usize = 8;

impl Handoff {
    /// Binds the socket in `directory`; `filters` are the programs of the box's system call filter.
    pub(super) fn bind(
        directory: &Path,
        channel: OwnedFd,
        lock: OwnedFd,
        filters: Vec<OwnedFd>,
    ) -> io::Result<Self> {
        debug_assert!(filters.len() <= MOST_FILTERS);
        let listener = channel::bind(directory, SOCKET)?;
        let path = directory.join(SOCKET);
        // the box's uid connects; the directory's mount keeps it from anything else
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        let descriptors = [channel, lock].into_iter().chain(filters).collect();
        Ok(Self { path, listener, descriptors })
    }

    /// Waits for the first who comes, and returns its pid and what gives it the descriptors.
    pub(super) async fn met(self) -> io::Result<Met> {
        let listener = UnixListener::from_std(self.listener)?;
        let stream = listener.accept().await?.0;
        drop(listener);
        std::fs::remove_file(&self.path)?;
        let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get();
        Ok(Met { pid, stream: stream.into_std()?, descriptors: self.descriptors })
    }
}

/// Who came.
#[derive(Debug)]
pub(super) struct Met {
    /// Its pid on this host.
    pub(super) pid: i32,
    stream: std::os::unix::net::UnixStream,
    descriptors: Vec<OwnedFd>,
}

impl Met {
    /// Hands over.
    pub(super) fn give(self) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 + MOST_FILTERS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = self.descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("the descriptors do not fit a message"));
        }
        sendmsg(&self.stream, &[IoSlice::new(b"1")], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}
