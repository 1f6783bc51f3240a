//! What a first process is given that could inherit nothing: a container engine starts programs with three descriptors.
//!
//! The node listens on a socket that the box sees read-only, answers the first who comes, and never again. What it
//! hands over is what other first processes inherit: a listener that the node bound where no box sees it, a lock, and
//! the programs of the system call filter.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// How long the node has to hand over.
const LIMIT: Duration = Duration::from_secs(10);

/// What was handed over.
#[derive(Debug)]
#[non_exhaustive]
pub struct Handed {
    /// The guest channel, listening.
    pub channel: UnixListener,
    /// Held as long as the box lives.
    pub lock: OwnedFd,
    /// The programs of the box's system call filter, each a file, in the order in which they are to be installed.
    pub filters: Vec<OwnedFd>,
}

/// The most programs that a filter may have.
const MOST_FILTERS: usize = 8;

/// Takes what the node hands over at the socket `path`.
///
/// # Errors
/// Nobody listens there, or what comes are not two descriptors and at most eight programs.
pub fn take(path: &Path) -> io::Result<Handed> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 + MOST_FILTERS + 1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received =
        recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "nothing is handed over here any more"));
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let count = descriptors.len();
    let mut descriptors = descriptors.into_iter();
    match (descriptors.next(), descriptors.next()) {
        (Some(channel), Some(lock)) if count <= 2 + MOST_FILTERS => {
            Ok(Handed { channel: channel.into(), lock, filters: descriptors.collect() })
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{count} descriptors were handed over: they are a channel, a lock, and at most {MOST_FILTERS} programs"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{IoSlice, Read as _, Write as _};
    use std::os::fd::{AsFd as _, BorrowedFd};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Has a node hand `descriptors` over, and returns what was taken.
    fn handed(descriptors: &[BorrowedFd<'_>]) -> io::Result<Handed> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("node.sock");
        let listener = UnixListener::bind(&path)?;
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| take(&path));
            let (stream, _) = listener.accept()?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 + MOST_FILTERS + 1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
            }
            sendmsg(&stream, &[IoSlice::new(b"1")], &mut control, SendFlags::empty())?;
            drop(stream);
            taken.join().map_err(|_| io::Error::other("it panicked"))?
        })
    }

    #[test]
    fn a_listener_and_a_lock_are_taken() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("guest.sock");
        let (channel, lock) = (UnixListener::bind(&path)?, File::open("/dev/null")?);
        let handed = handed(&[channel.as_fd(), lock.as_fd(), lock.as_fd()])?;
        assert_eq!(handed.filters.len(), 1);
        drop((channel, lock));
        UnixStream::connect(&path)?.write_all(b"hello")?;
        let mut text = String::new();
        handed.channel.accept()?.0.read_to_string(&mut text)?;
        assert_eq!(text, "hello");
        for descriptor in [handed.channel.as_fd(), handed.lock.as_fd()] {
            assert!(rustix::io::fcntl_getfd(descriptor)?.contains(rustix::io::FdFlags::CLOEXEC));
        }
        Ok(())
    }

    #[test]
    fn anything_else_is_refused() -> io::Result<()> {
        let null = File::open("/dev/null")?;
        for count in [0, 1, 2 + MOST_FILTERS + 1] {
            assert_eq!(handed(&vec![null.as_fd(); count]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert!(take(Path::new("/nowhere/node.sock")).is_err());
        Ok(())
    }
}
