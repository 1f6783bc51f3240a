use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use cocoonbox_core::Retry;
use cocoonbox_core::backend::BackendError;

/// The backend's name in errors and capabilities.
pub(super) const BACKEND: &str = "bwrap";

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process serves this directory.
    #[error("the data directory {} is in use by {holder}: stop that server, or choose another --data", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Who holds it, as far as it said.
        holder: String,
    },
    /// The directory belongs to another user of this machine.
    #[error(
        "the data directory {} belongs to uid {owner}, and this process is uid {own}: choose another --data, or run as its owner",
        path.display()
    )]
    ForeignOwner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process.
        own: u32,
    },
    /// A path cannot be read or written.
    #[error("cannot use {} ({what}){}", path.display(), hint(source))]
    Unusable {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The guest's binary is not where the configuration says.
    #[error("no guest binary at {}: build it with `make agent`, or name it in COCOONBOX_AGENT", path.display())]
    AgentMissing {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A claim's record cannot be read; nothing was changed.
    #[error("the record {} cannot be read: restore it from a backup, or move its directory away to give the claim up", path.display())]
    Journal {
        /// The record.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// No container engine answers, or not one that boxes can be made with.
    #[error("no boxes can be made by the container engine at {place}: {reason}")]
    Engine {
        /// The socket or program.
        place: String,
        /// What it said, and what to do.
        reason: String,
    },
    /// A claim that was in between two states could not be settled.
    #[error("a sandbox that an earlier server left half done could not be settled")]
    Settle(#[source] BackendError),
}

impl OpenError {
    /// Returns what a caller may do next.
    pub fn retry(&self) -> Retry {
        match self {
            Self::InUse { .. } | Self::Engine { .. } => Retry::Later,
            Self::ForeignOwner { .. }
            | Self::Unusable { .. }
            | Self::AgentMissing { .. }
            | Self::Journal { .. } => Retry::Never,
            Self::Settle(error) => error.retry(),
        }
    }

    pub(crate) fn unusable(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unusable { path, what, source }
    }
}

impl From<OpenError> for BackendError {
    fn from(error: OpenError) -> Self {
        Self::Unavailable { backend: BACKEND, reason: error.to_string(), source: Some(Box::new(error)) }
    }
}

/// What a person can do about a refusal of the system.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": the disk is full",
        io::ErrorKind::ReadOnlyFilesystem => ": the file system is read-only",
        io::ErrorKind::PermissionDenied => ": permission denied",
        _ => "",
    }
}

/// The machine refuses.
pub(super) fn unavailable(what: &str, source: io::Error) -> BackendError {
    BackendError::Unavailable {
        backend: BACKEND,
        reason: format!("{what}{}", hint(&source)),
        source: Some(Box::new(source)),
    }
}

/// For `map_err`: the machine refuses.
pub(super) fn refused(what: &'static str) -> impl FnOnce(io::Error) -> BackendError {
    move |source| unavailable(what, source)
}

pub(super) fn invalid(reason: impl Into<String>) -> BackendError {
    BackendError::Invalid { reason: reason.into() }
}
