//! What runs beside the calls: the only place of the backend that spawns, waits and looks at a watch.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cocoonbox_core::backend::BackendError;

use super::Inner;
use super::error::unavailable;
use super::journal::Process;
use super::registry::Entry;

pub(super) use crate::bwrap::serve::{ended, pause, within};

/// Runs work to its end even when the caller stops waiting, so that nothing is ever half done.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Result<T, BackendError> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => Err(unavailable("its work was broken off", io::Error::other(error))),
    }
}

/// Runs work that waits for the disk where it holds up nobody.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackendError> + Send + 'static,
) -> Result<T, BackendError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(unavailable("its work was broken off", io::Error::other(error))),
    }
}

/// Has work done beside the caller, which learns of it by other means.
pub(super) fn beside(work: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(work);
}

/// Watches a box's first process and says so when it dies by itself.
pub(super) fn watch(inner: &Arc<Inner>, entry: &Arc<Entry>, handle: OwnedFd, process: Process) {
    let (inner, entry): (Weak<Inner>, Weak<Entry>) = (Arc::downgrade(inner), Arc::downgrade(entry));
    tokio::spawn(async move {
        if ended(handle).await.is_ok()
            && let (Some(inner), Some(entry)) = (inner.upgrade(), entry.upgrade())
        {
            inner.died(&entry, &process).await;
        }
    });
}

/// Has the doors of a box answered until the handle is dropped.
pub(super) fn doors(
    inner: &Inner,
    entry: &Entry,
    listener: std::os::unix::net::UnixListener,
) -> io::Result<DoorsHandle> {
    let handler = Arc::clone(&inner.config.doors);
    crate::doors::serve::start(entry.id.clone(), listener, handler).map(DoorsHandle)
}

/// Ends the service of a box's doors when it is dropped.
#[derive(Debug)]
pub(super) struct DoorsHandle(tokio::task::JoinHandle<()>);

impl Drop for DoorsHandle {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A child of this process that is ended, and waited for, when this is dropped.
#[derive(Debug)]
pub(super) struct Child(Option<std::process::Child>);

impl Child {
    /// Starts a program that reads nothing and complains on `log`.
    pub(super) fn start(mut command: Command, log: std::fs::File) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().map(|child| Self(Some(child)))
    }

    /// Returns its process id.
    pub(super) fn id(&self) -> Option<u32> {
        self.0.as_ref().map(std::process::Child::id)
    }

    /// Returns whether it has ended by itself.
    pub(super) fn is_over(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| child.try_wait().ok().flatten().is_some())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let ask = || {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        };
        if ask().is_ok() {
            for _ in 0..200 {
                if child.try_wait().ok().flatten().is_some() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}
