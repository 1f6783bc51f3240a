//! Sandboxes that nobody uses: they go to sleep, then away, then for good, as their pool says, or their node.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use cocoonbox_core::backend::{BoxedDuplex, Claim, ClaimState, HibernateTo, PoolKey};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::record::{Entry, Phase, hold};
use super::refusal::Refusal;
use super::{Inner, serve};

/// After how many seconds without a connection something is done; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::exhaustive_structs, reason = "three times")]
pub struct Idle {
    /// A running sandbox sleeps.
    pub hibernate_seconds: u32,
    /// A sleeping one is put away.
    pub archive_seconds: u32,
    /// One that was put away is removed, this long after that.
    pub delete_seconds: u32,
}

impl Idle {
    pub(super) fn delete_after(self) -> Option<Duration> {
        (self.delete_seconds > 0).then(|| Duration::from_secs(self.delete_seconds.into()))
    }

    /// Returns these times, and those of `other` where these are never.
    fn or(self, other: Self) -> Self {
        let either = |one, other| if one > 0 { one } else { other };
        Self {
            hibernate_seconds: either(self.hibernate_seconds, other.hibernate_seconds),
            archive_seconds: either(self.archive_seconds, other.archive_seconds),
            delete_seconds: either(self.delete_seconds, other.delete_seconds),
        }
    }

    const fn is_over(seconds: u32, idle: Duration) -> bool {
        seconds > 0 && idle.as_secs() >= seconds as u64
    }
}

/// The times of a pool, as they are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PoolIdle {
    pub(crate) key: PoolKey,
    pub(crate) idle: Idle,
}

/// How a sandbox is used.
#[derive(Debug, Default)]
pub(super) struct Uses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: u32,
    /// When it was first seen without a connection, in time served.
    idle_since: Option<Duration>,
}

impl Uses {
    /// Returns how long nobody has used it, as far as was looked; nothing while somebody does.
    fn idle_for(&self, served: Duration) -> Option<Duration> {
        let mut state = hold(&self.0);
        (state.open == 0).then(|| served.saturating_sub(*state.idle_since.get_or_insert(served)))
    }

    /// Begins to count anew, as for one that is waked.
    pub(super) fn restart(&self) {
        hold(&self.0).idle_since = None;
    }

    fn are_over(&self) -> bool {
        hold(&self.0).open == 0
    }
}

/// A use of a sandbox: as long as it lives, the sandbox is not idle.
#[derive(Debug)]
pub(super) struct Use(Arc<Entry>);

impl Use {
    pub(super) fn of(entry: &Arc<Entry>) -> Self {
        hold(&entry.uses.0).open += 1;
        Self(Arc::clone(entry))
    }

    /// Makes a stream a use: until it is dropped.
    pub(super) fn by(self, stream: BoxedDuplex) -> BoxedDuplex {
        Box::new(UseBy { stream, _use: self })
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut state = hold(&self.0.uses.0);
        state.open = state.open.saturating_sub(1);
        state.idle_since = None;
    }
}

struct UseBy {
    stream: BoxedDuplex,
    _use: Use,
}

impl AsyncRead for UseBy {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for UseBy {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What is to be done with a sandbox that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Sleep,
    Archive,
}

impl Inner {
    pub(super) fn set_idle(&self, pools: &[PoolIdle]) {
        let times = pools.iter().map(|pool| (pool.key.clone(), pool.idle));
        *hold(&self.idle) = times.collect::<HashMap<_, _>>();
    }

    /// Returns the times of the pool that a claim is like, or the node's own.
    pub(super) fn idle_of(&self, claim: &Claim) -> Idle {
        let key = PoolKey { image: claim.image.clone(), network: claim.network, size: claim.size };
        hold(&self.idle).get(&key).copied().unwrap_or_default().or(self.own_idle)
    }

    /// Looks which of `claims` nobody has used for long enough, and does with them what their pool says.
    pub(super) async fn sweep(self: &Arc<Self>, claims: &[Claim], served: Duration) {
        if hold(&self.idle).is_empty() && self.own_idle == Idle::default() {
            return;
        }
        for claim in claims {
            let Some(entry) = hold(&self.registry).of(claim) else { continue };
            let times = self.idle_of(claim);
            let Some(idle) = entry.uses.idle_for(served) else { continue };
            let due = match claim.state {
                ClaimState::Running if Idle::is_over(times.hibernate_seconds, idle) => Due::Sleep,
                ClaimState::Hibernated { .. } if Idle::is_over(times.archive_seconds, idle) => Due::Archive,
                _ => continue,
            };
            if entry.record().phase != Phase::Live {
                continue;
            }
            let inner = Arc::clone(self);
            if let Err(error) = serve::to_the_end(async move { inner.put_down(&entry, due).await }).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "a sandbox that nobody uses stays as it is; it is tried again");
            }
        }
    }

    async fn put_down(&self, entry: &Arc<Entry>, due: Due) -> Result<(), Refusal> {
        let _turn = entry.turn.lock().await;
        // whoever came meanwhile is counted, and whoever comes now waits for the turn
        let record = entry.record();
        let (Some(id), Phase::Live, true) = (&record.id, record.phase, entry.uses.are_over()) else {
            return Ok(());
        };
        let claim = self.claim_of(id).await?;
        match (due, &claim.state) {
            (Due::Sleep, ClaimState::Running) => {
                self.backend.hibernate(id, HibernateTo::Memory).await?;
                self.tell("hibernate", &claim);
                Ok(())
            }
            (Due::Archive, ClaimState::Hibernated { .. }) => self.archive(entry, &record).await,
            _ => Ok(()),
        }
    }
}
