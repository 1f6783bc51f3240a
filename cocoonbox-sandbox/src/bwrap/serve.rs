//! What runs beside the calls: the only place of the backend that spawns, waits and looks at a watch.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cocoonbox_core::backend::{BackendError, SandboxId};
use tokio::io::unix::AsyncFd;

use super::Inner;
use super::disk;
use super::error::unavailable;
use super::journal::Process;
use super::registry::Entry;
use super::watch::{self, Watch};

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

/// Does blocking work that nobody waits for.
pub(super) fn aside(work: impl FnOnce() + Send + 'static) {
    drop(tokio::task::spawn_blocking(work));
}

/// Waits.
pub(crate) async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}

/// Does `work` and says how long it took.
pub(super) async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let start = tokio::time::Instant::now();
    let result = work.await;
    (result, start.elapsed())
}

/// Looks at what boxes have on disk as long as the node lives.
pub(super) fn watch_disks(inner: &Arc<Inner>) {
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        let start = tokio::time::Instant::now();
        let mut watch = Watch::default();
        loop {
            pause(watch::PAUSE).await;
            let Some(inner) = inner.upgrade() else { return };
            inner.look(&mut watch, start.elapsed()).await;
        }
    });
}

/// Ends `work` after `limit`.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}

/// Starts a program and sees to it that it is reaped when it ends.
pub(super) fn spawn(command: Command) -> io::Result<()> {
    let mut child = tokio::process::Command::from(command).spawn()?;
    tokio::spawn(async move { child.wait().await });
    Ok(())
}

/// Runs a program to its end, on a thread that may wait.
pub(super) fn run(mut command: Command) -> io::Result<std::process::Output> {
    command.output()
}

/// Runs what waits for programs where it holds up nobody; nothing when it was broken off.
pub(super) async fn work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Waits for a process to end.
pub(crate) async fn ended(process: OwnedFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "tokio asks that the descriptor stays open while it is registered")]
    // SAFETY: the descriptor is owned by the `AsyncFd` that registers it and closed with it.
    let registered = unsafe { AsyncFd::register_with_interest(process, tokio::io::Interest::READABLE) };
    registered.map_err(io::Error::from)?.readable().await.map(|_| ())
}

/// Watches a box's first process and says so when it dies by itself.
pub(super) fn watch(inner: &Arc<Inner>, id: &SandboxId, handle: OwnedFd, process: Process) {
    let (inner, id): (Weak<Inner>, _) = (Arc::downgrade(inner), id.clone());
    tokio::spawn(async move {
        if ended(handle).await.is_ok()
            && let Some(inner) = inner.upgrade()
        {
            inner.died(&id, &process).await;
        }
    });
}

/// How long the pools wait after a claim: its own first steps come first.
const REFILL_AFTER: Duration = Duration::from_millis(50);
/// How long after a failure another box is started for a pool, at first and at most.
const REFILL_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Keeps the pools full until it is dropped.
#[derive(Debug)]
pub(super) struct Filling(tokio::task::JoinHandle<()>);

impl Drop for Filling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits two milliseconds on a thread that may be held up.
pub(super) fn moment() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Takes a box's lock; nothing when somebody else keeps it for longer than a second.
///
/// Who looks whether it is free holds it for a moment, and longer where a program is started just then: what is forked
/// shares the lock until it runs.
pub(crate) fn lock_soon(path: &Path) -> io::Result<Option<File>> {
    for _ in 0..500 {
        if let Some(lock) = disk::lock(path)? {
            return Ok(Some(lock));
        }
        moment();
    }
    Ok(None)
}

/// Does what the pools need whenever they may need something.
pub(super) fn fill_pools(inner: &Arc<Inner>) -> Filling {
    let (inner, refill) = (Arc::downgrade(inner), Arc::clone(&inner.refill));
    Filling(tokio::spawn(async move {
        let mut wait = REFILL_PAUSES.0;
        loop {
            refill.notified().await;
            pause(REFILL_AFTER).await;
            loop {
                let Some(inner) = inner.upgrade() else { return };
                match to_the_end(inner.fill()).await {
                    Ok(true) => wait = REFILL_PAUSES.0,
                    Ok(false) => break,
                    Err(error) => {
                        not_filled(&error, wait);
                        pause(wait).await;
                        wait = (wait * 2).min(REFILL_PAUSES.1);
                    }
                }
            }
        }
    }))
}

fn not_filled(error: &BackendError, wait: Duration) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(error, "a box could not be started for a pool; trying again in {wait:?}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_for_a_moment_is_waited_for() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("lock");
        let held = disk::lock(&path)?.expect("it is free");
        let looker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(held);
        });
        assert!(lock_soon(&path)?.is_some());
        assert!(looker.join().is_ok());
        Ok(())
    }
}
