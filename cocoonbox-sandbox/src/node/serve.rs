//! What runs beside the node's calls: the only place of it that spawns and waits.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Node;
use super::refusal::{Code, Refusal};

/// How often leases are looked at.
pub const TICK: Duration = Duration::from_secs(5);

/// Looks after leases until `stop`.
pub async fn tend(node: Node, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = ticks.tick() => node.tick().await,
        }
    }
    node.rest().await;
}

/// Runs work to its end even when the caller stops waiting, so that nothing is ever half done.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(_) => Err(Refusal::new(Code::Internal, "the work was broken off")),
    }
}

/// Runs work that waits for the disk where it holds up nobody.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Ends `work` after `limit`.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}
