//! The port that every sandbox backend implements.

mod capability;
mod check;
mod claim;
mod error;
#[cfg(any(test, feature = "testkit"))]
mod faulty;
mod memory;
mod part;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

pub use capability::{Capabilities, Enforcement, Freeze, LimitCapabilities};
pub use claim::{
    Claim, ClaimFilter, ClaimRef, ClaimRequest, ClaimState, Doors, HibernateTo, HostFile, HostFileName,
    Memory, Metadata, Nesting, NetworkMode, SandboxId, Size,
};
pub use error::{BackendError, QuotaScope};
#[cfg(any(test, feature = "testkit"))]
pub use faulty::{Fault, FaultyBackend, Method};
pub use memory::{
    EchoGuest, MemoryBackend, MemoryGuest, MemoryOptions, MemorySandbox, MemoryStore, guest_fn,
};
pub use part::{Measurement, Meter, PoolKey, PoolStatus, PoolTarget, Pools, Tenants};

/// A byte stream into a guest; each direction ends on its own.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A [`Duplex`] whose type is not known.
pub type BoxedDuplex = Box<dyn Duplex>;

/// What [`SandboxBackend::connect`] leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// The guest channel: the silkd protocol, spoken by the guest's first process.
    Channel,
    /// A TCP port on the guest's own loopback.
    Port(NonZeroU16),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel => f.write_str("the guest channel"),
            Self::Port(port) => write!(f, "port {port}"),
        }
    }
}

/// Makes, keeps and ends sandboxes.
///
/// A *claim* is one sandbox held by one caller. The word and its life cycle are those of the node's HTTP API, so
/// that a backend can sit behind it or in front of it.
///
/// # Behavior
/// - **Whole or not at all.** A call that fails leaves nothing behind that it made; a caller that stops waiting
///   (drops the future) may leave the effect done or undone, never half: `find` tells which.
/// - **Claims last.** A claim outlives the process that made it. Opening a backend on the same data finds every
///   claim again, those whose sandbox died meanwhile as [`ClaimState::Failed`].
/// - **`claim`** answers when the guest's first process has answered a round trip. `claim_ref` is a label, not a
///   key: two claims may carry the same one, so a caller whose answer got lost looks it up before it claims again.
///   Over a cap it is [`BackendError::Quota`]; caps count hibernated claims. What [`ClaimRequest::check`] refuses is
///   refused.
/// - **`find`** is exact and complete: what a finished `claim` made is there, what a finished `release` ended is
///   not. Oldest first, in the order of claiming whatever the clock did. A backend over several nodes answers although
///   one of them does not: claims there that it knows of are [`ClaimState::Away`], and asking by the id of one that it
///   does not know of is [`BackendError::Unavailable`], never "not there".
/// - **`release`** ends every process of the sandbox and removes what it kept. Releasing what is not there is
///   [`BackendError::NotFound`], which callers count as done, as is every other call on what is not there.
/// - **`hibernate`** leaves nothing of the sandbox running. With [`HibernateTo::Memory`] a backend that cannot keep
///   memory falls back to disk and says so in its answer. Files are kept either way. Hibernating a hibernated claim
///   answers again what it kept, except that memory kept can still be given up by asking for disk. A failed claim has
///   no memory to keep: it answers [`Memory::Lost`] and is hibernated from then on.
/// - **`wake`** answers when the guest answers again: [`Memory::Kept`] when processes went on where they stood,
///   [`Memory::Lost`] when they were started anew from the kept files. Waking what runs answers `Kept`. A failed
///   claim is started anew.
/// - **`connect`** never wakes: on a claim that does not run, hibernated or failed, it is [`BackendError::Conflict`].
///   A port that nobody listens on is [`BackendError::Unreachable`]. A stream ends when the sandbox's processes do;
///   while they are held still it may stand still.
/// - **`put_host_file`** replaces a file that the guest can read and not write, as one step: a reader sees the old
///   bytes or the new ones. It works on hibernated claims too, and what it wrote is there before a later wake runs
///   anything in the guest. What [`HostFile::check`] refuses is refused.
/// - Calls on different claims run side by side; calls on one claim take turns. A call that nobody polls for a while holds
///   up no call on another claim.
#[async_trait]
pub trait SandboxBackend: fmt::Debug + Send + Sync + 'static {
    /// Returns what this backend can do and guarantee; fixed for its life.
    fn capabilities(&self) -> Capabilities;

    /// Makes a sandbox and holds it for the caller.
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError>;

    /// Returns the claims that match `filter`, oldest first.
    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError>;

    /// Ends the sandbox and forgets the claim.
    async fn release(&self, id: &SandboxId) -> Result<(), BackendError>;

    /// Stops the sandbox and keeps its files, and its memory where asked and possible.
    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError>;

    /// Lets the sandbox run again.
    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError>;

    /// Opens a byte stream into the guest.
    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError>;

    /// Replaces a host-owned file that the guest reads.
    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError>;

    /// Returns the tenants' side, where the backend counts claims by tenant.
    fn tenants(&self) -> Option<&dyn Tenants>;

    /// Returns the warm pools, where the backend keeps sandboxes ready.
    fn pools(&self) -> Option<&dyn Pools> {
        None
    }

    /// Returns the meter, where the backend can tell what a sandbox uses.
    fn meter(&self) -> Option<&dyn Meter> {
        None
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: SandboxBackend + ?Sized> SandboxBackend for Arc<T> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        (**self).claim(request).await
    }
    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        (**self).find(filter).await
    }
    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        (**self).release(id).await
    }
    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        (**self).hibernate(id, to).await
    }
    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        (**self).wake(id).await
    }
    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        (**self).connect(id, target).await
    }
    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError> {
        (**self).put_host_file(id, file).await
    }
    fn tenants(&self) -> Option<&dyn Tenants> {
        (**self).tenants()
    }
    fn pools(&self) -> Option<&dyn Pools> {
        (**self).pools()
    }
    fn meter(&self) -> Option<&dyn Meter> {
        (**self).meter()
    }
}
