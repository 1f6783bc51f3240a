use std::error::Error;

use super::SandboxId;
use crate::Retry;

/// Whose cap was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaScope {
    /// The whole node's.
    Node,
    /// One tenant's.
    Tenant,
    /// None: the node takes no new claims for now.
    Draining,
}

/// Why a backend did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The request breaks a rule; nothing happened.
    #[error("invalid request: {reason}")]
    Invalid {
        /// The rule.
        reason: String,
    },
    /// There is no such claim.
    #[error("no sandbox {id}")]
    NotFound {
        /// What was asked for.
        id: SandboxId,
    },
    /// The image is not here.
    #[error("no image {image:?} on this node")]
    UnknownImage {
        /// What was asked for.
        image: String,
    },
    /// The claim's state forbids it; nothing happened.
    #[error("sandbox {id} cannot do that now: {reason}")]
    Conflict {
        /// Which claim.
        id: SandboxId,
        /// Its state, in words.
        reason: String,
    },
    /// A cap is reached; nothing happened.
    #[error("{} ({limit} claims at most)", match scope {
        QuotaScope::Node => "the node is full",
        QuotaScope::Tenant => "the tenant's claims are used up",
        QuotaScope::Draining => "the node is draining",
    })]
    Quota {
        /// Whose cap.
        scope: QuotaScope,
        /// The cap.
        limit: u32,
    },
    /// This backend never can; its capabilities say so.
    #[error("the {backend} backend cannot {what}")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// What was asked.
        what: String,
    },
    /// The guest runs, and nobody in it listens there.
    #[error("nothing in sandbox {id} listens on {target}")]
    Unreachable {
        /// Which claim.
        id: SandboxId,
        /// The port or channel.
        target: String,
        /// What the guest or the kernel said.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The sandbox could not be started; nothing of it is left.
    #[error("the sandbox did not start: {reason}")]
    StartFailed {
        /// What went wrong and what to do about it.
        reason: String,
        /// The cause.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The backend cannot be reached, or the machine refuses (disk full, no descriptors).
    #[error("the {backend} backend is not available: {reason}")]
    Unavailable {
        /// The backend.
        backend: &'static str,
        /// What is missing.
        reason: String,
        /// The cause.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The other side broke the protocol; what happened there is unknown.
    #[error("the peer of sandbox {id} misbehaved: {reason}")]
    PeerMisbehaved {
        /// Which claim.
        id: SandboxId,
        /// What it did.
        reason: String,
    },
}

impl BackendError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Invalid { .. }
            | Self::NotFound { .. }
            | Self::UnknownImage { .. }
            | Self::Unsupported { .. } => Retry::Never,
            Self::Conflict { .. } => Retry::Reread,
            Self::Quota { .. } | Self::Unreachable { .. } | Self::StartFailed { .. } => Retry::Later,
            Self::Unavailable { .. } | Self::PeerMisbehaved { .. } => Retry::LookFirst,
        }
    }
}
